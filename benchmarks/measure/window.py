"""What is measured: one loader, or one script with its loader swapped; and the meter that tells one window of it."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.profiling.watch.cuda import settle_device


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Plain JSON, so that it can be sent to another process. What one field means is said by its kind's module."""

    kind: str
    """script (`benchmarks.measure.script_subject`) or loader (`benchmarks.measure.loader_subject`)."""
    settings: dict[str, Any]
    warm_up_s: float = 1.0
    """At least so long, and at least `warm_up_batches`: what was prefetched before the start must not count."""
    warm_up_batches: int = 8
    warm_up_most_s: float = float("inf")
    """From then on batches are not waited for: a loop that took so long for so few is slower than its loader; nor is
    a stock of batches that goes on falling."""
    window_s: float = 3.0
    least_batches: int = 6
    """A window is longer than `window_s` if so many batches have not come."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One measured stretch between two batch boundaries."""

    samples: int
    seconds: float
    batches: int
    wait_s: float
    """The loop was blocked on the next batch."""
    trainer_cpu_s: float
    """All threads of the process with the loop."""
    worker_cpu_s: float
    """All its child processes, those that have ended meanwhile included."""
    made: int | None = None
    """Samples that the workers finished meanwhile; None where that is not known, or nobody works ahead."""
    others_cores: float | None = None
    """Cores that other programs on this machine used meanwhile; None where the kernel does not say."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the subject says of itself, e.g. the batch's type and shape."""

    @property
    def samples_per_s(self) -> float:
        """The rate that lasts. Batches taken from stock must be made again: with the CPU time per sample of taking
        and of making as they were, as many are made as are taken at the mean of both rates weighted by these."""
        taken = self.samples / self.seconds
        stock_used = 0 if self.made is None else self.samples - self.made
        if not self.made or stock_used <= self.samples / self.batches:  # a batch may be between the two at any time
            return taken
        taking_s, making_s = self.trainer_cpu_s / self.samples, self.worker_cpu_s / self.made
        both_s = taking_s + making_s
        return (self.trainer_cpu_s + self.worker_cpu_s) / both_s / self.seconds if both_s else taken


class WindowDone(BaseException):
    """Raised at the batch boundary that ends the window: unwinds any script, whatever it catches."""


STEADY_S = 1.0
"""The stock of batches made ahead is compared with what it was so long ago."""
STEADY_MOST_S = 8.0
"""A stock that goes on changing is not waited for longer."""


class Meter:
    """Told of every batch as it arrives; measures from the first boundary after the warm-up."""

    made: Callable[[], int] | None = None
    """Samples that the workers have finished so far; set by a subject whose loader knows."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._delivered = 0
        self._stock: list[tuple[float, int]] = []
        self._made = 0
        self._first: float | None = None
        self._start: _Mark | None = None
        self._batches = self._samples = 0
        self._wait_s = 0.0
        self.facts: dict[str, Any] = {}
        self.window: Window | None = None

    def batch(self, samples: int, wait_s: float) -> None:
        """Raises WindowDone when the window is full."""
        now = time.perf_counter()
        self._first = now if self._first is None else self._first
        self._batches += 1
        self._delivered += samples
        if self._start is None:
            if self._warm(now - self._first) and self._steady(now, now - self._first, samples):
                self._begin()
            return
        self._samples += samples
        self._wait_s += wait_s
        if now - self._start.clock_s >= self._subject.window_s and self._batches >= self._subject.least_batches:
            self._finish(self._start)
            raise WindowDone

    def _warm(self, spent_s: float) -> bool:
        enough = self._batches >= self._subject.warm_up_batches or spent_s >= self._subject.warm_up_most_s
        return enough and spent_s >= self._subject.warm_up_s

    def _steady(self, now: float, spent_s: float, batch: int) -> bool:
        """Stock is neither used up nor built: within a batch of what it was a second ago."""
        if self.made is None or spent_s >= min(self._subject.warm_up_most_s, STEADY_MOST_S):
            return True
        self._stock.append((now, self.made() - self._delivered))
        before = [stock for clock_s, stock in self._stock if clock_s <= now - STEADY_S]
        return bool(before) and abs(self._stock[-1][1] - before[-1]) <= batch

    def _begin(self) -> None:
        settle_device()
        self._made = self.made() if self.made else 0
        self._start, self._batches, self._samples, self._wait_s = _Mark(), 0, 0, 0.0

    def _finish(self, start: "_Mark") -> None:
        settle_device()
        made = self.made() - self._made if self.made else None
        end = _Mark()
        seconds = end.clock_s - start.clock_s
        ours = end.trainer_cpu_s - start.trainer_cpu_s + end.worker_cpu_s - start.worker_cpu_s
        busy = None if start.busy_s is None or end.busy_s is None else end.busy_s - start.busy_s
        self.window = Window(
            samples=self._samples,
            seconds=seconds,
            batches=self._batches,
            wait_s=self._wait_s,
            trainer_cpu_s=end.trainer_cpu_s - start.trainer_cpu_s,
            worker_cpu_s=end.worker_cpu_s - start.worker_cpu_s,
            made=made,
            others_cores=None if busy is None else max(0.0, (busy - ours) / seconds),
            facts=self.facts,
        )


class _Mark:
    """The clocks at one moment."""

    def __init__(self) -> None:
        import psutil

        self.trainer_cpu_s = time.process_time()
        ended = os.times()  # workers that ended with their epoch
        self.worker_cpu_s = ended.children_user + ended.children_system
        for child in psutil.Process().children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self.worker_cpu_s += times.user + times.system
        self.busy_s = machine_busy_s()
        self.clock_s = time.perf_counter()


def machine_busy_s() -> float | None:
    """CPU seconds that all programs of this machine have used since it started."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(word) for word in words[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
