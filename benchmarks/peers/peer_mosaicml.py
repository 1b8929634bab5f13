"""MosaicML Streaming on its own MDS shards of JPEG bytes; PIL transforms in DataLoader workers.

Writing: MDSWriter fed by a pool; workers read and resize, the writer packs.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from pathlib import Path
from typing import Any

from peer_protocol import Epoch, Spec, image_files, resizing, serve
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader
from torchvision import transforms


def prepare(spec: Spec) -> None:
    with MDSWriter(out=str(Path(spec["work"]) / "mds"), columns={"image": "jpeg", "label": "int"}) as writer:
        for path, label in image_files(spec["folder"]):
            writer.write({"image": Image.open(path), "label": label})


def write(files: list[Any], out: str, processes: int) -> Any:
    with resizing(processes) as resize:
        yield "ready"
        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=out, columns=columns, size_limit=1 << 26) as writer:
            for image, label in resize(files):
                writer.write({"image": image, "label": label})
        yield "end"


class Pictures(StreamingDataset):
    def __init__(self, spec: Spec) -> None:
        super().__init__(local=str(Path(spec["work"]) / "mds"), shuffle=True, batch_size=spec["batch_size"])
        self.steps = transforms.Compose(
            [transforms.RandomResizedCrop(spec["px"]), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        )

    def __getitem__(self, index: Any) -> Any:
        return self.steps(super().__getitem__(index)["image"].convert("RGB"))


def make(spec: Spec) -> Epoch:
    workers = spec["workers"]
    loader = DataLoader(Pictures(spec), spec["batch_size"], num_workers=workers, drop_last=True,
                        persistent_workers=workers > 0)  # fmt: skip
    return loader.__iter__


if __name__ == "__main__":
    serve(make, prepare, write)
