"""A tiny prepared dataset whose classes a small CNN can tell apart: stripes of one direction each, any colour."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.pipeline.base import files as atomic
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.train.config import TrainConfig

PX = 20
CLASSES = 3


def write_dataset(folder: Path, *, train: int = 96, val: int = 22, classes: int = CLASSES) -> Path:
    write_split(folder / "train", train, classes, seed=0)
    write_split(folder / "val", val, classes, seed=1)
    return folder


def write_split(folder: Path, samples: int, classes: int, *, seed: int, label_shift: int = 0) -> None:
    """One raw shard, `samples` pictures of `classes` classes in turn."""
    folder.mkdir(parents=True)
    name = shard_tar.shard_name(folder.name, 0)
    rng = np.random.default_rng(seed)
    with (folder / name).open("wb") as file, shard_tar.ShardWriter(file, 0) as writer:
        for sample in range(samples):
            label = sample % classes
            buffer = io.BytesIO()
            np.save(buffer, striped(rng, label, classes))
            writer.add(f"s{sample:04d}", buffer.getvalue(), "npy", label=label + label_shift, width=PX, height=PX)
    info = shards.ShardInfo(
        name=name, samples=samples, planned_samples=samples, bytes=writer.bytes, sha256=writer.sha256
    )
    manifest = shards.Manifest(
        split=folder.name,
        samples=samples,
        classes=[{"name": f"class{label}"} for label in range(classes)],
        shards=[info],
        settings={"codec": "raw", "size_px": PX, "resize": "square"},
        seed=seed,
        plan_hash="0" * 64,
    )
    atomic.write_atomically(folder / shards.INDEX, shards.index_bytes(writer.rows))
    atomic.write_atomically(folder / shards.MANIFEST, manifest.to_json().encode())


def striped(rng: np.random.Generator, label: int, classes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    angle = np.pi * label / classes
    down, across = np.mgrid[:PX, :PX]
    wave = np.sin((across * np.cos(angle) + down * np.sin(angle)) * 1.5 + rng.uniform(0, 2 * np.pi))
    colour = rng.uniform(60, 110, 3)
    image_HWC = 128 + wave[..., None] * colour + rng.normal(0, 12, (PX, PX, 3))
    return np.clip(image_HWC, 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 training and 22 validation samples of 3 classes. Do not write into it."""
    return write_dataset(tmp_path_factory.mktemp("prepared") / "OUT")


@pytest.fixture
def configure(dataset: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """A configuration that takes a second or two; anything in it can be replaced."""

    def make(**options: Any) -> TrainConfig:
        defaults: dict[str, Any] = {
            "dataset": dataset,
            "run": tmp_path / "run",
            "model": "small_cnn",
            "image_size": PX,
            "batch_size": 16,
            "epochs": 2,
            "num_workers": 0,
            "crop_scale": (0.5, 1.0),
            "flip": False,  # mirrored stripes are another class's
            "tensorboard": False,
            "log_every": 1,
            "threads": 1,
            "deterministic": True,
        }
        return TrainConfig(**(defaults | options))

    return make
