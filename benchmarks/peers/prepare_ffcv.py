"""FFCV's DatasetWriter with its own worker processes: short side 256 with Pillow, JPEG of quality 90 by OpenCV.

The time of a run over one image per worker is taken for its start, the second one: the first also compiles.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from pathlib import Path

from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from peer_protocol import resized, serve_preparing


class Pictures:
    def __init__(self, files) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int):
        path, label = self.files[number]
        return resized(path), label


def run(files, out: str, processes: int) -> int:
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(out, fields, num_workers=processes).from_indexed_dataset(Pictures(files), chunksize=16)
    return Path(out).stat().st_size


def prepare(files, out: str, processes: int):
    run(files[:processes], out + "-warm", processes)
    yield "start"
    run(files[:processes], out + "-start", processes)
    yield "ready"
    yield run(files, out, processes)


if __name__ == "__main__":
    serve_preparing(prepare)
