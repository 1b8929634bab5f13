"""Tiny prepared splits for chaos, soak and extremes, written through the format's own writer, without Spark.

The picture of sample n has one grey level that tells n, so that whoever receives a batch can say which samples it
holds without asking the labels: a wrong sample is seen even where labels are right.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from feedline.pipeline.base import files as atomic
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar

LEVELS = 200
FIRST_LEVEL = 28


def write(
    folder: Path, samples: int, shard_count: int, *, px: int = 32, classes: int | None = None
) -> shards.Manifest:
    """Sample n has label n (modulo `classes`), key `s%07d` and a picture of grey level `level(n)`."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [picture(number, px) for number in range(min(samples, LEVELS))]
    rows: list[shards.SampleRow] = []
    infos: list[shards.ShardInfo] = []
    for number, size in enumerate(shard_tar.balanced_sizes(samples, shard_count)):
        infos.append(_shard(folder, number, range(len(rows), len(rows) + size), pictures, rows, px, classes))
    atomic.write_atomically(folder / shards.INDEX, shards.index_bytes(rows))
    manifest = replace(describe(infos, samples, classes or samples, px), split=split_of(folder))
    atomic.write_atomically(folder / shards.MANIFEST, manifest.to_json().encode())
    return manifest


def split_of(folder: Path) -> str:
    return "val" if folder.name == "val" else "train"


def describe(infos: list[shards.ShardInfo], samples: int, classes: int, px: int) -> shards.Manifest:
    return shards.Manifest(
        split="train",
        samples=samples,
        classes=[{"name": f"class {label}"} for label in range(classes)],
        shards=infos,
        settings={"codec": "jpeg", "size_px": px, "resize": "shortest"},
        seed=0,
        plan_hash="0" * 64,
    )


def picture(sample: int, px: int) -> bytes:
    return jpeg.encode(Image.new("RGB", (px, px), (level(sample),) * 3), quality=90)


def level(sample: int) -> int:
    return FIRST_LEVEL + sample % LEVELS


def shown(images_NHWC: np.ndarray) -> Iterator[int]:
    """The sample number modulo LEVELS that each picture shows; -1 for one that shows none of them evenly."""
    for image_HWC in np.asarray(images_NHWC):
        low, high = int(image_HWC.min()), int(image_HWC.max())
        found = round((low + high) / 2) - FIRST_LEVEL
        yield found if high - low <= 2 and 0 <= found < LEVELS else -1


def _shard(
    folder: Path,
    number: int,
    samples: range,
    pictures: list[bytes],
    rows: list[shards.SampleRow],
    px: int,
    classes: int | None,
) -> shards.ShardInfo:
    name = shard_tar.shard_name(split_of(folder), number)
    with (folder / name).open("wb") as file, shard_tar.ShardWriter(file, number) as writer:
        for sample in samples:
            label = sample % classes if classes else sample
            writer.add(f"s{sample:07d}", pictures[sample % LEVELS], "jpg", label=label, width=px, height=px)
    rows += writer.rows
    size = len(samples)
    return shards.ShardInfo(name=name, samples=size, planned_samples=size, bytes=writer.bytes, sha256=writer.sha256)
