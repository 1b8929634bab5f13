"""What is measured: one loader, or one script with its loader swapped; and the meter of one window of it."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.process import CpuClocks
from feedline.profiling.record.windows import MOST_SIZES
from feedline.profiling.watch.cuda import settle_device

STEADY_S, STEADY_MOST_S = 1.0, 8.0
"""The stock of batches made ahead is compared with what it was so long ago; one that goes on changing is not waited
for longer."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Plain JSON, so that it can be sent to another process."""

    kind: str
    """script (`benchmarks.measure.script_subject`) or loader (`benchmarks.measure.loader_subject`)."""
    settings: dict[str, Any]
    """As that module says."""
    warm_up_s: float = 1.0
    """At least so long, and at least `warm_up_batches`: what was prefetched before the start must not count."""
    warm_up_batches: int = 8
    warm_up_most_s: float = float("inf")
    """From then on neither batches nor a steady stock of them are waited for: the loop is slower than its loader."""
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
    """Cores that other programs on this machine used meanwhile."""
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
        both_s = self.trainer_cpu_s / self.samples + self.worker_cpu_s / self.made
        return (self.trainer_cpu_s + self.worker_cpu_s) / both_s / self.seconds if both_s else taken


def per_second(windows: Collection[Window], *names: str) -> float:
    """The sum of these fields over all windows, per second measured."""
    return sum(getattr(window, name) for window in windows for name in names) / sum(w.seconds for w in windows)


class WindowDone(BaseException):
    """Raised at the batch boundary that ends the window: unwinds any script, whatever it catches."""


class Meter:
    """Told of every batch as it arrives; measures from the first boundary after the warm-up. A batch of another size,
    as an epoch's last is, begins the warm-up anew: kernels are chosen for each size, which takes cuDNN seconds, once,
    and meanwhile workers fill their queue."""

    made: Callable[[], int] | None = None
    """Samples that the workers have finished so far; set by a subject whose loader knows."""
    look: Callable[[], dict[str, Any]] | None = None
    """Asked right before the window and right behind it; facts are what it says."""

    def __init__(self, subject: Subject) -> None:
        self.facts: dict[str, Any] = {}
        self.window: Window | None = None
        self._subject = subject
        self._first_s = 0.0
        self._stock: list[tuple[float, int]] = []
        self._start: tuple[int, CpuClocks] | None = None
        self._sizes: set[int] = set()
        self._batches = self._samples = self._taken = 0
        self._wait_s = 0.0

    def batch(self, samples: int, wait_s: float) -> None:
        """Raises WindowDone when the window is full."""
        now_s = time.perf_counter()
        if samples not in self._sizes and len(self._sizes) < MOST_SIZES:
            self._sizes.add(samples)
            self._first_s, self._start, self._batches = now_s, None, 0
            self._stock.clear()
        self._taken += samples
        self._batches += 1
        self._samples += samples
        self._wait_s += wait_s
        if self._start is None:
            if self._is_warm(now_s, now_s - self._first_s, samples):
                self._look()
                self._start, self._batches, self._samples, self._wait_s = self._clocks(), 0, 0, 0.0
            return
        long = now_s - self._start[1].clock_s >= self._subject.window_s
        if long and self._batches >= self._subject.least_batches:
            self.window = self._finished(*self._start)
            raise WindowDone

    def _is_warm(self, now_s: float, spent_s: float, batch: int) -> bool:
        """Enough was seen, and stock is neither used up nor built: within a batch of what it was a second ago."""
        subject = self._subject
        enough = self._batches >= subject.warm_up_batches or spent_s >= subject.warm_up_most_s
        if not enough or spent_s < subject.warm_up_s:
            return False
        if self.made is None or spent_s >= min(subject.warm_up_most_s, STEADY_MOST_S):
            return True
        self._stock.append((now_s, self.made() - self._taken))
        before = [stock for clock_s, stock in self._stock if clock_s <= now_s - STEADY_S]
        return bool(before) and abs(self._stock[-1][1] - before[-1]) <= batch

    def _look(self) -> None:
        if self.look is not None:
            settle_device()
            self.facts.update(self.look())

    def _clocks(self) -> tuple[int, CpuClocks]:
        settle_device()
        return self.made() if self.made else 0, CpuClocks.now()

    def _finished(self, made_before: int, before: CpuClocks) -> Window:
        made, now = self._clocks()
        spent = now.since(before)
        self._look()
        return Window(
            samples=self._samples,
            seconds=spent.clock_s,
            batches=self._batches,
            wait_s=self._wait_s,
            trainer_cpu_s=spent.own_s,
            worker_cpu_s=spent.children_s,
            made=made - made_before if self.made else None,
            others_cores=spent.others_cores,
            facts=self.facts,
        )


def endless(begin: Callable[[], Iterator[Any]], without: Exception) -> Iterator[Any]:
    """One epoch after the other. Raises `without` for one that has no batch."""
    while True:
        count = 0
        for count, batch in enumerate(begin(), 1):  # noqa: B007  used after the loop
            yield batch
        if not count:
            raise without
