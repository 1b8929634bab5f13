"""Filling a slot in runs: what one sample after the other gives, whatever comes in the middle of a batch."""

import shutil
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feedline.pipeline.base.errors import SampleError, TransformError
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.order import PADDING
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format.manifest import read_index
from feedline.pipeline.format.shard_tar import shard_name
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.split import PreparedSplit
from feedline.pipeline.workers import fill, ship
from feedline.pipeline.workers.counters import FIELD, ROW_BYTES, Clock
from feedline.pipeline.workers.fill import FillSpec, GivenUp, PixelFiller
from feedline.pipeline.workers.memory import shared_columns

pytestmark = pytest.mark.usefixtures("kernel")
MakeSplit = Callable[..., Path]
PX = 24
OPEN: list[PixelFiller] = []
Outcome = tuple[npt.NDArray[np.uint8], list[int], Any]
"""Images, labels, and what was bad; or what was raised in its place."""


@pytest.fixture(autouse=True, params=[4_000, 1 << 18], ids=["short runs", "long runs"])
def run_bytes(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "_RUN_BYTES", request.param)


@pytest.fixture(autouse=True)
def closed() -> Generator[None]:
    """A filler keeps its shards open for as long as its process lives."""
    yield
    while OPEN:
        OPEN.pop()._files.close()


