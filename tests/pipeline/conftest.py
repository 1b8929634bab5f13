"""A tiny prepared split, written through the format's own writer."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.pipeline.base import files as atomic
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.pipeline.workers.dispatch import Workshop

MakeSplit = Callable[..., Path]


def write_split(
    folder: Path, samples: int, shard_count: int, *, px: int = 40, codec: str = "jpeg", classes: int = 0
) -> Path:
    """Sample n has label n (beyond `classes` that of the last), key `s0000n`, and a picture whose mean grey level is
    about 40 + n % 180."""
    folder.mkdir(parents=True)
    rows: list[shards.SampleRow] = []
    infos: list[shards.ShardInfo] = []
    for number, size in enumerate(shard_tar.balanced_sizes(samples, shard_count)):
        name = shard_tar.shard_name("train", number)
        with (folder / name).open("wb") as file, shard_tar.ShardWriter(file, number) as writer:
            for sample in range(len(rows), len(rows) + size):
                data, extension = _picture(sample, px, codec)
                writer.add(
                    f"s{sample:05d}",
                    data,
                    extension,
                    label=min(sample, (classes or samples) - 1),
                    width=px + 8 * (codec != "raw"),
                    height=px,
                )
        rows += writer.rows
        infos.append(
            shards.ShardInfo(name=name, samples=size, planned_samples=size, bytes=writer.bytes, sha256=writer.sha256)
        )
    atomic.write_atomically(folder / shards.INDEX, shards.index_bytes(rows))
    manifest = shards.Manifest(
        split="train",
        samples=samples,
        classes=[{"name": str(label)} for label in range(classes or samples)],
        shards=infos,
        settings={"codec": codec, "size_px": px, "resize": "shortest"},
        seed=0,
        plan_hash="0" * 64,
    )
    atomic.write_atomically(folder / shards.MANIFEST, manifest.to_json().encode())
    return folder


def _picture(sample: int, px: int, codec: str) -> tuple[bytes, str]:
    rng = np.random.default_rng(sample)
    width = px if codec == "raw" else px + 8
    image_HWC = np.clip(40 + sample % 180 + rng.normal(0, 8, (px, width, 3)), 0, 255).astype(np.uint8)
    form, image = CODECS[codec], Image.fromarray(image_HWC)
    if form.encode is not None:
        return form.encode(image, 95, "420"), form.extension
    kind = ("JPEG", "PNG", "JPEG", "JPEG")[
        sample % 4
    ]  # what sources have: one in two is nothing for the compiled kernel
    file = io.BytesIO()
    image.save(file, kind, progressive=sample % 4 == 2)
    return file.getvalue(), kind.lower()


@pytest.fixture
def make_split(tmp_path: Path) -> MakeSplit:
    def make(samples: int = 60, shard_count: int = 3, name: str = "train", **options: object) -> Path:
        return write_split(tmp_path / name, samples, shard_count, **options)  # type: ignore[arg-type]

    return make


POISON = 0xAB


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is full of poison when it is handed out to be filled: whoever still reads it reads that."""
    make = Workshop.__init__

    def made(workshop: Workshop, *arguments: Any, **options: Any) -> None:
        make(workshop, *arguments, **options)
        take = workshop.ledger.take

        def take_and_poison() -> int | None:
            number = take()
            if number is not None:
                slot = workshop.layout.slot(workshop.view, number)
                slot.images[:] = POISON
                slot.labels_N[:] = POISON
            return number

        monkeypatch.setattr(workshop.ledger, "take", take_and_poison)

    monkeypatch.setattr(Workshop, "__init__", made)


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples in 3 shards; tests that damage a dataset make their own."""
    return write_split(tmp_path_factory.mktemp("prepared") / "train", 60, 3)
