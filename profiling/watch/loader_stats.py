"""Loaders that count by themselves where their workers' time goes: rows of their counters' differences.

Any loader with a `stats()` that returns {"workers": [{pid, samples, batches, seconds {stage: s}}]} is asked, such as
feedline's own (and, for what storage gives, of which folder's shards: "split"); its workers need no sampler. Nothing
of the loader is imported here.
"""

import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

from feedline.pipeline.base.process import cpu_seconds
from feedline.profiling.record.journal import Journal, TimeRow
from feedline.profiling.watch.data_files import MOST_PATHS
from feedline.profiling.watch.evidence import run_queue_delay_s
from feedline.profiling.watch.sampler import WORKER_HZ

NOTHING: dict[str, Any] = {"seconds": {}, "batches": 0, "samples": 0, "cpu_s": 0.0}


class LoaderStats:
    """One loader's workers, row by row, in the journal files that sampled workers use."""

    def __init__(self, loader: Any, number: int, rank: int) -> None:
        self._loader = loader
        self._about = {"loader": number, "rank": rank, "ended": True, "paths": []}
        self._before: dict[int, dict[str, Any]] = {}
        self._asked = time.perf_counter()

    def write(self, journal: Journal) -> None:
        """Write what every worker did since the last time. Never raises."""
        try:
            stats = self._loader.stats()
            workers = stats["workers"]
            if not self._before and isinstance(split := stats.get("split"), str) and split:
                shards = Path(split).glob("*.tar")  # which its workers read, unwatched
                self._about["paths"] = [str(path) for path in islice(shards, MOST_PATHS)]
        except Exception:  # it is another's code in the script's process
            return
        then, self._asked = self._asked, time.perf_counter()
        for worker, counted in enumerate(workers):
            pid = counted.get("pid") or 0
            name = f"worker-{pid}"
            if pid in (0, os.getpid()):
                name = f"loading-{os.getpid()}-{self._about['loader']}"
            elif not journal.has(name):
                journal.write(name, {**self._about, "pid": pid, "worker": worker, "created": time.time()})
            journal.append(name, [self._row(pid, counted, then)])

    def _row(self, pid: int, counted: dict[str, Any], then: float) -> TimeRow:
        """Every second counts as so many looks as a sampler has, though its error is only the clock's."""
        now: dict[str, Any] = {**counted, "cpu_s": cpu_seconds(pid), "delay_s": run_queue_delay_s(pid)}
        before = self._before.get(pid, NOTHING)
        self._before[pid] = now
        stages = {name: value - before["seconds"].get(name, 0.0) for name, value in now["seconds"].items()}
        batches, samples = now["batches"] - before["batches"], now["samples"] - before["samples"]
        used_s, looks = max(0.0, now["cpu_s"] - before["cpu_s"]), round(WORKER_HZ * sum(stages.values()))
        delays = None
        if now["delay_s"] is not None and before.get("delay_s") is not None:  # of whatever it was doing
            busy_s = sum(stages.values()) - stages.get("idle", 0.0)
            share = (now["delay_s"] - before["delay_s"]) / busy_s if busy_s > 0 else 0.0
            delays = {name: min(1.0, share) * seconds for name, seconds in stages.items() if name != "idle"}
        return TimeRow(then, self._asked, stages, {}, {}, {}, batches, samples, used_s, looks, delays)
