"""Loaders that count by themselves where their workers' time goes: rows of their counters' differences.

Any loader with a `stats()` that returns {"workers": [{worker, pid, samples, batches, seconds {stage: s}}]} is asked,
such as feedline's own (and, for what storage gives, of which folder's shards: "split"); its workers need no sampler.
A worker's counters go on when another process takes its number. Nothing of the loader is imported here.
"""

import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

from feedline.pipeline.base.process import cpu_seconds
from feedline.profiling.record.journal import MOST_PATHS, Journal, TimeRow
from feedline.profiling.watch.evidence import run_queue_delay_s
from feedline.profiling.watch.sampler import WORKER_HZ

NOTHING: dict[str, Any] = {"pid": 0, "seconds": {}, "batches": 0, "samples": 0}


class LoaderStats:
    """One loader's workers, row by row, in the journal files that sampled workers use."""

    def __init__(self, loader: Any, number: int, rank: int) -> None:
        self._loader = loader
        self._about: dict[str, Any] = {"loader": number, "rank": rank, "ended": True, "paths": None}
        self._about["trainer"] = os.getpid()
        self._before: dict[int, dict[str, Any]] = {}  # by the worker's number
        self._split: str | None = None
        self._asked = time.perf_counter()
        self._rows()  # what they did before is nobody's

    def write(self, journal: Journal) -> None:
        """Write what every worker did since the last time. Never raises."""
        rows = self._rows()
        if self._about["paths"] is None:
            shards = Path(self._split).glob("*.tar") if self._split else ()  # which its workers read, unwatched
            self._about["paths"] = [str(path) for path in islice(shards, MOST_PATHS)]
        for worker, pid, row in rows:
            name = f"worker-{pid}"
            if pid == os.getpid():
                name = f"loading-{pid}-{self._about['loader']}"
            elif not journal.has(name):
                journal.write(name, {**self._about, "pid": pid, "worker": worker})
            journal.append(name, [row])

    def _rows(self) -> list[tuple[int, int, TimeRow]]:
        """(worker, pid, row) of every worker that has a process."""
        try:
            stats = self._loader.stats()
            workers = [{"worker": place, **counted} for place, counted in enumerate(stats["workers"])]
            self._split = split if isinstance(split := stats.get("split"), str) else None
            then, self._asked = self._asked, time.perf_counter()
            return [(one["worker"], one["pid"], self._row(one, then)) for one in workers if one.get("pid")]
        except Exception:  # it is another's code in the script's process
            return []

    def _row(self, counted: dict[str, Any], then: float) -> TimeRow:
        """Every second counts as so many looks as a sampler has, though its error is only the clock's."""
        pid, before = counted["pid"], self._before.get(counted["worker"], NOTHING)
        now: dict[str, Any] = {**counted, "cpu_s": 0.0, "delay_s": None}
        if pid != os.getpid():  # whose clocks are of all that the trainer does
            now |= {"cpu_s": cpu_seconds(pid), "delay_s": run_queue_delay_s(pid)}
        clocks = before if before["pid"] == pid else {"cpu_s": 0.0, "delay_s": None}
        self._before[counted["worker"]] = now
        stages = {name: value - before["seconds"].get(name, 0.0) for name, value in now["seconds"].items()}
        batches, samples = now["batches"] - before["batches"], now["samples"] - before["samples"]
        used_s, looks = max(0.0, now["cpu_s"] - clocks["cpu_s"]), round(WORKER_HZ * sum(stages.values()))
        delays = None
        if now["delay_s"] is not None and clocks["delay_s"] is not None:  # of whatever it was doing
            busy_s = sum(stages.values()) - stages.get("idle", 0.0)
            share = (now["delay_s"] - clocks["delay_s"]) / busy_s if busy_s > 0 else 0.0
            delays = {name: min(1.0, share) * seconds for name, seconds in stages.items() if name != "idle"}
        return TimeRow(then, self._asked, stages, {}, {}, {}, batches, samples, used_s, looks, delays)
