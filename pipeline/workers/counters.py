"""Where a worker's time goes: one row of 64-bit integers per worker, in memory shared with the trainer.

Always on: a stage costs one clock reading and one addition (about 100 ns), two to seven of them a sample. Only the
worker writes its row and a reader may be one update behind; nothing is locked. No torch here.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

STAGES = ("read", "decode", "transform", "collate", "send", "idle")
"""The stages a worker clocks; `other` is what is left of its lifetime."""
COUNTS = ("pid", "samples", "batches", "bytes_read", "bad_samples", "announced_bytes", "storage_bytes")
LOOKS = ("looked_at", "blocked", "blocked_ns")
"""Of reads: those looked at, those of them in which the worker had to wait, and the time that these took."""
LOOK_EVERY = 16
"""So many reads to one that is looked at."""
FIELD = {name: n for n, name in enumerate((*STAGES, *COUNTS, *LOOKS, "started_ns", "now_ns", "sample"))}
ROW_BYTES = 192  # three cache lines: two workers never write to the same line
NOTHING = -1
"""In `sample`: the worker is not working on one."""
Rows = npt.NDArray[np.int64]


def rows_of(buffer: memoryview, workers: int) -> Rows:
    """The shared rows, (workers, ROW_BYTES / 8) int64."""
    return np.frombuffer(buffer, np.int64, workers * ROW_BYTES // 8).reshape(workers, ROW_BYTES // 8)


NONE: Rows = np.empty((0, ROW_BYTES // 8), np.int64)


def total(rows: Rows | None, name: str) -> int:
    """Over all workers, so far; `rows` with the trainer's own."""
    return 0 if rows is None else int(rows[:-1, FIELD[name]].sum())


class Clock:
    """Attributes the time since the last mark to one stage of one worker's row."""

    def __init__(self, row: Rows) -> None:
        """Goes on counting where an earlier worker of that row ended."""
        self.row = row.data  # a memoryview stores a Python int in a third of the time an array takes
        self._last_ns = time.perf_counter_ns()
        row[FIELD["started_ns"]] += self._last_ns - row[FIELD["now_ns"]]
        row[FIELD["now_ns"]] = self._last_ns
        row[FIELD["sample"]] = NOTHING

    def mark(self, stage: int) -> None:
        """`stage` is FIELD[name] of one of STAGES."""
        now_ns = time.perf_counter_ns()
        self.row[stage] += now_ns - self._last_ns
        self._last_ns = now_ns

    def decoded(self) -> None:
        self.mark(_DECODE)

    def transformed(self) -> None:
        self.mark(_TRANSFORM)

    def filled(self, decoding_ns: int) -> None:
        """So much of the time since the last mark was decoding, the rest transforming."""
        self.row[_DECODE] += decoding_ns
        self._last_ns += decoding_ns
        self.mark(_TRANSFORM)

    def skip(self) -> None:
        """The time since the last mark belongs to no stage: it counts as `other`."""
        self._last_ns = time.perf_counter_ns()

    def tick(self) -> None:
        """Moves the end of the observed lifetime to the last mark; after each batch and each idle spell."""
        self.row[_NOW] = self._last_ns


_NOW = FIELD["now_ns"]
_DECODE, _TRANSFORM = FIELD["decode"], FIELD["transform"]


def describe(row: Rows) -> dict[str, Any]:
    """One worker's row in plain JSON: `seconds` per stage (with `other`, their sum is `alive_s`), and the counts."""
    row = row.copy()  # the worker goes on writing
    seconds = {stage: int(row[FIELD[stage]]) / 1e9 for stage in STAGES}
    alive_s = int(row[FIELD["now_ns"]] - row[FIELD["started_ns"]]) / 1e9
    seconds["other"] = max(0.0, alive_s - sum(seconds.values()))
    counts = {name: int(row[FIELD[name]]) for name in COUNTS}
    return {**counts, "alive_s": sum(seconds.values()), "seconds": seconds}


def fractions(workers: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of all workers' time by stage, `other` included; they sum to 1 (all zero before the first batch)."""
    sums = {name: sum(worker["seconds"][name] for worker in workers) for name in (*STAGES, "other")}
    total = sum(sums.values())
    return {name: value / total if total else 0.0 for name, value in sums.items()}
