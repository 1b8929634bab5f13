"""What follows the verdict's steps in a diagnostic run: windows of the same loop, in which the training loader's
batches are directed.

The loop is what it was: same process, same model, same workers. Windows differ in what it is handed (`ways`): its own
batches, cached ones, or nothing while the loader is drained; rates of cached batches are the ceiling. The loop stays
inside its pass, for a loader that runs out is begun again underneath; where the script leaves the pass itself, the
window starts anew in the next one. At the end `Finished` is raised in the loop.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from feedline.profiling.record.journal import LegRow
from feedline.profiling.watch import cuda
from feedline.profiling.watch.batches import sizes
from feedline.profiling.watch.capture import Finished
from feedline.profiling.watch.facts import settings
from feedline.profiling.watch.feed import Feed, Feeds
from feedline.profiling.watch.legs.ways import LEAST_STEPS, Batches, LoaderOnly, Way, chosen, plan, worker_counts
from feedline.profiling.watch.saves import Saves

AGREE_S = 20.0
"""Ranks end the verdict's last step together: none waits for rank 0 much longer than that one needs to write."""
MOST_WINDOWS = 10
"""A window with what is left out of it is over after so many times its length."""
MOST_STARTS = 3
"""A window that the script breaks off is started anew so often."""


@dataclass
class Window:
    """One way, once."""

    way: Way
    starts: int = 1
    skip: int = 0
    """Batches still to be left out."""
    began: float = 0.0
    """Its first batch was asked for; 0 before that."""
    left_out_s: float = 0.0
    samples: int = 0
    steps: int = 0
    trainer_cpu_s: float = 0.0


class Director:
    """Decides what the training loader's `next` gives. Other loaders run as they are."""

    def __init__(self, feeds: Feeds, lines: Sequence[Way] = ()) -> None:
        """`lines`: windows in which lines are timed."""
        self._capture = feeds.capture
        self._options = feeds.capture.options
        self._saves = Saves(feeds.patches)
        self._lines = lines
        self._batches: Batches | None = None
        self._plan: list[Way] = []
        self._rows: list[LegRow] = []
        self._window: Window | None = None
        self._window_steps = 0
        """Of ranks: they turn together."""
        self._deadline = 0.0
        self._left_out_since: float | None = None
        """When the first batch of a pass was asked for: that and the step with it are warm-up, as in the verdict."""
        self._disturbed = False
        self._ended_by = "steps"
        self._why = ""

    # --- called by the feed -------------------------------------------------------------------------------

    @property
    def directing(self) -> bool:
        return self._batches is not None

    def take_over(self, feed: Feed, why: str) -> None:
        capture = self._capture
        capture.leave(None)
        feed.directed = True
        self._ended_by = "seconds" if why == "running" else why
        self._batches = Batches(feed, capture.journal)
        self._deadline = time.perf_counter() + self._options.limit_s
        self._saves.hold(self._refused)
        self._write()
        if feed.loader is None:
            self._leave("its loader was gone")
        if capture.facts.world_size > 1:
            self._window_steps = self._agreed_steps()
        legs = chosen(self._options.legs, feed.adapter.kind)
        counts = worker_counts(feed.adapter.workers(feed.loader))
        self._plan = plan(legs, counts, self._options.rounds, self._lines)

    def adopts(self, feed: Feed) -> bool:
        assert self._batches is not None
        self._disturbed = True
        mine = self._batches.feed
        same = feed.loader is mine.loader
        if same or (feed.place == mine.place and settings(feed.loader) == settings(mine.loader)):
            self._batches.feed = feed
            return True
        return False

    def next(self, feed: Feed) -> Any:
        batches = self._batches
        assert batches is not None
        if self._capture.ended_by is not None:  # somebody has caught what should end the loop
            raise Finished
        if feed is not batches.feed:  # an older pass over it, gone on with beside
            return feed.draw()
        if self._capture.journal.has("interrupted"):
            self._leave("interrupted by a signal", ended_by="signal")
        if self._window is not None and self._left_out_since is not None:
            self._window.left_out_s += time.perf_counter() - self._left_out_since
        self._left_out_since = None
        while True:
            window = self._window
            if window is None or self._over(window):
                self._next_window(batches)
            elif isinstance(window.way, LoaderOnly):
                with self._capture.unwatched():
                    row = window.way.measure(batches, self._options.window_s)
                self._rows += [row] if row is not None else []
                self._window = None
            else:
                return self._hand_out(window, batches)

    # --- windows ------------------------------------------------------------------------------------------

    def _next_window(self, batches: Batches) -> None:
        """The next of the plan that can be had. Raises Finished after the last."""
        if time.perf_counter() > self._deadline and not self._window_steps:
            done = {row.leg for row in self._rows}
            self._plan = [way for way in self._plan if way.leg not in done]
        while self._plan:
            if self._start(Window(self._plan.pop(0)), batches):
                return
        self._window = None
        self._leave()

    def _start(self, window: Window, batches: Batches) -> bool:
        self._window = window
        self._disturbed = False
        self._left_out_since = None
        self._write()
        skip = window.way.begin(batches)
        window.skip = skip or 0
        return skip is not None

    def _hand_out(self, window: Window, batches: Batches) -> Any:
        if self._disturbed and window.starts < MOST_STARTS:
            window.way.end()
            window = Window(window.way, window.starts + 1)
            self._start(window, batches)
        if window.skip:
            window.skip -= 1
            return window.way.batch(batches)
        asked = time.perf_counter()
        if not window.began:
            cuda.settle_device()
            window.began = asked = time.perf_counter()
            window.trainer_cpu_s = -time.process_time()
        batch = window.way.batch(batches)
        window.steps += 1
        if batches.restarted:
            self._left_out_since = asked
        else:
            window.samples += sizes(batch)[0] or 0
        return batch

    def _over(self, window: Window) -> bool:
        """Whether it has all its steps; then it is noted."""
        if not window.began:
            return False
        options, way = self._options, window.way
        if wanted := way.steps or self._window_steps:
            enough = window.steps >= wanted
        else:
            seconds = time.perf_counter() - window.began
            long = seconds > MOST_WINDOWS * options.window_s or seconds - window.left_out_s >= options.window_s
            enough = window.steps >= LEAST_STEPS and long
        if not enough:
            return False
        cuda.settle_device()
        seconds = time.perf_counter() - window.began - window.left_out_s
        cpu_s = window.trainer_cpu_s + time.process_time()
        way.end()
        if not way.steps:
            row = LegRow(way.leg, way.count, window.samples, seconds, None, cpu_s, way.note, way.dropped)
            self._rows.append(row)
        return True

    def _agreed_steps(self) -> int:
        """As many of a window as rank 0 says."""
        journal, until = self._capture.journal, time.monotonic() + AGREE_S
        loop = self._capture.loop
        if self._capture.rank == 0:
            step_s = (time.perf_counter() - (loop.first_got or 0.0)) / max(1, loop.train_steps)
            journal.write("windows", {"steps": max(LEAST_STEPS, round(self._options.window_s / step_s))})
        while (agreed := journal.read("windows")) is None:
            if time.monotonic() > until:
                self._leave("rank 0 did not get to its windows")
            time.sleep(0.01)
        return agreed["steps"]

    # --- the end ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        window = self._window.way.leg if self._window is not None else None
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
        if self._window is not None:
            self._window.way.end()
        self._why = why
        self._write()
        self._capture.leave(ended_by)
        if self._batches is not None:
            self._batches.feed.release()
