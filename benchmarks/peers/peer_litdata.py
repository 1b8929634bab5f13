"""LitData on its own chunks of JPEG bytes; decode and v2 transforms in its DataLoader's workers."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from peer_protocol import Epoch, Spec, image_files, serve
from torchvision import io
from torchvision.transforms import v2


def one(item: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def prepare(spec: Spec) -> None:
    items = [(str(path), label) for path, label in image_files(spec["folder"])]
    optimize(fn=one, inputs=items, output_dir=str(Path(spec["work"]) / "chunks"), chunk_bytes="64MB", num_workers=2)


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
    serve(make, prepare)
