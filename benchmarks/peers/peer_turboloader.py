"""TurboLoader's fused fast path over the same images in one tar: random crop and flip in C++."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
import tarfile
from pathlib import Path

import turboloader
from peer_protocol import Epoch, Spec, image_files, serve


def prepare(spec: Spec) -> None:
    with tarfile.open(Path(spec["work"]) / "data.tar", "w") as tar:
        for path, _ in image_files(spec["folder"]):
            tar.add(path, arcname=path.name)


def make(spec: Spec) -> Epoch:
    options = {"batch_size": spec["batch_size"], "num_workers": spec["workers"], "image_size": spec["px"],
               "shuffle": True, "output_format": "numpy", "train_aug": True, "drop_last": True}  # fmt: skip
    path = str(Path(spec["work"]) / "data.tar")
    loader = turboloader.DataLoader(path, dtype=spec.get("dtype", "float32"), **options)
    return lambda: (batch[0] if isinstance(batch, tuple | list) else batch for batch in loader)


if __name__ == "__main__":
    serve(make, prepare)
