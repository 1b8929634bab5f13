"""The ways in which a window hands batches to the loop, or none: one class each.

After a window in which the loop did not draw from the loader its queue is full, so a window that does starts with as
many batches as could be queued left out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.process import children_cpu_seconds, keep_freed_memory
from feedline.profiling.record.journal import Journal
from feedline.profiling.watch import cuda
from feedline.profiling.watch.batches import batch_samples
from feedline.profiling.watch.data_paths import MOST_PATHS, PathCollector, dataset_files
from feedline.profiling.watch.facts import settings
from feedline.profiling.watch.feed import Feed
from feedline.profiling.watch.legs.cached import Cache
from feedline.profiling.watch.legs.page_cache import Dropped, drop

SETTLE_STEPS = 2  # of a window, left out: the first replayed batch still finds the last step's work
LEAST_STEPS = 4  # of a window, however long they take
FINISHED_S, FINISH_MOST_S = 0.1, 5.0
"""Workers that were idle for so long have no batch to make; nobody waits longer than that for it."""


@dataclass
class Batches:
    """Where the windows' batches come from."""

    feed: Feed
    journal: Journal
    cache: Cache = field(default_factory=Cache)
    restarted: bool = False
    """The batch that was drawn last is the first of a pass."""
    _drawn: int = 0

    def draw(self) -> Any:
        """A batch of the script's own loader, from its beginning again when it has run out."""
        self.restarted = False
        try:
            batch = self.feed.draw()
        except StopIteration:
            self.feed.begin_again()
            self.restarted, self._drawn = self._drawn > 1, 0  # else every batch is the first of its pass
            batch = self.feed.draw()
        self._drawn += 1
        return batch

    def first(self) -> Cache:
        """With at least one batch in it."""
        if not self.cache.batches:
            self.cache.keep(self.draw())
        return self.cache

    @property
    def queued(self) -> int:
        """Batches that workers may have made ahead."""
        return self.of_queue(self.feed.adapter.workers(self.feed.loader))

    def of_queue(self, workers: int) -> int:
        return workers * (settings(self.feed.loader)["prefetch_factor"] or 2)


class Way:
    """As it is; and what the others have in common."""

    leg = "normal"
    count: int | None = None
    """loader_only: workers."""
    steps: int | None = None
    """Its window has so many, however long they take."""
    note = ""
    dropped: float | None = None

    def begin(self, batches: Batches) -> int | None:
        """How many batches to leave out before the window's first; None where this way is not to be had."""
        return batches.queued + 1

    def batch(self, batches: Batches) -> Any:
        batch = batches.draw()
        batches.cache.keep(batch)
        return batch

    def end(self) -> None:
        """The window is over, or broken off."""


class Cached(Way):
    """Batches handed out again and again: data is free."""

    leg = "cached"

    def begin(self, batches: Batches) -> int | None:
        batches.first()
        let_workers_finish()
        return SETTLE_STEPS

    def batch(self, batches: Batches) -> Any:
        batches.restarted = False
        return batches.cache.next()


class Kept(Cached):
    """With freed memory kept, where the model computes on the CPU. That cannot be undone."""

    leg = "kept"

    def begin(self, batches: Batches) -> int | None:
        if cuda.in_use() is None:
            keep_freed_memory()
        return super().begin(batches)


class LaidOut(Kept):
    """The same, in the layout of feedline's loader. A script may not be able to take it."""

    leg = "laid_out"

    def begin(self, batches: Batches) -> int | None:
        self._cache = batches.first().laid_out()
        return None if self._cache is None else super().begin(batches)

    def batch(self, batches: Batches) -> Any:
        assert self._cache is not None
        return self._cache.next()


class Cold(Way):
    """As it is, with the data's files dropped from the page cache."""

    leg = "cold"

    def begin(self, batches: Batches) -> int | None:
        dropped = self._drop(batches)
        self.note, self.dropped = dropped.note, dropped.share
        return super().begin(batches)

    def _drop(self, batches: Batches) -> Dropped:
        """Where only the files that were seen are known, and these were not all, nobody knows how cold it is."""
        listed = dataset_files(getattr(batches.feed.loader, "dataset", None))
        seen = [path for told in batches.journal.all("worker-") for path in told.get("paths", [])]
        seen += PathCollector.active().found
        dropped = drop(list(dict.fromkeys([*listed, *seen])))
        if listed or len(set(seen)) < MOST_PATHS:
            return dropped
        return Dropped(None, f"{dropped.note}; the data has more files than these, and they were left alone")


class LoaderOnly(Way):
    """The loader is drained while the script stands still."""

    leg = "loader_only"

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def measure(self, batches: Batches, window_s: float) -> "Drained | None":
        """None where the loader cannot be had with so many workers."""
        if self.count is None:
            return drain(batches.draw, batches.queued + 1, window_s)
        loader = batches.feed.adapter.again(batches.feed.loader, self.count)
        if loader is None:
            return None
        endless = Endless(loader)
        try:
            return drain(endless.__next__, batches.of_queue(self.count) + self.count, window_s)
        finally:
            endless.close()


@dataclass(frozen=True)
class Drained:
    samples: int
    seconds: float
    worker_cpu_s: float | None


def drain(draw: Callable[[], Any], skip: int, window_s: float) -> Drained:
    for _ in range(skip):
        draw()
    cpu_s, started = children_cpu_seconds(), time.perf_counter()
    samples = steps = 0
    seconds = 0.0
    while seconds < window_s or steps < LEAST_STEPS:
        samples += batch_samples(draw()) or 0
        steps += 1
        seconds = time.perf_counter() - started
    used_s = children_cpu_seconds() - cpu_s
    return Drained(samples, seconds, used_s if used_s > 0 else None)


class Endless:
    """Batches of a loader for ever."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.iterator: Any = iter(loader)

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self._loader)
            return next(self.iterator)

    def close(self) -> None:
        end_workers(self.iterator)
        self.iterator = None


def end_workers(iterator: Any) -> None:
    shutdown = getattr(iterator, "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()


def let_workers_finish() -> None:
    """Until they have filled the queue, and so compute no more beside a loop that is handed kept batches."""
    until = time.perf_counter() + FINISH_MOST_S
    before = children_cpu_seconds()
    while time.perf_counter() < until:
        time.sleep(FINISHED_S)
        now = children_cpu_seconds()
        if now - before < 0.2 * FINISHED_S:
            return
        before = now
