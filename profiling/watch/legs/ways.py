"""The ways in which a window hands batches to the loop, or none: one class each. Which windows a run has, in which
order.

After a window in which the loop did not draw from the loader its queue is full, so a window that does starts with as
many batches as could be queued left out.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, repeat
from typing import Any

from feedline.pipeline.base.process import children_cpu_seconds, keep_freed_memory, usable_cores
from feedline.pipeline.base.settings import TORCH_PREFETCH
from feedline.profiling.record.journal import A_FILE_EACH, Journal, LegName, LegRow
from feedline.profiling.watch import cuda
from feedline.profiling.watch.batches import sizes
from feedline.profiling.watch.data_files import dataset_files, drop
from feedline.profiling.watch.facts import quietly, settings
from feedline.profiling.watch.feed import Feed
from feedline.profiling.watch.legs.cached import Cache
from feedline.profiling.watch.legs.neighbours import Neighbours
from feedline.profiling.watch.legs.tally import MOST_WINDOWS

SETTLE_STEPS = 2  # of a window, left out: the first replayed batch still finds the last step's work
LEAST_STEPS = 4  # of a window, however long they take
FINISHED_S, FINISH_MOST_S = 0.1, 5.0
"""Workers that were idle for so long have no batch to make; nobody waits longer than that for it."""
LEGS: tuple[LegName, ...] = ("normal", "cached", "loader_only")
"""What `--legs` asks for; a script's own run has the cold one too."""


def plan(
    legs: Sequence[str],
    kind: str,
    worker_counts: Sequence[int],
    rounds: int,
    lines: Iterable["Way"] = (),
    *,
    inside: bool = False,
) -> list["Way"]:
    """Every leg once a round, the order turned by one each time so that drift cancels; then, once, the cold one:
    whatever ran after it would read files from storage that it had in memory before. `lines` follow. Last comes what
    belongs to the ceiling of a loader of another `kind`, in pairs that turn round: with memory kept, and with batches
    as feedline's has them too, which a script may not survive. `inside` a process that lives on there are none."""
    once: list[Way] = []
    once += [Way()] if "normal" in legs else []
    once += [Cached()] if "cached" in legs else []
    once += [LoaderOnly(), *map(LoaderOnly, worker_counts)] if "loader_only" in legs else []
    planned = [once[(position + turn) % len(once)] for turn in range(rounds) for position in range(len(once))]
    planned += [Cold()] if "cold" in legs else []
    planned += lines
    if "cached" in legs and kind != "feedline" and not inside:
        pair = [Cached("kept"), Cached("laid_out")]
        planned += [way for turn in range(rounds) for way in (pair, pair[::-1])[turn % 2]]
    return planned


def worker_counts(current: int | None) -> list[int]:
    """1, 2, 4 … up to the usable cores, without the script's own number."""
    cores = usable_cores()
    counts = {cores, *(2**power for power in range(8) if 2**power <= cores)}
    return sorted(counts - {current or 0})[-4:]


class NoMore(Exception):
    """The loader gives nothing, from its beginning either."""


@dataclass
class Batches:
    """Where the windows' batches come from."""

    feed: Feed
    journal: Journal
    cache: Cache = field(default_factory=Cache)
    restarted: bool = False  # the batch that was drawn last is the first of a pass
    _drawn: int = 0
    _first: bool = False

    def pass_on(self, feed: Feed) -> None:
        """The script has begun its next pass."""
        self.feed = feed
        self._first, self._drawn = self._drawn > 1, 0

    def draw(self, begin_again: Callable[[], Any] | None = None) -> Any:
        """A batch of the script's own loader, from its beginning again when it has run out. Raises NoMore where that
        gives none either."""
        self.restarted, self._first = self._first, False
        try:
            batch = self.feed.draw()
        except StopIteration:
            (begin_again or self.feed.begin_again)()
            self.restarted, self._drawn = self._drawn > 1, 0  # else every batch is the first of its pass
            try:
                batch = self.feed.draw()
            except StopIteration:
                raise NoMore from None
        self._drawn += 1
        return batch

    @cached_property
    def batch_size(self) -> int | None:
        return settings(self.feed.loader)["batch_size"]

    def samples(self, batch: Any) -> int:
        return sizes(batch, self.batch_size)[0] or 0

    def first(self) -> Cache:
        """With at least one batch in it."""
        if not self.cache.kept:
            self.keep(self.draw())
        return self.cache

    def keep(self, batch: Any) -> None:
        self.cache.keep(batch, lent=self.feed.adapter.kind == "feedline")

    def queued(self, workers: int | None = None) -> int:
        """Batches that so many workers, or the loader's own, may have made ahead."""
        workers = self.feed.adapter.workers(self.feed.loader) if workers is None else workers
        return workers * (settings(self.feed.loader)["prefetch_factor"] or TORCH_PREFETCH)

    @property
    def turn(self) -> int:
        """Batches in which each of the loader's workers has its turn."""
        return max(1, self.feed.adapter.workers(self.feed.loader))


