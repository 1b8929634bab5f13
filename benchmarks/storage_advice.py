"""What the storage under a prepared split means for training from it: what it gives, what of the split fits into
memory, and which order to read it in. For `doctor`, `plan` and `tune`, which print the same lines.

The loader never changes its order by a measurement, since two ranks might measure differently: an option does.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from feedline.benchmarks.measure.reads import SECONDS, in_memory, measure_reads, pieces_of_split
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.process import cgroup_memory_bytes
from feedline.pipeline.base.text import count_of
from feedline.pipeline.draw.shuffle_quality import ShuffleQuality, shuffle_quality
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.pipeline.rereading import window_fits
from feedline.profiling.record import units
from feedline.profiling.record.measurements import Reads

FASTER = 1.5
"""Times as fast as random reads that sequential ones must be before the order is worth changing."""
MOST_WINDOW = 32
"""Shards; what is mixed from more of them needs no more for a batch's mixture."""
LOOKED_AT = 256
BATCH = 256


@dataclass(frozen=True, kw_only=True)
class SplitStorage:
    split: str
    samples: int
    sample_bytes: float
    shards: int
    shard_bytes: float
    """The mean."""
    in_memory: float | None
    """Share of it that was in the page cache before; None: not told."""
    cache_bytes: int
    """What the page cache can hold at most, as memory and control group are now."""
    reads: Reads
    window_shards: int
    """To set; 0: full random order."""
    shuffle: ShuffleQuality
    """With that window, for a batch of BATCH."""

    @property
    def bytes(self) -> float:
        return self.shards * self.shard_bytes

    @property
    def fits(self) -> bool:
        return self.bytes <= self.cache_bytes

    @property
    def window_fits(self) -> int:
        return window_fits(self.shards, self.shard_bytes, self.cache_bytes)

    def samples_per_s(self, bytes_per_s: float) -> float:
        return bytes_per_s / self.sample_bytes

    def record(self) -> dict[str, Any]:
        found = {**asdict(self), "shuffle": self.shuffle._asdict(), "window_fits": self.window_fits}
        return {**found, "next_epoch_in_memory": found_again(self.cache_bytes / self.bytes), "lines": [*self.lines()]}

    def lines(self) -> Iterator[tuple[str, str]]:
        """(name, words)."""
        reads, cached = self.reads, ""
        if self.in_memory is not None:
            cached = f", {units.percent(self.in_memory)} in memory"
        what = f"{count_of(self.samples, 'sample')} of {units.size(self.sample_bytes)}"
        yield "dataset", f"{self.split}: {what} in {count_of(self.shards, 'shard')}{cached}"
        best, alone = reads.best_random_bytes_per_s, reads.random_bytes_per_s[0]
        doubt = "" if reads.of_storage else " (perhaps from memory: the storage may be slower)"
        one_by_one = f"{_rate(alone)} one by one, median {units.seconds(reads.latency_s)}"
        rate = units.rate(self.samples_per_s(best))
        yield "random reads", f"{one_by_one}; {_rate(best)} with {reads.enough_at_once} at once: {rate}{doubt}"
        if (sequential := reads.sequential_bytes_per_s) is not None:
            rate = units.rate(sequential / (self.bytes / self.samples))
            yield "sequential reads", f"{_rate(sequential)}: {rate}{doubt}"
        yield "order", self._order()
        yield "page cache", self._page_cache()

    @property
    def plan_options(self) -> str:
        """Of `feedline plan`."""
        reads, sequential = self.reads, self.reads.sequential_bytes_per_s
        given = {"bandwidth": sequential, "random-bandwidth": reads.best_random_bytes_per_s}
        rates = [f"--{name} {rate / 1e6:.2f}MB/s" for name, rate in given.items() if rate is not None]
        return " ".join([*rates, f"--latency-ms {1e3 * reads.latency_s:.3g}"])

    def _order(self) -> str:
        if not self.window_shards:
            why = "shards in sequence would not come notably faster"
            if self.reads.sequential_bytes_per_s is None:
                why = "its files are too short for sequential reads to be told"
            elif self.window_fits < 1 and is_faster_in_sequence(self.reads):
                why = "not even a window of one shard fits into memory: prepare smaller shards (--shard-size)"
            return f"full random order (window_shards=0, the default on disks): {why}"
        classes, at_random, again = map(units.number, self.shuffle)
        return (
            f"window_shards={self.window_shards} reads shards in sequence; a batch of {BATCH} then has {classes} "
            f"classes instead of {at_random}, and two of its samples share the next epoch's {again} times as often"
        )

    def _page_cache(self) -> str:
        size, room = units.size(self.bytes), units.size(self.cache_bytes)
        if self.fits:
            return f"{size} fit into the {room} that memory has for them: later epochs need not wait for storage"
        again = units.percent(found_again(self.cache_bytes / self.bytes))
        return (
            f"{size} do not fit into the {room} that memory has for them: a later epoch finds about {again} of its "
            f"samples there, in any order; windows of up to {count_of(self.window_fits, 'shard')} stay while mixed"
        )


def storage_of(split: Path, seconds: float = SECONDS) -> SplitStorage:
    """Takes that long, and reading the index. Raises DatasetError."""
    manifest = read_manifest(split)
    index = read_index(split, manifest)
    pieces = pieces_of_split(split, index, manifest.shard_names)
    cached = in_memory(pieces[:LOOKED_AT])
    reads = measure_reads(pieces, seconds)
    if reads is None:
        raise DatasetError(f"{split} holds no samples to read")
    shards = len(manifest.shards)
    shard_bytes = sum(shard.bytes for shard in manifest.shards) / shards
    room = cache_bytes()
    window = advised_window(reads, shards, shard_bytes, room)
    return SplitStorage(
        split=str(split),
        samples=manifest.samples,
        sample_bytes=float(index.lengths_N.mean()),
        shards=shards,
        shard_bytes=shard_bytes,
        in_memory=cached,
        cache_bytes=room,
        reads=reads,
        window_shards=window,
        shuffle=shuffle_quality(index.labels_N, index.shards_N, window_shards=window, batch_size=BATCH),
    )


def advised_window(reads: Reads, shards: int, shard_bytes: float, room_bytes: float) -> int:
    """Shards to mix at a time where random reads are slow, as many as fit; 0 where full random order is as good."""
    return min(window_fits(shards, shard_bytes, room_bytes), MOST_WINDOW) if is_faster_in_sequence(reads) else 0


def is_faster_in_sequence(reads: Reads) -> bool:
    """Notably, where that was told."""
    sequential = reads.sequential_bytes_per_s
    return sequential is not None and sequential >= FASTER * reads.best_random_bytes_per_s


def found_again(share: float) -> float:
    """Of an epoch's samples, those that are still in a cache for this share of the dataset, which forgets what was
    used longest ago: c + (1 − c) ln(1 − c).

    A sample at p of an epoch (0 to 1) and p' of the next is behind (1 − p) + p p' others, both orders being random:
    found where that is at most c, so for p' up to 1 − (1 − c) / p. Over p from 1 − c to 1 that is the sum above."""
    return 1.0 if share >= 1.0 else share + (1.0 - share) * math.log1p(-share)


def cache_bytes() -> int:
    """What of the memory that is free, or would be, may hold files."""
    return min(psutil.virtual_memory().available, cgroup_memory_bytes() or 1 << 62)


def _rate(bytes_per_s: float) -> str:
    return f"{units.size(bytes_per_s)}/s"
