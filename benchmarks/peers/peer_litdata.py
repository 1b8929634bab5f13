"""LitData on its own chunks of JPEG bytes; decode and v2 transforms in its DataLoader's workers.

Writing: `optimize` with its own workers; the time of a run over one image per worker is taken for its start.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from peer_protocol import Epoch, Spec, image_files, resized_jpeg, serve, started_apart
from torchvision import io
from torchvision.transforms import v2


def as_is(item: list[Any]) -> dict[str, Any]:
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def smaller(item: list[Any]) -> dict[str, Any]:
    image, label = resized_jpeg((item[0], item[1]))
    return {"image": image, "label": label}


def run(one: Any, files: list[Any], out: str, processes: int) -> None:
    inputs = [[str(path), label] for path, label in files]
    optimize(fn=one, inputs=inputs, output_dir=out, chunk_bytes="64MB", num_workers=processes)


def prepare(spec: Spec) -> None:
    run(as_is, image_files(spec["folder"]), str(Path(spec["work"]) / "chunks"), 2)


def write(files: list[Any], out: str, processes: int) -> Any:
    return started_apart(lambda files, out: run(smaller, files, out, processes), files, out, processes)


class Pictures(StreamingDataset):
    px = 224

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        data = torch.frombuffer(bytearray(sample["image"]), dtype=torch.uint8)
        image = io.decode_image(data, io.ImageReadMode.RGB)
        return v2.functional.horizontal_flip(self.crop(image)) if torch.rand(()) < 0.5 else self.crop(image)

    @property
    def crop(self) -> Any:
        return v2.RandomResizedCrop(self.px, antialias=True)


def make(spec: Spec) -> Epoch:
    Pictures.px, workers = spec["px"], spec["workers"]
    dataset = Pictures(str(Path(spec["work"]) / "chunks"), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=spec["batch_size"], num_workers=workers, drop_last=True,
                                 persistent_workers=workers > 0)  # fmt: skip
    return loader.__iter__


if __name__ == "__main__":
    serve(make, prepare, write)
