"""What a split's storage means: the order to set, what fits into memory, and what an LRU cache keeps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feedline.benchmarks import storage_advice
from feedline.benchmarks.storage_advice import SplitStorage, advised_window, found_again, storage_of
from feedline.cli.plan import parse_rate
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.draw.shuffle_quality import ShuffleQuality
from feedline.profiling.record.measurements import Reads
from tests.lab import tiny_split

DISK = Reads(piece_bytes=30e3, at_once=[1, 4, 16, 64], random_bytes_per_s=[3e6, 4e6, 5e6, 5e6], latency_s=0.01,
             sequential_bytes_per_s=150e6, cold=1.0)  # fmt: skip
GIB = 1 << 30


SLOW = SplitStorage(
    split="OUT/train", samples=2_000_000, sample_bytes=32e3, shards=1000, shard_bytes=64e6, in_memory=0.031,
    cache_bytes=8 * GIB, reads=DISK, window_shards=8, shuffle=ShuffleQuality(220.0, 227.0, 20.0),
)  # fmt: skip
"""A split of 64 GB in shards of 64 MB, on a spinning disk."""


def words(**changes: object) -> dict[str, str]:
    return dict(replace(SLOW, **changes).lines())


def test_the_option_to_set_is_named_with_what_it_costs() -> None:
    told = words()
    assert "2,000,000 samples of 32 kB in 1,000 shards, 3.1 % in memory" in told["dataset"]
    assert "3 MB/s one by one, median 10 ms; 5 MB/s with 16 at once: 156 samples/s" in told["random reads"]
    assert told["sequential reads"].startswith("150 MB/s")
    assert "window_shards=8" in told["order"] and "220 classes instead of 227" in told["order"]
    assert "window_shards=0" in words(window_shards=0)["order"]
    assert "too short" in words(window_shards=0, reads=replace(DISK, sequential_bytes_per_s=None))["order"]
    assert "smaller shards" in words(window_shards=0, cache_bytes=32e6)["order"]
    assert "perhaps from memory" in words(reads=replace(DISK, cold=0.4))["random reads"]


def test_a_page_cache_that_is_too_small_is_told_with_the_window_that_fits() -> None:
    assert "do not fit" in words()["page cache"] and "windows of up to 33 shards" in words()["page cache"]
    assert "later epochs need not wait" in words(cache_bytes=100 * GIB)["page cache"]


@pytest.mark.parametrize(
    ("sequential", "room", "window"),
    [(150e6, 64 * GIB, 32), (150e6, 8 * GIB, 32), (150e6, 1 * GIB, 4), (150e6, 0, 0), (6e6, GIB, 0), (None, GIB, 0)],
)
def test_windows_are_for_storage_that_hates_random_reads(sequential: float | None, room: int, window: int) -> None:
    reads = replace(DISK, sequential_bytes_per_s=sequential)
    assert advised_window(reads, 1000, 64e6, room) == window
    assert advised_window(reads, 3, 64e6, room) == min(window, 3)


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.8])
def test_what_is_found_again_is_what_an_lru_cache_keeps(share: float) -> None:
    samples, rng = 3000, np.random.default_rng(0)
    cache, hits = dict[int, None](), 0
    for epoch in range(3):
        for sample in rng.permutation(samples).tolist():
            hits += epoch > 0 and sample in cache
            cache.pop(sample, None)
            cache[sample] = None
            if len(cache) > share * samples:
                del cache[next(iter(cache))]
    assert found_again(share) == pytest.approx(hits / 2 / samples, abs=0.02)
    assert found_again(1.0) == found_again(7.0) == 1.0 and found_again(0.0) == 0.0


def test_a_split_is_measured_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_split.write(tmp_path / "train", 48, 3)
    found = storage_of(tmp_path / "train", seconds=0.05)
    record = json.loads(json.dumps(found.record()))
    assert record["samples"] == 48 and record["shards"] == 3 and record["next_epoch_in_memory"] == 1.0
    assert [name for name, _ in record["lines"]][:2] == ["dataset", "random reads"]
    assert record["shuffle"]["classes"] == record["shuffle"]["classes_at_random"]
    monkeypatch.setattr(storage_advice, "cache_bytes", lambda: 10_000)
    assert storage_of(tmp_path / "train", seconds=0.05).record()["next_epoch_in_memory"] < 1.0


def test_a_damaged_split_is_one_line(tmp_path: Path) -> None:
    tiny_split.write(tmp_path / "train", 48, 3)
    (tmp_path / "train" / "train-000001.tar").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"train-000001\.tar is cut short"):
        storage_of(tmp_path / "train", seconds=0.05)


@pytest.mark.parametrize("bytes_per_s", [4.2e5, 150e6, 1.234e9, 3.5e9, 42e9])
def test_plan_takes_the_options_that_are_printed_for_it(bytes_per_s: float) -> None:
    storage = replace(SLOW, reads=replace(DISK, sequential_bytes_per_s=bytes_per_s))
    rate = storage.plan_options.partition("--bandwidth ")[2].split()[0]
    assert parse_rate(rate) == pytest.approx(bytes_per_s, rel=0.03)


def test_nobody_is_told_to_prepare_smaller_shards_for_a_window_that_is_not_wanted() -> None:
    fast = replace(DISK, random_bytes_per_s=[140e6] * 4)
    assert "would not come notably faster" in words(window_shards=0, cache_bytes=32e6, reads=fast)["order"]
