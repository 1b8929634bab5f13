"""FFCV on its own format; `mode` in the spec: jpg (quality 90) or raw pixels. Threads; page cache and random order,
or (`order` in the spec) QUASI_RANDOM and pages of its own, as it advises where data does not fit in memory.

Writing: its DatasetWriter with its own worker processes, short side 256 with Pillow, JPEG of quality 90 by OpenCV.
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
from peer_protocol import Epoch, Spec, image_files, resized, serve
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
    fields = {"image": RGBImageField(write_mode=spec["mode"], jpeg_quality=90), "label": IntField()}
    pictures = Pictures(image_files(spec["folder"]), whole)
    DatasetWriter(str(Path(spec["work"]) / "data.beton"), fields, num_workers=2).from_indexed_dataset(pictures)


def write(files: list[Any], out: str, processes: int) -> Any:
    def run(files: list[Any], out: str) -> int:
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
        writer = DatasetWriter(out, fields, num_workers=processes)
        writer.from_indexed_dataset(Pictures(files, resized), chunksize=16)
        return Path(out).stat().st_size

    run(files[:processes], out + "-warm")
    yield "start"
    run(files[:processes], out + "-start")
    yield "ready"
    yield run(files, out)


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