class Way:
    """As it is; and what the others have in common."""

    leg = "normal"
    count: int | None = None  # loader_only: workers
    steps: int | None = None  # its window has so many, however long they take
    note = ""
    dropped: float | None = None

    def begin(self, batches: Batches) -> int | None:
        """How many batches to leave out before the window's first; None where this way is not to be had."""
        return batches.queued() + 1

    def batch(self, batches: Batches) -> Any:
        batch = batches.draw()
        batches.keep(batch)
        return batch

    def turn(self, batches: Batches) -> int:
        """Batches that belong together: a window ends behind all of them."""
        return batches.turn

    def next_pass(self, batches: Batches) -> None:
        """The script has left its pass, and begun another one."""

    def too_long(self, seconds: float) -> bool:
        """Whether the window ends now, however few steps it has had."""
        return False

    def end(self) -> None:
        """The window is over, or broken off."""


class Cached(Way):
    """Batches handed out again and again: data is free. kept: with freed memory kept, where the model computes on the
    CPU (that cannot be undone); laid_out: in the layout of feedline's loader too, which a script may not take."""

    def __init__(self, leg: str = "cached") -> None:
        self.leg = leg

    def begin(self, batches: Batches) -> int | None:
        """Waits until workers have filled the queue, and so compute no more beside the loop."""
        cache = batches.first()
        self._cache = cache if self.leg != "laid_out" else cache.laid_out()
        if self._cache is None:
            return None
        if self.leg != "cached" and cuda.in_use() is None:
            keep_freed_memory()
        batches.restarted = False
        until = time.perf_counter() + FINISH_MOST_S
        before = children_cpu_seconds()
        while time.perf_counter() < until:
            time.sleep(FINISHED_S)
            now = children_cpu_seconds()
            if now - before < 0.2 * FINISHED_S:
                break
            before = now
        return SETTLE_STEPS

    def turn(self, batches: Batches) -> int:
        return 1

    def batch(self, batches: Batches) -> Any:
        assert self._cache is not None
        return self._cache.next()


class Cold(Way):
    """As it is, with the data's files dropped from the page cache."""

    leg = "cold"

    def begin(self, batches: Batches) -> int | None:
        """Where only the files that were seen are known, and these were not all, nobody knows how cold it is."""
        loader = batches.feed.loader
        listed = quietly(lambda: dataset_files(loader.dataset)) or []
        samples = quietly(lambda: len(loader.dataset)) or 0
        seen = batches.journal.read("files") or {"paths": [], "changing": None}
        there = [path for path in dict.fromkeys([*listed, *seen["paths"]]) if os.access(path, os.R_OK)]
        self.dropped, self.note = drop(there)
        some = seen["changing"] is None or seen["changing"] > A_FILE_EACH
        if some and len(listed) < max(1, samples):
            self.dropped = None
            self.note += "; the data has more files than these, and they were left alone"
        return super().begin(batches)


class LoaderOnly(Way):
    """The loader is drained while the script stands still."""

    leg = "loader_only"

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def measure(self, batches: Batches, window_s: float, neighbours: Neighbours) -> LegRow | None:
        """None where the loader cannot be had with so many workers. The first batch of a pass is left out, as in the
        verdict: what passes begin with is added by itself. Ends behind whole turns, as `Tally` does."""
        skip, turn = batches.queued(self.count) + (self.count or 1), self.count or batches.turn
        if self.count is None:
            drawn = ((batches.draw(), batches.restarted) for _ in repeat(None))
        elif (loader := batches.feed.adapter.again(batches.feed.loader, self.count)) is not None:
            drawn = endlessly(loader)
        else:
            return None
        with closing(drawn):
            for _ in islice(drawn, skip):
                pass
            neighbours.begin()
            cpu_s, asked = children_cpu_seconds(), time.perf_counter()
            until = asked + MOST_WINDOWS * window_s
            samples = left_out = steps = 0
            seconds = 0.0
            for batch, first in drawn:
                came, count = time.perf_counter(), batches.samples(batch)
                if first:
                    left_out += count
                else:
                    samples, seconds, steps = samples + count, seconds + came - asked, steps + 1
                whole = seconds >= window_s and steps % turn == 0
                if steps >= LEAST_STEPS and (whole or came > until):
                    used_s = (children_cpu_seconds() - cpu_s) * samples / max(1, samples + left_out)
                    neighbours.end()
                    return LegRow(
                        self.leg, self.count, samples, seconds, used_s if used_s > 0 else None, 0.0, "", None
                    )
                asked = time.perf_counter()
        return None


def endlessly(loader: Any) -> Generator[tuple[Any, bool]]:
    """Its batches, and whether each is the first of its pass; pass after pass, until one has none. Its workers end
    with it. Where every batch is the first of its pass, none is called so."""
    drawn = 2
    while drawn:
        iterator, longer, drawn = iter(loader), drawn > 1, 0
        try:
            for batch in iterator:
                drawn += 1
                yield batch, longer and drawn == 1
        finally:
            end_workers(iterator)


def end_workers(iterator: Any) -> None:
    shutdown = getattr(iterator, "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()
