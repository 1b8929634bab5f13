"""Loaders that count by themselves where their workers' time goes: rows of their counters' differences.

Any loader with a `stats()` that returns {"workers": [{pid, samples, batches, seconds {stage: s}}]} is asked, such as
feedline's own; its workers need no sampler. Nothing of the loader is imported here.
"""

import os
import time
from typing import Any

from feedline.pipeline.base.process import cpu_seconds
from feedline.profiling.record.journal import Journal
from feedline.profiling.record.rows import TimeRow


class LoaderStats:
    """One loader's workers, row by row, in the journal files that sampled workers use."""

    def __init__(self, loader: Any, number: int, rank: int) -> None:
        self._loader = loader
        self._number = number
        self._rank = rank
        self._before: dict[int, dict[str, Any]] = {}
        self._cpu_s: dict[int, float] = {}
        self._asked = time.perf_counter()

    @staticmethod
    def has_any(loader: Any) -> bool:
        return callable(getattr(loader, "stats", None)) and hasattr(loader, "worker_pids")

    def write(self, journal: Journal) -> None:
        """Write what every worker did since the last time. Never raises."""
        try:
            workers = self._loader.stats()["workers"]
        except Exception:  # it is another's code in the script's process
            return
        then, self._asked = self._asked, time.perf_counter()
        for worker, told in enumerate(workers):
            row = self._row(told, then)
            if told.get("pid") in (None, 0, os.getpid()):
                journal.append(f"loading-{os.getpid()}-{self._number}", [row])
            else:
                self._say(journal, worker, told["pid"], row)

    def _row(self, told: dict[str, Any], then: float) -> TimeRow:
        """Every second counts as a hundred looks, for its error is the clock's."""
        pid = told.get("pid") or 0
        before = self._before.get(pid, {"seconds": {}, "batches": 0, "samples": 0})
        self._before[pid] = told
        stages = {name: value - before["seconds"].get(name, 0.0) for name, value in told["seconds"].items()}
        batches, samples = told["batches"] - before["batches"], told["samples"] - before["samples"]
        cpu_s = cpu_seconds(pid)
        used_s = max(0.0, cpu_s - self._cpu_s.get(pid, 0.0))
        self._cpu_s[pid] = cpu_s
        looks = round(100 * sum(stages.values()))
        return TimeRow(then, self._asked, stages, {}, {}, {}, batches, samples, used_s, looks)

    def _say(self, journal: Journal, worker: int, pid: int, row: TimeRow) -> None:
        name = f"worker-{pid}"
        if not (journal.folder / f"{name}.json").exists():
            about = {"pid": pid, "worker": worker, "loader": self._number, "rank": self._rank}
            journal.write(name, {**about, "created": time.time(), "ended": True, "paths": []})
        journal.append(name, [row])
