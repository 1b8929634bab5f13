"""What follows the verdict's steps in a diagnostic run: windows of the same loop, in which the training loader's
batches are directed.

The loop is what it was: same process, same model, same workers. Windows differ in what it is handed (`ways`): its own
batches, cached ones, or nothing while the loader is drained; rates of cached batches are the ceiling. The loop stays
inside its pass, for a loader that runs out is begun again underneath, and frameworks that count batches themselves
are told of more (`counting`); where the script leaves the pass all the same, the window goes on in the next one. At
the end `Finished` is raised in the loop.
"""

import os
import time
from collections import Counter
from collections.abc import Generator
from types import FrameType
from typing import Any, NoReturn

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import count_of
from feedline.profiling.record.journal import LegRow
from feedline.profiling.watch import cuda
from feedline.profiling.watch.capture import Finished
from feedline.profiling.watch.facts import role
from feedline.profiling.watch.feed import Feed, Feeds
from feedline.profiling.watch.legs import counting
from feedline.profiling.watch.legs.neighbours import SHORTEST_S, Neighbours
from feedline.profiling.watch.legs.tally import Tally
from feedline.profiling.watch.legs.ways import LEAST_STEPS, Batches, LoaderOnly, NoMore, Way, plan, worker_counts
from feedline.profiling.watch.saves import Saves

LIMIT_S = 120.0  # after this long in legs only those that have too few windows
LEAST_WINDOWS = {"kept": 3, "laid_out": 3}
"""Others have one. These two are small gains, told from each other and from cached batches."""
MOST_S = 240.0  # after this long nothing more
AGREE_S = 20.0
"""Ranks end the verdict's last step together: none waits for rank 0 much longer than that one needs to write."""


