"""A small loader's settings, what comes out of one, and a sample that is damaged."""

from pathlib import Path
from typing import Any

from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.pipeline.loader import Loader

SMALL: dict[str, Any] = {"batch_size": 8, "image_size": 16, "num_workers": 2, "seed": 3, "rank": 0, "world_size": 1}


def labels(loader: Loader) -> list[int]:
    return [int(label) for _, labels_N in loader for label in labels_N]


def damage(folder: Path, sample: int) -> None:
    index = shards.read_index(folder)
    with (folder / shard_tar.shard_name("train", int(index.shards_N[sample]))).open("r+b") as file:
        file.seek(int(index.offsets_N[sample]) + 200)
        file.write(b"\0\0\0\0\0\0")
