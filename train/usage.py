"""CPU, memory and GPU of this rank and its workers over time: `profiling.machine.resources`'s series, read as rows.

CPU seconds for the efficiency are counted apart, exactly: a sampler misses what ended between two of its looks.
"""

import os
import resource
from contextlib import suppress
from typing import Any

import psutil

from feedline.profiling.machine.resources import ResourceSampler

PERIOD_S = 1.0
_OURS = {"cpu_cores": "cpu_cores", "rss_bytes": "memory_bytes"}
"""Series of our processes, summed over them, and what a row calls them."""


class Resources:
    """`with` it; a thread of its own that costs a few milliseconds per second."""

    def __init__(self) -> None:
        self._sampler = ResourceSampler(os.getpid(), period_s=PERIOD_S)
        self._me = psutil.Process()
        self._first_cpu_s = tree_cpu_s(self._me)
        self._told: dict[tuple[str, str], int] = {}

    def __enter__(self) -> "Resources":
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()

    def drain(self) -> list[dict[str, Any]]:
        """The rows since the last call: at_s, cpu_cores, memory_bytes, and gpu_… as the mean over the GPUs."""
        rows: dict[float, dict[str, list[float]]] = {}
        for series in self._sampler.series.all():
            key = (series.name, series.scope)
            known = min(len(series.t_s), len(series.values))  # the thread may be adding to them
            for at in range(self._told.get(key, 0), known):
                name, value = column(series.name, series.scope), series.values[at]
                if name and value is not None:
                    rows.setdefault(series.t_s[at], {}).setdefault(name, []).append(value)
            self._told[key] = known
        return [
            {"at_s": at_s} | {name: merged(name, row[name]) for name in row} for at_s, row in sorted(rows.items())
        ]

    def cpu_s(self) -> float:
        """CPU seconds of the process tree since this was made, ended children included."""
        return max(0.0, tree_cpu_s(self._me) - self._first_cpu_s)

    def peak_memory_bytes(self) -> int:
        """Resident, summed over the processes (pages they share count in each)."""
        sums: dict[float, float] = {}
        for series in self._sampler.series.all():
            if series.name == "rss_bytes":
                for at_s, value in zip(series.t_s, series.values, strict=False):
                    sums[at_s] = sums.get(at_s, 0.0) + (value or 0.0)
        return int(max(sums.values(), default=self._me.memory_info().rss))

    def gpus(self) -> list[dict[str, Any]]:
        """What each GPU averaged, as `feedline profile` has it; empty where there is none."""
        return [vars(gpu) for gpu in self._sampler.gpus]


def column(name: str, scope: str) -> str | None:
    """What a row calls a series; None for one it leaves out."""
    if scope.startswith("gpu:"):
        return f"gpu_{name}"
    return None if scope == "host" else _OURS.get(name)


def merged(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if name.startswith("gpu_") else sum(values)


def tree_cpu_s(me: psutil.Process) -> float:
    """User and system time of this process, its ended children, and all of its living descendants."""
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for child in me.children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