class Director:
    """Decides what the training loader's `next` gives. Other loaders run as they are."""

    def __init__(self, feeds: Feeds) -> None:
        self.directing = False
        self._capture = feeds.capture
        self._config = feeds.capture.config
        self._saves = Saves(feeds.patches)
        counting.attach(feeds.patches, lambda: self._saves.hold(self._refused))
        self._lines: list[Way] = []  # windows in which lines are timed
        if self._config.lines:
            from feedline.profiling.watch.legs.lines import LinesWindow  # line_profiler: only where it is asked for

            self._lines.append(LinesWindow(feeds))
        self._batches: Batches | None = None
        self._handed_out: Generator[Any] | None = None
        self._way: Way | None = None  # whose window it is
        self._rows: list[LegRow] = []
        self._left_out: Counter[str] = Counter()  # windows by leg that there was no time for
        self._repeats = self._config.rounds  # windows that may be measured again because of what neighbours did
        self._interrupted = False
        """A pass has begun within the step: the script has left its own, or is inside another loader's."""
        self._ended_by = "steps"
        self._why = ""

    def hold(self, frame: FrameType) -> None:
        """The loop that trains asks for a batch there: it shall not leave its pass by its own count. Raises
        UsageError where it could not be left as it was."""
        if self._config.inside and (framework := counting.counted_by(frame)):
            raise UsageError(
                f"no legs in here: {framework} counts batches itself; feedline profile --legs SCRIPT can"
            )
        counting.hold(frame)

    def take_over(self, feed: Feed, why: str) -> None:
        """The verdict's steps are over."""
        self._capture.leave(None)
        self.directing = feed.directed = True
        self._ended_by = why
        self._batches = Batches(feed, self._capture.journal)
        self._saves.hold(self._refused)
        self._write()
        self._handed_out = self._windows(self._batches)

    def adopts(self, feed: Feed) -> bool:
        """A pass begins while it directs: whether over the training loader, which it goes on with."""
        assert self._batches is not None
        self._interrupted = True
        mine = self._batches.feed
        same = feed.loader is mine.loader
        if same or role(feed.place, feed.loader) == role(mine.place, mine.loader):
            self._batches.pass_on(feed)
            if self._way is not None:
                self._way.next_pass(self._batches)
            return True
        return False

    def next(self, feed: Feed) -> Any:
        """Raises Finished when there is nothing more to measure."""
        assert self._batches is not None and self._handed_out is not None
        if self._capture.ended_by is None and feed is not self._batches.feed:  # an older pass over it, beside
            return feed.draw()
        try:
            if self._capture.ended_by is None:  # else somebody has caught what should end the loop
                if self._capture.journal.has("interrupted"):
                    self._leave("interrupted by a signal", ended_by="signal")
                return next(self._handed_out)
        except NoMore:
            self._end("its loader had no more batches")
        except StopIteration:  # the loader has failed, and the script has caught that
            self._end("its loader has failed")
        except Finished:
            pass
        self._capture.finish()
        if not self._batches.cache.kept:
            raise Finished
        return self._batches.cache.next()  # until the thread that trains has heard of it

    # --- windows ------------------------------------------------------------------------------------------

    def _windows(self, batches: Batches) -> Generator[Any]:
        """What the loop is handed. Raises Finished behind the last window."""
        config, adapter, began = self._config, batches.feed.adapter, time.perf_counter()
        steps, rounds = self._agreed() if self._capture.facts.world_size > 1 else (None, config.rounds)
        steps = steps and -(-steps // batches.turn) * batches.turn
        counts = worker_counts(adapter.workers(batches.feed.loader))
        planned = plan(config.legs, adapter.kind, counts, rounds, self._lines, inside=config.inside)
        for way in planned:
            had = sum(row.leg == way.leg for row in self._rows)
            if steps is None and late(way.leg, had, time.perf_counter() - began):
                self._left_out[way.leg] += 1
                continue
            self._way = way
            self._write()
            row = yield from self._measured(way, batches, steps)
            while row is not None and row.disturbed and self._repeats and steps is None:
                self._repeats -= 1
                row = (yield from self._measured(way, batches, steps)) or row
            self._rows += [row] if row is not None else []
        self._way = None
        self._leave(self._what_was_left_out(len(planned), time.perf_counter() - began))

    def _what_was_left_out(self, planned: int, seconds: float) -> str:
        if not self._left_out:
            return ""
        never = [leg for leg in self._left_out if not any(row.leg == leg for row in self._rows)]
        which = f", all of {' and '.join(never)}" if never else ""
        return f"{self._left_out.total()} of {count_of(planned, 'window')} left out after {seconds:.0f} s{which}"

    def _measured(self, way: Way, batches: Batches, steps: int | None) -> Generator[Any, None, LegRow | None]:
        """One way, once."""
        neighbours = Neighbours(self._config.parent, ranks=self._capture.facts.world_size)
        if isinstance(way, LoaderOnly):
            with self._capture.unwatched():
                row = way.measure(batches, self._config.window_s, neighbours)
        else:
            row = yield from self._window(way, batches, neighbours, way.steps or steps)
        if row is None or self._config.window_s < SHORTEST_S:
            return row
        return row._replace(others=neighbours.others, idle=neighbours.idle)

    def _window(
        self, way: Way, batches: Batches, neighbours: Neighbours, wanted: int | None
    ) -> Generator[Any, None, LegRow | None]:
        """`wanted`: it has so many steps, however long they take (ranks turn together)."""
        skip = way.begin(batches)
        if skip is None:
            return None
        for _ in range(skip):
            yield way.batch(batches)
        cuda.settle_device()
        neighbours.begin()
        tally = Tally(self._config.window_s, LEAST_STEPS, way.turn(batches))
        while not (tally.steps >= wanted if wanted else tally.full) and not way.too_long(tally.elapsed_s):
            tally.asks()
            self._interrupted = False
            batch = way.batch(batches)
            samples, restarted = batches.samples(batch), batches.restarted
            yield batch
            tally.add(samples, apart=restarted or self._interrupted)
        cuda.settle_device()
        counted = tally.counted()
        neighbours.end()
        way.end()
        row = LegRow(way.leg, way.count, counted.samples, counted.seconds, None, counted.cpu_s, way.note, way.dropped)
        return None if way.steps else row

    def _agreed(self) -> tuple[int, int]:
        """Steps of a window, and rounds, as rank 0 says: as many as there is time for."""
        journal, until, config = self._capture.journal, time.monotonic() + AGREE_S, self._config
        if self._capture.rank == 0:
            now = time.perf_counter()
            seconds = now - (self._capture.stop.began or now)
            step_s = max(1e-4, seconds / max(1, self._capture.loop.train_steps - 1))
            steps = max(LEAST_STEPS, round(config.window_s / step_s))
            rounds = int(LIMIT_S / (len(config.legs) + 2) / (steps * step_s))
            journal.write("windows", {"steps": steps, "rounds": min(config.rounds, max(1, rounds))})
        while (agreed := journal.read("windows")) is None:
            if time.monotonic() > until:
                self._leave("rank 0 did not get to its windows")
            time.sleep(0.01)
        return agreed["steps"], agreed["rounds"]

    # --- the end ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        window = self._way.leg if self._way is not None else None
        state = {"rank": self._capture.rank, "windows": self._rows, "why": self._why, "window": window}
        self._capture.journal.write(f"legs-{os.getpid()}", state | {"ended_by": self._ended_by})

    def _refused(self, why: str) -> None:
        """A save of the script's own; nothing is lost by that after the last window."""
        if self._capture.ended_by is None:
            self._end(why)

    def _leave(self, why: str, ended_by: str = "") -> NoReturn:
        self._end(why, ended_by)
        raise Finished

    def _end(self, why: str, ended_by: str = "") -> None:
        if self._way is not None:
            self._way.end()
        self._why = why
        self._write()
        self._capture.leave(ended_by or self._ended_by)
        if self._batches is not None:
            self._batches.feed.release()


def late(leg: str, had: int, seconds: float) -> bool:
    """Whether a leg that had so many windows gets no other after so long."""
    return seconds > (LIMIT_S if had >= LEAST_WINDOWS.get(leg, 1) else MOST_S)
