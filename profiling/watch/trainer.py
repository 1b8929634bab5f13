"""What the thread that trains does, sampled and written down; beside it the thread that pins, and loading itself.

The counterpart of `worker`: one sampler, tallies by who did it, rows every half second.
"""

import os
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.loader_stats import LoaderStats
from feedline.profiling.watch.passes import Pass
from feedline.profiling.watch.pin_thread import PinThread
from feedline.profiling.watch.rules import Place
from feedline.profiling.watch.stacks import StackSampler, fair_switching
from feedline.profiling.watch.time_sums import TimeSums
from feedline.profiling.watch.trainer_rules import part
from feedline.profiling.watch.worker_rules import classify

RATE_HZ = 50.0


class TrainerWatch:
    """Of the thread that makes it. `asking` tells which pass the loop waits for; `flush` is called when rows are
    due."""

    def __init__(self, journal: Journal, asking: Callable[[], Pass | None], flush: Callable[[], None]) -> None:
        fair_switching()
        self._journal = journal
        self._asking = asking
        self._flush = flush
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._main = TimeSums(self._thread)
        self._loading: dict[int, TimeSums] = {}
        """By loader: what a loader without workers did in this thread."""
        self._pin_thread: PinThread | None = None
        self._stats: dict[int, LoaderStats] = {}
        self.sampler = StackSampler(self._look, journal, rate_hz=RATE_HZ)

    def see_loader(self, loader: Any, number: int, rank: int, *, pins: bool) -> None:
        """A pass begins; `pins`: in a thread of its own."""
        if pins and self._pin_thread is None:
            self._pin_thread = PinThread()
        if number not in self._stats and LoaderStats.has_any(loader):
            self._stats[number] = LoaderStats(loader, number, rank)

    def _look(self, frames: dict[int, FrameType], seconds: float) -> None:
        frame, asking = frames.get(self._thread), self._asking()
        if frame is None:
            return
        if asking is not None and asking.in_trainer:
            if asking.loader not in self._stats:
                self._loading.setdefault(asking.loader, TimeSums(self._thread)).add(classify(frame), seconds)
            self._main.add(Place("load", "loader"), seconds)
        else:
            self._look_at_training(frames, frame, seconds, waits=asking is not None)
        if self._main.due:
            self._flush()

    def _look_at_training(
        self, frames: dict[int, FrameType], frame: FrameType, seconds: float, *, waits: bool
    ) -> None:
        for sums in self._loading.values():
            sums.skip()
        name, place = part(frame)
        pinning, cpu_s = self._pin_thread.look(frames, seconds) if self._pin_thread is not None else (None, 0.0)
        if waits and name not in ("unpickle", "pin"):
            name = pinning or "wait"
        self._main.add(Place(name, place), seconds, others_cpu_s=cpu_s if waits and name == pinning else 0.0)

    def write(self) -> None:
        """Rows since the last time."""
        self._journal.append(f"main-{self._pid}", [self._main.take()])
        if self._pin_thread is not None:
            self._journal.append(f"pin-{self._pid}", self._pin_thread.take())
        for stats in self._stats.values():
            stats.write(self._journal)
        for loader, sums in self._loading.items():
            self._journal.append(f"loading-{self._pid}-{loader}", [sums.take()])
