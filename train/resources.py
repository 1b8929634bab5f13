"""CPU and memory of this process and all it started, once a second, for the run's plots and its final summary."""

import os
import resource
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True)
class ResourceSample:
    at_s: float
    """Since the sampler started."""
    cpu_cores: float
    """Cores' worth of CPU time per second since the last sample."""
    memory_bytes: int
    """Resident memory of the process tree; pages that processes share are counted once each."""


class ResourceSampler:
    """`with` it; a thread of its own that costs about a millisecond per second."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._samples: list[ResourceSample] = []
        self._taken = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resources", daemon=True)
        self._me = psutil.Process(os.getpid())
        self._started_s = time.monotonic()
        self._first_cpu_s = tree_cpu_s(self._me)

    def __enter__(self) -> "ResourceSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def samples(self) -> list[ResourceSample]:
        return list(self._samples)

    def drain(self) -> list[ResourceSample]:
        """The samples since the last call."""
        fresh = self._samples[self._taken :]
        self._taken += len(fresh)
        return fresh

    def cpu_s(self) -> float:
        """CPU seconds of the process tree since the sampler was made, ended children included."""
        return max(0.0, tree_cpu_s(self._me) - self._first_cpu_s)

    def wall_s(self) -> float:
        return time.monotonic() - self._started_s

    def peak_memory_bytes(self) -> int:
        return max((sample.memory_bytes for sample in self._samples), default=tree_memory_bytes(self._me))

    def _watch(self) -> None:
        last_s, last_cpu_s = time.monotonic(), self._first_cpu_s
        while not self._stop.wait(self._every_s):
            now_s, cpu_s = time.monotonic(), tree_cpu_s(self._me)
            self._samples.append(
                ResourceSample(
                    at_s=round(now_s - self._started_s, 3),
                    cpu_cores=round(max(0.0, cpu_s - last_cpu_s) / (now_s - last_s), 3),
                    memory_bytes=tree_memory_bytes(self._me),
                )
            )
            last_s, last_cpu_s = now_s, cpu_s


def tree_cpu_s(me: psutil.Process) -> float:
    """User and system time of this process, its ended children, and all of its living descendants."""
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for child in me.children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree_memory_bytes(me: psutil.Process) -> int:
    total = 0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total
