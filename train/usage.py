"""CPU, memory and GPU of this rank and its workers over time: `profiling.machine.resources`'s series, read as rows.

CPU seconds for the efficiency are counted apart, by the kernel: a sampler misses what ended between two of its looks.
"""

import os
from collections import defaultdict
from typing import Any

import psutil

from feedline.pipeline.base.process import children_cpu_seconds, cpu_seconds
from feedline.profiling.machine.resources import ResourceSampler

PERIOD_S = 1.0
OURS = {"cpu_cores": "cpu_cores", "rss_bytes": "memory_bytes"}
"""Series of our processes, summed over them, and what a row calls them."""


class Resources(ResourceSampler):
    """A thread of its own that costs a few milliseconds per second."""

    def __init__(self, gpu: str = "") -> None:
        """`gpu`: the UUID of this rank's."""
        super().__init__(os.getpid(), period_s=PERIOD_S, gpu=gpu)
        self._first_cpu_s = cpu_seconds() + children_cpu_seconds()
        self.peak_memory_bytes: float = psutil.Process().memory_info().rss
        """Resident, summed over the processes (pages they share count in each), of the rows so far."""

    def drain(self) -> list[dict[str, Any]]:
        """The rows since the last call: at_s, cpu_cores, memory_bytes, and gpu_… of this rank's GPU."""
        with self._adding:
            recorded, self._series = self.recorded, {}
        rows: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for series in recorded:
            name = f"gpu_{series.name}" if series.scope.startswith("gpu:") else OURS.get(series.name)
            if name is not None and series.scope != "host":
                for at_s, value in zip(series.t_s, series.values, strict=True):
                    if value is not None:
                        rows[at_s][name].append(value)
        told = [
            {"at_s": at_s}
            | {name: sum(row[name]) / (len(row[name]) if name.startswith("gpu_") else 1) for name in row}
            for at_s, row in sorted(rows.items())
        ]
        self.peak_memory_bytes = max(self.peak_memory_bytes, *(row.get("memory_bytes", 0.0) for row in told), 0.0)
        return told

    def tree_cpu_s(self) -> float:
        """CPU seconds of the process tree since this was made, ended children included."""
        return max(0.0, cpu_seconds() + children_cpu_seconds() - self._first_cpu_s)
