"""Bytes and numbers that may never change: golden values, written once and compared since.

`FEEDLINE_GOLDEN=write pytest tests/test_golden.py` writes them anew; that is a change of format and needs a reason.
Bytes that an encoder makes are compared only where the same encoder made them. The compiled kernel's pixels are equal
on every processor; the fallback's may differ by one level, since OpenCV chooses its instructions by processor.
"""

import hashlib
import io
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format import manifest, shard_tar
from feedline.pipeline.workers.counters import ROW_BYTES, Clock
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output, Preparer
from feedline.preprocess.plan import make_plan
from feedline.preprocess.sources.base import Columns

VALUES = Path(__file__).with_name("golden.json")
PIXELS = Path(__file__).with_name("golden.npz")
WRITE = os.environ.get("FEEDLINE_GOLDEN") == "write"
PICTURES = 20
REGIONS = 3
SLOT_PX = 16


def encoder() -> str:
    """What makes the bytes: another encoder may make others."""
    names = []
    for name in ("pillow-simd", "pillow", "simplejpeg", "opencv-python-headless", "pyarrow", "numpy"):
        try:
            names.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            pass
    return ", ".join(names)


def source_pictures() -> list[bytes]:
    """PNG files of integer arithmetic alone: odd sides, grey, palette; smooth and noisy."""
    files: list[bytes] = []
    state = 1
    for number in range(PICTURES):
        height, width = 37 + 11 * number, 61 + 7 * (number * 5 % 20)
        y, x = np.mgrid[0:height, 0:width].astype(np.int64)
        channels: list[Any] = []
        for channel in range(3):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            noise = (x * 7919 + y * 104729 + state) * 2654435761 >> 7 & 31
            channels.append(np.abs((x * (channel + 1) + y * 2 + state % 97) % 511 - 255) * 7 // 8 + noise)
        picture = Image.fromarray(np.stack(channels, -1).clip(0, 255).astype(np.uint8))
        picture = picture.convert("L") if number % 7 == 3 else picture.quantize(64) if number % 7 == 5 else picture
        file = io.BytesIO()
        picture.save(file, "PNG")
        files.append(file.getvalue())
    return files


def members(codec: Any) -> list[bytes]:
    preparer = Preparer((Output(codec=codec, size_px=32),))
    return [preparer(data)[0].data for data in source_pictures()]


def sha(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def slots(codec: str) -> np.ndarray:
    """(pictures x regions, px, px, 3): one training region twice, one evaluation region, of every picture."""
    out = np.zeros((PICTURES * REGIONS, SLOT_PX, SLOT_PX, 3), np.uint8)
    clock = Clock(np.zeros(ROW_BYTES // 8, np.int64))
    for number, data in enumerate(members(codec)):
        for region in range(REGIONS):
            kernel = SampleKernel(codec, Augment(train=region < 2), seed=3)  # type: ignore[arg-type]
            kernel(data, out[number * REGIONS + region], number, region, clock)
    return out


def compare(name: str, value: Any) -> None:
    known = json.loads(VALUES.read_text()) if VALUES.exists() else {}
    if WRITE:
        VALUES.write_text(json.dumps(known | {name: value, "encoder": encoder()}, indent=1, sort_keys=True) + "\n")
        return
    assert known[name] == value


def same_encoder() -> None:
    if not WRITE and json.loads(VALUES.read_text())["encoder"] != encoder():
        pytest.skip(f"golden bytes were made by another encoder than {encoder()}")


@pytest.mark.parametrize("codec", ["jpeg", "raw", "keep"])
def test_the_bytes_of_every_codec(codec: str) -> None:
    same_encoder()
    compare(f"members {codec}", [sha(data)[:16] for data in members(codec)])


@pytest.mark.parametrize("codec", ["jpeg", "raw", "planes", "keep"])
def test_what_lands_in_a_slot(codec: str, kernel: str) -> None:
    same_encoder()
    filled, name = slots(codec), codec if kernel == "python" else f"{codec} {kernel}"
    known = dict(np.load(PIXELS)) if PIXELS.exists() else {}
    if WRITE:
        np.savez_compressed(PIXELS, **(known | {name: filled}))  # type: ignore[arg-type]
        return
    difference = np.abs(known[name].astype(int) - filled)
    assert difference.max() <= (kernel == "python")
    assert (difference > 0).mean() < 0.02


@pytest.mark.parametrize("codec", ["jpeg", "raw", "planes", "keep"])
def test_both_kernels_show_the_same(codec: str) -> None:
    """Within a level; in the smallest outputs, where Pillow-SIMD's short coefficients add up twice, rarely two."""
    known = dict(np.load(PIXELS))
    difference = np.abs(known[codec].astype(int) - known[f"{codec} compiled"])
    assert difference.max() <= 2
    assert (difference > 1).mean() < 1e-4
    assert (difference > 0).mean() < 0.04


def columns(samples: int) -> Columns:
    numbers = np.arange(samples)
    return Columns(
        keys=[f"c{n % 5}/im{n}" for n in range(samples)],
        labels_N=(numbers % 5).astype(np.int32),
        splits_N=(numbers % 2).astype(np.int8),
        split_names=["train", "val"],
        paths=["a.tar", "b.tar"],
        path_N=(numbers % 2).astype(np.int32),
        offsets_N=(numbers * 1024).astype(np.int64),
        lengths_N=np.full(samples, 100_000, np.int64),
        troubles={},
    )


@pytest.mark.parametrize("outputs", ["256:jpeg", "64:raw", "96:planes", "keep"])
def test_the_hash_and_the_order_of_a_plan(outputs: str) -> None:
    size, _, codec = outputs.rpartition(":")
    output = Output(codec=codec, size_px=int(size)) if size else Output(codec="keep")  # type: ignore[arg-type]
    config = PrepareConfig(source="in", out="out", outputs=(output,), shards=4, seed=7)
    plan = make_plan(columns(200), config, [{"name": str(n)} for n in range(5)], "print")
    order = [split.rows_N.tolist() for split in plan.splits]
    compare(f"plan {outputs}", {"hash": plan.hash, "order": sha(json.dumps(order).encode())})


def epoch_order(policy: Any, rank: int) -> bytes:
    plan = EpochPlan(samples=1001, seed=5, epoch=2, world_size=3, rank=rank, batch_size=16, policy=policy)
    return b"".join(plan.batch(number).tobytes() for number in range(len(plan)))


def test_the_order_of_an_epoch() -> None:
    policies = ("drop", "pad", "wrap")
    compare("epoch", {policy: [sha(epoch_order(policy, rank)) for rank in range(3)] for policy in policies})


def test_a_shard_its_index_and_its_manifest(tmp_path: Path) -> None:
    same_encoder()
    shard = tmp_path / "train-000000.tar"
    with shard.open("wb") as file, shard_tar.ShardWriter(file, 0) as writer:
        for number, data in enumerate(members("raw")):
            writer.add(f"k{number}" if number else "k" * 120, data, "npy", label=number, width=32, height=32)
    compare("shard", {"tar": sha(shard.read_bytes()), "index": sha(manifest.index_bytes(writer.rows))})
