"""What follows the verdict's steps in a diagnostic run: windows of the same loop, in which the training loader's
batches are directed.

The loop is what it was: same process, same model, same workers. Windows differ in what it is handed (`ways`): its own
batches, cached ones, or nothing while the loader is drained; rates of cached batches are the ceiling. The loop stays
inside its pass, for a loader that runs out is begun again underneath; where the script leaves the pass itself, the
window starts anew in the next one. At the end `Finished` is raised in the loop.
"""

import os
import time
from collections.abc import Generator
from typing import Any, NoReturn

from feedline.profiling.record.journal import LegRow
from feedline.profiling.watch import cuda
from feedline.profiling.watch.batches import sizes
from feedline.profiling.watch.capture import Finished
from feedline.profiling.watch.facts import role
from feedline.profiling.watch.feed import Feed, Feeds
from feedline.profiling.watch.legs.ways import (
    LEAST_STEPS,
    MOST_WINDOWS,
    Batches,
    LoaderOnly,
    NoMore,
    Way,
    plan,
    worker_counts,
)
from feedline.profiling.watch.saves import Saves

LIMIT_S = 120.0
"""After this long in legs only those that were not measured yet."""
AGREE_S = 20.0
"""Ranks end the verdict's last step together: none waits for rank 0 much longer than that one needs to write."""
MOST_STARTS = 3
"""A window that the script breaks off is started anew, until it has begun so often."""


class Director:
    """Decides what the training loader's `next` gives. Other loaders run as they are."""

    def __init__(self, feeds: Feeds) -> None:
        self.directing = False
        self._capture = feeds.capture
        self._config = feeds.capture.config
        self._saves = Saves(feeds.patches)
        self._lines: list[Way] = []
        """Windows in which lines are timed."""
        if self._config.lines:
            from feedline.profiling.watch.legs.lines import LinesWindow  # line_profiler: only where it is asked for

            self._lines.append(LinesWindow(feeds))
        self._batches: Batches | None = None
        self._handed_out: Generator[Any] | None = None
        self._way: Way | None = None
        """Whose window it is."""
        self._rows: list[LegRow] = []
        self._disturbed = False
        """The script has left its pass and begun another one."""
        self._ended_by = "steps"
        self._why = ""

    def take_over(self, feed: Feed, why: str) -> None:
        self._capture.leave(None)
        self.directing = feed.directed = True
        self._ended_by = why
        self._batches = Batches(feed, self._capture.journal)
        self._saves.hold(self._refused)
        self._write()
        self._handed_out = self._windows(self._batches)

    def adopts(self, feed: Feed) -> bool:
        assert self._batches is not None
        self._disturbed = True
        mine = self._batches.feed
        same = feed.loader is mine.loader
        if same or role(feed.place, feed.loader) == role(mine.place, mine.loader):
            self._batches.feed = feed
            return True
        return False

    def next(self, feed: Feed) -> Any:
        assert self._batches is not None and self._handed_out is not None
        if self._capture.ended_by is not None:  # somebody has caught what should end the loop
            raise Finished
        if feed is not self._batches.feed:  # an older pass over it, gone on with beside
            return feed.draw()
        if self._capture.journal.has("interrupted"):
            self._leave("interrupted by a signal", ended_by="signal")
        try:
            return next(self._handed_out)
        except NoMore:
            self._leave("its loader had no more batches")
        except StopIteration:  # the loader has failed, and the script has caught that
            self._leave("its loader has failed")

    # --- windows ------------------------------------------------------------------------------------------

    def _windows(self, batches: Batches) -> Generator[Any]:
        """What the loop is handed. Raises Finished behind the last window."""
        config, adapter = self._config, batches.feed.adapter
        deadline = time.perf_counter() + LIMIT_S
        steps = self._agreed_steps() if self._capture.facts.world_size > 1 else None
        counts = worker_counts(adapter.workers(batches.feed.loader))
        for way in plan(config.legs, adapter.kind, counts, config.rounds, self._lines):
            if steps is None and time.perf_counter() > deadline and way.leg in {row.leg for row in self._rows}:
                continue
            self._way = way
            self._write()
            if isinstance(way, LoaderOnly):
                with self._capture.unwatched():
                    row = way.measure(batches, config.window_s)
            else:
                row = yield from self._window(way, batches, way.steps or steps)
            self._rows += [row] if row is not None else []
        self._way = None
        self._leave()

    def _window(self, way: Way, batches: Batches, wanted: int | None) -> Generator[Any, None, LegRow | None]:
        """One way, once. `wanted`: it has so many steps, however long they take (ranks turn together)."""
        window_s = self._config.window_s
        for starts in range(MOST_STARTS):
            self._disturbed = False
            skip = way.begin(batches)
            if skip is None:
                return None
            for _ in range(skip):
                yield way.batch(batches)
            cuda.settle_device()
            began, began_cpu_s, left_out_s = time.perf_counter(), time.process_time(), 0.0
            samples = steps = 0
            while not (self._disturbed and starts < MOST_STARTS - 1):
                seconds = time.perf_counter() - began - left_out_s
                long = seconds >= window_s or seconds + left_out_s > MOST_WINDOWS * window_s
                if steps >= (wanted or LEAST_STEPS) and (wanted or long):
                    cuda.settle_device()
                    seconds, cpu_s = time.perf_counter() - began - left_out_s, time.process_time() - began_cpu_s
                    way.end()
                    row = LegRow(way.leg, way.count, samples, seconds, None, cpu_s, way.note, way.dropped)
                    return None if way.steps else row
                asked = time.perf_counter()
                batch = way.batch(batches)
                count, restarted = sizes(batch)[0] or 0, batches.restarted
                yield batch
                steps += 1
                if restarted:  # the first batch of a pass, and the step with it, are warm-up, as in the verdict
                    left_out_s += time.perf_counter() - asked
                else:
                    samples += count
            way.end()
        return None

    def _agreed_steps(self) -> int:
        """As many of a window as rank 0 says."""
        journal, until = self._capture.journal, time.monotonic() + AGREE_S
        loop = self._capture.loop
        if self._capture.rank == 0:
            step_s = (time.perf_counter() - (loop.first_got or 0.0)) / max(1, loop.train_steps)
            journal.write("windows", {"steps": max(LEAST_STEPS, round(self._config.window_s / step_s))})
        while (agreed := journal.read("windows")) is None:
            if time.monotonic() > until:
                self._leave("rank 0 did not get to its windows")
            time.sleep(0.01)
        return agreed["steps"]

    # --- the end ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        window = self._way.leg if self._way is not None else None
        state = {"rank": self._capture.rank, "windows": self._rows, "why": self._why, "window": window}
        self._capture.journal.write(f"legs-{os.getpid()}", state)

    def _refused(self, why: str) -> None:
        """A save of the script's own; nothing is lost by that after the last window."""
        if self._capture.ended_by is None:
            self._end(why, self._ended_by)

    def _leave(self, why: str = "", ended_by: str = "") -> NoReturn:
        self._end(why, ended_by or self._ended_by)
        raise Finished

    def _end(self, why: str, ended_by: str) -> None:
        if self._way is not None:
            self._way.end()
        self._why = why
        self._write()
        self._capture.leave(ended_by)
        if self._batches is not None:
            self._batches.feed.release()
