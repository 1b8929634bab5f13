"""FFCV on its own format; `mode` in the spec: jpg or raw pixels. Threads; page cache and random order,
or (`order` in the spec) QUASI_RANDOM and pages of its own, as it advises where data does not fit in memory.

Writing: its DatasetWriter with its own worker processes, resized with Pillow, JPEG by OpenCV.
The time of a run over one image per worker is taken for its start, the second one: the first also compiles.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter
from peer_protocol import Epoch, Spec, image_files, jpeg_quality, resized, serve, started_apart
from PIL import Image


class Pictures:
    def __init__(self, files: list[Any], read: Any) -> None:
        self.files, self.read = files, read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path, label = self.files[number]
        return self.read(path), label


def whole(path: Path) -> Any:
    return Image.open(path).convert("RGB")


def prepare(spec: Spec) -> None:
    pictures = Pictures(image_files(spec["folder"]), whole)
    writer(str(Path(spec["work"]) / "data.beton"), spec["mode"], 2).from_indexed_dataset(pictures)


def writer(out: str, mode: str, processes: int) -> DatasetWriter:
    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=jpeg_quality()), "label": IntField()}
    return DatasetWriter(out, fields, num_workers=processes)


def write(files: list[Any], out: str, processes: int) -> Any:
    def run(files: list[Any], out: str) -> None:
        writer(out, "jpg", processes).from_indexed_dataset(Pictures(files, resized), chunksize=16)

    run(files[:processes], out + "-warm")
    yield from started_apart(run, files, out, processes)


def make(spec: Spec) -> Epoch:
    px = spec["px"]
    pipelines = {
        "image": [RandomResizedCropRGBImageDecoder((px, px)), RandomHorizontalFlip(), ToTensor()],
        "label": [IntDecoder(), ToTensor()],
    }
    order = OrderOption[spec.get("order", "RANDOM")]
    loader = Loader(str(Path(spec["work"]) / "data.beton"), batch_size=spec["batch_size"], order=order,
                    num_workers=spec["workers"], os_cache=order == OrderOption.RANDOM, drop_last=True,
                    pipelines=pipelines)  # fmt: skip
    return lambda: (images for images, _ in loader)


if __name__ == "__main__":
    np.random.seed(0)
    serve(make, prepare, write)