def make_filler(folder: Path, augment: Augment | None = None, **spec: Any) -> PixelFiller:
    split = PreparedSplit(folder, LoaderConfig())
    settings: dict[str, Any] = {"on_bad": "raise", "checksums": True} | spec
    said = FillSpec(
        folder=str(folder), shards=split.manifest.shard_names, codec=split.manifest.codec, seed=3,
        augment=asdict(augment or Augment()), **settings,
    )  # fmt: skip
    columns = {name: column.copy() for name, column in shared_columns(split.memory.view, split.layout).items()}
    OPEN.append(PixelFiller(said, columns, Clock(np.zeros(ROW_BYTES // 8, np.int64))))
    return OPEN[-1]


def filled(filler: PixelFiller, samples: list[int], epoch: int = 0) -> Outcome:
    images, labels_N = np.zeros(len(samples) * PX * PX * 3, np.uint8), np.zeros(len(samples), np.int64)
    try:
        count, size_bytes, bad = filler.fill(np.array(samples), epoch, PX, images, labels_N)
    except SampleError as error:
        return np.empty(0, np.uint8), [], (error.sample, error.reason)
    assert size_bytes == count * PX * PX * 3
    return images[:size_bytes].reshape(count, PX, PX, 3), labels_N[:count].tolist(), bad


def one_by_one(filler: PixelFiller, samples: list[int], epoch: int = 0) -> Outcome:
    """Each sample alone, as where nothing is filled together."""
    images, labels_N = np.zeros((len(samples), PX, PX, 3), np.uint8), np.zeros(len(samples), np.int64)
    bad: Any = []
    try:
        count = filler.one_by_one(
            np.array(samples), labels_N, lambda one, place: filler._decode(one, epoch, images[place]), bad
        )
    except SampleError as error:
        return np.empty(0, np.uint8), [], (error.sample, error.reason)
    return images[:count], labels_N[:count].tolist(), bad


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one[1:] == other[1:]
    assert np.array_equal(one[0], other[0])


@pytest.mark.parametrize("codec", ["jpeg", "raw", "planes", "keep"])
@pytest.mark.parametrize("augment", [Augment(), Augment(train=False)], ids=["train", "eval"])
def test_runs_give_what_each_sample_alone_gives(make_split: MakeSplit, codec: str, augment: Augment) -> None:
    folder = make_split(codec=codec)
    samples = [*range(7, 40), 3, 3, PADDING, 12, PADDING]
    filler = make_filler(folder, augment)
    runs = filled(filler, samples, epoch=5)
    assert_same(runs, one_by_one(filler, samples, epoch=5))
    alone = SampleKernel(codec, augment, 3)
    for sample, image_HWC in zip(samples, runs[0], strict=True):
        out_HWC = np.zeros((PX, PX, 3), np.uint8)
        if sample != PADDING:
            alone(filler.read(sample), out_HWC, sample, 5, filler.clock)
        assert np.array_equal(image_HWC, out_HWC)
    assert runs[1] == samples, "the tiny split's labels"


HOSTILE = ([0], [9], [19], [4, 5], [4, 6], [0, 1, 2, 17, 18, 19])


def spoil(folder: Path, sample: int, where: str) -> None:
    """Six of its bytes become zeroes."""
    index = read_index(folder)
    at = {"start": 0, "middle": 200, "end": int(index.lengths_N[sample]) - 6}[where]
    with (folder / shard_name("train", int(index.shards_N[sample]))).open("r+b") as file:
        file.seek(int(index.offsets_N[sample]) + at)
        file.write(bytes(6))


@pytest.mark.parametrize("on_bad", ["raise", "skip", "replace"])
@pytest.mark.parametrize(
    ("where", "checksums"), [("middle", True), ("start", False), ("end", False)],
    ids=["wrong CRC", "no JPEG", "cut short"],
)  # fmt: skip
def test_hostile_samples_amid_a_batch_are_what_they_are_alone(
    split: Path, tmp_path: Path, on_bad: str, where: str, checksums: bool
) -> None:
    for number, hostile in enumerate(HOSTILE):
        folder = shutil.copytree(split, tmp_path / str(number))
        for sample in hostile:
            spoil(folder, sample, where)
        for samples in (list(range(20)), [6, 4, 5, 5, 6, 6, PADDING, 4, 19, 0, 7, 8]):
            expected = one_by_one(make_filler(folder, on_bad=on_bad, checksums=checksums), samples)
            assert bool(expected[2]) == bool(set(hostile) & set(samples))
            assert_same(filled(make_filler(folder, on_bad=on_bad, checksums=checksums), samples), expected)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_raw_sample_whose_header_is_damaged_is_bad_in_each_epoch(make_split: MakeSplit, checksums: bool) -> None:
    """Pixels are copied without their header once that was seen to be right."""
    folder = make_split(codec="raw", px=PX)
    spoil(folder, 4, "start")
    filler = make_filler(folder, Augment(train=False), on_bad="skip", checksums=checksums, stored_px=PX)
    for epoch in range(2):
        _, labels_N, bad = filled(filler, [3, 4, 5], epoch)
        assert (labels_N, [sample for sample, *_ in bad]) == ([3, 5], [4])


def test_a_shard_that_is_gone_costs_its_own_samples_only(split: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(split, tmp_path / "copy")
    (folder / "train-000001.tar").unlink()
    samples = list(range(15, 45))
    outcome = filled(make_filler(folder, on_bad="skip"), samples)
    assert outcome[1] == [*range(15, 20), *range(40, 45)]
    assert_same(outcome, one_by_one(make_filler(folder, on_bad="skip"), samples))


def test_a_batch_that_is_not_wanted_any_more_is_left(split: Path) -> None:
    filler = make_filler(split)
    asked: list[int] = []

    def wanted() -> bool:
        asked.append(0)
        return len(asked) < 10

    filler.wanted = wanted
    with pytest.raises(GivenUp):
        filled(filler, list(range(30)))
    assert len(asked) == 10


def test_each_sample_has_its_own_transform_after_it_is_filled(make_split: MakeSplit) -> None:
    def shade(image_HWC: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
        return image_HWC // 2 + rng.integers(50, dtype=np.uint8)

    folder = make_split(codec="keep")
    filler = make_filler(folder, transform=ship.pack(shade))
    samples = [*range(20, 0, -1), PADDING]
    assert_same(filled(filler, samples), one_by_one(filler, samples))


def test_a_transform_that_raises_names_the_first_sample_it_raised_for(split: Path, tmp_path: Path) -> None:
    def refuse(image_HWC: npt.NDArray[Any]) -> npt.NDArray[Any]:
        raise RuntimeError("no such colour")

    folder = shutil.copytree(split, tmp_path / "copy")
    spoil(folder, 4, "middle")
    with pytest.raises(TransformError, match="no such colour") as caught:
        filled(make_filler(folder, transform=ship.pack(refuse)), [3, 4, 5])
    assert caught.value.sample == 3


def test_stages_are_clocked_and_bytes_counted(split: Path) -> None:
    filler = make_filler(split)
    filled(filler, list(range(16)))
    row = filler.clock.row
    assert all(row[FIELD[stage]] > 0 for stage in ("read", "decode", "transform", "collate"))
    lengths_N = filler._where[2]
    assert row[FIELD["bytes_read"]] == sum(lengths_N[sample] for sample in range(16))
