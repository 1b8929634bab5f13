"""CPU, memory and GPU of this rank and its workers over time: `profiling.machine.resources`'s series, read as rows.

CPU seconds for the efficiency are counted apart, exactly: a sampler misses what ended between two of its looks.
"""

import os
import resource
from collections import defaultdict
from contextlib import suppress
from typing import Any

import psutil

from feedline.profiling.machine.resources import ResourceSampler

PERIOD_S = 1.0
_OURS = {"cpu_cores": "cpu_cores", "rss_bytes": "memory_bytes"}
"""Series of our processes, summed over them, and what a row calls them."""


class Resources(ResourceSampler):
    """`with` it; a thread of its own that costs a few milliseconds per second."""

    def __init__(self) -> None:
        super().__init__(os.getpid(), period_s=PERIOD_S)
        self._first_cpu_s = tree_cpu_s()
        self._drained: dict[tuple[str, str], int] = {}
        """How much of each series has been in a row."""

    def __enter__(self) -> "Resources":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def drain(self) -> list[dict[str, Any]]:
        """The rows since the last call: at_s, cpu_cores, memory_bytes, and gpu_… as the mean over the GPUs."""
        rows: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for series in self.recorded:
            on_gpu = series.scope.startswith("gpu:")
            name = f"gpu_{series.name}" if on_gpu else _OURS.get(series.name)
            if name is None or series.scope == "host":
                continue
            key = (series.name, series.scope)
            known = min(len(series.t_s), len(series.values))  # the thread may be adding to them
            for at in range(self._drained.get(key, 0), known):
                if (value := series.values[at]) is not None:
                    rows[series.t_s[at]][name].append(value)
            self._drained[key] = known
        return [
            {"at_s": at_s}
            | {name: sum(row[name]) / (len(row[name]) if name.startswith("gpu_") else 1) for name in row}
            for at_s, row in sorted(rows.items())
        ]

    def tree_cpu_s(self) -> float:
        """CPU seconds of the process tree since this was made, ended children included."""
        return max(0.0, tree_cpu_s() - self._first_cpu_s)

    def peak_memory_bytes(self) -> int:
        """Resident, summed over the processes (pages they share count in each)."""
        sums: dict[float, float] = defaultdict(float)
        for series in self.recorded:
            if series.name == "rss_bytes":
                for at_s, value in zip(series.t_s, series.values, strict=False):
                    sums[at_s] += value or 0.0
        return int(max(sums.values(), default=psutil.Process().memory_info().rss))


def tree_cpu_s() -> float:
    """User and system time of this process, its ended children, and all of its living descendants."""
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:4])
    return total
