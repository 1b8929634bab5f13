"""What the workers' reads wait for: storage or nothing; how much of it they get, and what it gives by itself. Pure.

A read that finds its bytes in memory takes microseconds of CPU time; one that waits for storage is blocked. The
kernel counts what disks of this machine delivered (`/proc/PID/io`), not what other file systems did: there only the
blocked time tells. Where neither is clear, nothing is claimed.
"""

from dataclasses import dataclass
from typing import Literal

from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.workers import Workers
from feedline.profiling.record.loader_kinds import LoaderKind, loader_kind
from feedline.profiling.record.measurements import Reads
from feedline.profiling.record.recording import LoaderSeen, Recording

Source = Literal["memory", "storage"]
FROM_DISK, FROM_MEMORY = 0.5, 0.1
"""Shares of the bytes that disks delivered, from which and up to which it is clear where they came from."""
NOTABLE = 0.1  # share of the workers' busy time from which being blocked in reads counts
MOSTLY = 0.5  # share of the time in reads that must be blocked for storage to be what they wait for
ALIKE = 2.5  # times that reads tried afterwards may differ from those of the run, and still be of the same storage


@dataclass(frozen=True, kw_only=True)
class Storage:
    readers: int  # workers of all ranks; 1 where the training thread reads
    kind: LoaderKind  # of the loader
    leads: bool  # reading takes the workers longest
    blocked_s: float  # that a sample's reads keep a worker waiting
    read_s: float  # that they take altogether
    share: float  # of the workers' busy time, blocked in reads
    error: float  # absolute standard error of it
    sample_bytes: float | None  # asked for
    device: float | None  # of these, the share that disks of this machine delivered; None: not counted
    calls: float | None  # reads of a sample
    gives: Reads | None  # what the storage gave to reads alone, where that was told

    @property
    def source(self) -> Source | None:
        """Where the bytes came from; None where that is not clear."""
        least, most = (self.share + times * ERRORS_90 * self.error for times in (-1, 1))
        if (self.device or 0.0) >= FROM_DISK:
            return "storage"
        of_server = not self.leads and self.share > 0 and self._is_far_below_cold(self.blocked_s * most / self.share)
        if self.device is not None and self.device < FROM_MEMORY and (most < NOTABLE or of_server):
            return "memory"  # `of_server`: a file system that is asked for a file even where its bytes are here
        return "storage" if least >= NOTABLE else None

    @property
    def limits(self) -> bool:
        """It is what the workers wait for."""
        return self.leads and self.source == "storage" and self.blocked_s > MOSTLY * self.read_s

    @property
    def reads(self) -> Reads | None:
        """`gives`, where it fits to what this run's reads took."""
        fits = self.source != "storage" or self.kind.reads == "ahead" or self.one_by_one
        return self.gives if fits else None

    @property
    def one_by_one(self) -> bool:
        """The reads took about what they take by themselves with as many readers."""
        alone_s, device = self._waits_s(self.readers * self.share), self.device or 0.0
        waited_s = self.blocked_s / (device if device >= FROM_DISK else 1.0)  # for those that were not in memory
        return alone_s is not None and alone_s / ALIKE <= waited_s <= alone_s * max(ALIKE, self.most_waits)

    @property
    def most_waits(self) -> float:
        """How often a sample's reads may wait for storage, where the kernel looks no further ahead: for its file, and
        at each call."""
        return 1.0 + (self.calls or 0.0)

    @property
    def at_most(self) -> float | None:
        """samples/s that it gives at random places, to as many reads at once as it likes."""
        reads = self.reads
        return reads and reads.best_random_bytes_per_s / reads.piece_bytes

    @property
    def in_sequence(self) -> float | None:
        """samples/s of long files from their beginning to their end."""
        reads = self.reads
        return reads and reads.sequential_bytes_per_s and reads.sequential_bytes_per_s / reads.piece_bytes

    @property
    def cold_s(self) -> float | None:
        """That a sample's reads would keep each reader waiting where nothing is in memory. None too for long files
        that are read in an order which nobody knows."""
        long = self.gives is not None and self.gives.sequential_bytes_per_s is not None
        return None if long and self.kind.reads == "alone" else self._waits_s(self.readers)

    def blocked_with(self, readers: int) -> float:
        """`blocked_s` with more readers, none of whom waits less for it; as it is where nothing tells."""
        if self.source != "storage" or self.reads is None:
            return self.blocked_s
        if not self.one_by_one:  # they are read ahead: the storage is busy, whoever waits for it
            return self.blocked_s * readers / self.readers
        then_s, now_s = (self._waits_s(count * self.share) for count in (readers, self.readers))
        return self.blocked_s * max(1.0, then_s / now_s) if then_s and now_s else self.blocked_s

    def _is_far_below_cold(self, waited_s: float) -> bool:
        """Of readers who wait for each read by themselves."""
        return self.kind.reads == "alone" and waited_s < (self.cold_s or 0.0) / ALIKE

    def _waits_s(self, at_once: float) -> float | None:
        """For the reads of a sample, with so many at once, by what the storage gave to nothing else."""
        gives, at_once = self.gives, max(1.0, at_once)
        if gives is None or self.kind.reads != "in sequence":
            return gives and gives.read_s(at_once)
        rate = gives.sequential_bytes_per_s  # the readers share it
        return rate and at_once * gives.piece_bytes / rate


def measure_storage(recording: Recording, workers: Workers, loader: LoaderSeen | None) -> Storage:
    costs, gives = recording.costs, recording.reads
    read_s = workers.stage_alone_s.get("read", 0.0)
    blocked_s = max(0.0, read_s - workers.stage_cpu_s.get("read", 0.0))
    asked, from_disk = costs.read_bytes, costs.device_bytes
    whole = max(asked or 0.0, from_disk or 0.0)  # pages of mapped files are not asked for
    return Storage(
        readers=max(1, workers.count) * max(1, recording.compute.world_size),
        kind=loader_kind(loader.kind if loader else ""),
        leads=workers.top == "read",
        blocked_s=blocked_s,
        read_s=read_s,
        share=blocked_s / workers.alone_s if workers.alone_s else 0.0,
        error=workers.stage_errors.get("read", 0.0) / workers.busy if workers.stages and workers.busy else 0.0,
        sample_bytes=whole or None,
        device=None if from_disk is None or not whole else from_disk / whole,
        calls=costs.read_calls,
        gives=gives if gives is not None and gives.of_storage else None,
    )
