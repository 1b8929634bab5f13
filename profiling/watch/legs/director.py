"""Differential legs: what the training loop's rate is when data is free, and the loader's when nobody else works.

One fresh process of the same script, in which the training loader's iterator is directed: windows of normal running,
of cached batches handed out again and again (the ceiling), of these beside processes that burn CPU, and of draining
the loader with the script standing still (the loader alone, at several numbers of workers), in an order that turns
from round to round so that drift cancels. What cannot be taken back comes at the end: cached batches with freed
memory kept, as they are and laid out as feedline's loader hands them over, in turn; and a window with the data's
files dropped from the page cache.

The loop is held inside its epoch: a loader that runs out starts again. At the end `Finished` is raised in the loop.
What the script writes meanwhile goes elsewhere (`profiling.watch.legs.write_guard`).

After a window in which the loop did not draw from the loader its queue is full, so a window that does starts with as
many batches as could be queued left out.
"""

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from feedline.pipeline.base.process import children_cpu_seconds, keep_freed_memory
from feedline.profiling.watch import cuda
from feedline.profiling.watch.batches import batch_samples
from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.data_paths import MOST_PATHS
from feedline.profiling.watch.legs.cached import Cache
from feedline.profiling.watch.legs.cpu_burners import Crowd
from feedline.profiling.watch.legs.page_cache import Dropped, drop
from feedline.profiling.watch.legs.write_guard import Withhold
from feedline.profiling.watch.passes import Pass

if TYPE_CHECKING:
    from feedline.profiling.watch.hooks import Hooks

SETTLE_STEPS = 2  # of a window, left out: the first replayed batch still finds the last step's work
LEAST_STEPS = 4  # of a window, however long they take
FINISHED_S, FINISH_MOST_S = 0.1, 5.0
"""Workers that were idle for so long have no batch to make; nobody waits longer than that for it."""
CACHED = ("cached", "crowded", "kept", "laid_out")
"""Legs in which the loop is handed kept batches."""
KEPT = ("kept", "laid_out")
"""Those with freed memory kept, where the model computes on the CPU."""


@dataclass
class Window:
    """One leg, once."""

    leg: str
    count: int | None = None
    """loader_only: with so many workers, None for the script's own loader; crowded: beside so many busy processes."""
    skip: int = 0
    """Batches still to be left out."""
    started: float = 0.0
    samples: int = 0
    steps: int = 0
    seconds: float = 0.0
    trainer_cpu_s: float = 0.0
    """All threads of this process."""
    worker_cpu_s: float | None = None
    note: str = ""
    dropped: float | None = None
    """cold: the share of the data's files that were out of memory when it began."""

    def to_list(self) -> list[Any]:
        return [
            self.leg, self.count, self.samples, self.seconds, self.worker_cpu_s, self.note, self.dropped,
            self.trainer_cpu_s,
        ]  # fmt: skip


class Director:
    """Decides what the training loader's `next` gives. Other loaders run as they are."""

    def __init__(self, capture: Capture, hooks: "Hooks") -> None:
        options = capture.options
        self._capture = capture
        self._hooks = hooks
        self._window_s = options.window_s
        self._window_steps = options.window_steps
        self._plan = list(plan(options.legs, options.worker_counts, options.crowds, options.rounds))
        self._done: list[Window] = []
        self._window: Window | None = None
        self._cache = Cache()
        self._laid_out: Cache | None = None
        self._crowd: Crowd | None = None
        self._restarted = False
        """The batch that was drawn last is the first of a pass."""
        self._handed_first: float | None = None
        """When it was handed to the loop."""
        self._next: Callable[[], Any] | None = None
        self._deadline: float | None = None
        self._trained_batches = 0

    @classmethod
    def prepare(cls, capture: Capture, hooks: "Hooks") -> None:
        """Set a script up for its legs, before anything of it runs."""
        withhold = Withhold(Path(capture.options.scratch), capture.journal)
        withhold.install()
        capture.withhold = withhold
        capture.director = cls(capture, hooks)

    # --- called for every batch of every loader -----------------------------------------------------------

    def next(self, one: Pass, original: Callable[[], Any]) -> Any:
        if one.loader != self._capture.options.loader:
            return original()
        if self._next is None:
            batch = original()
            self._trained_batches += 1
            if self._trained_batches <= self._queue_length(one) + SETTLE_STEPS:
                return batch
            self._take_over(one, original)
            return batch
        return self._direct(one)

    def _take_over(self, one: Pass, original: Callable[[], Any]) -> None:
        self._next = original
        self._deadline = time.perf_counter() + self._capture.options.limit_s
        self._turn(one)

    def _direct(self, one: Pass) -> Any:
        while True:
            window = self._window
            if window is None:
                self._leave()
            elif window.leg == "loader_only":
                self._drain(one, window)
                self._turn(one)
            elif self._over(window):
                self._turn(one)
            else:
                return self._hand_out(one, window)

    def _hand_out(self, one: Pass, window: Window) -> Any:
        if window.skip:
            window.skip -= 1
            window.started = 0.0
        elif not window.started:
            cuda.settle_device()
            window.started, window.trainer_cpu_s = time.perf_counter(), -time.process_time()
        cache = self._laid_out if window.leg == "laid_out" else self._cache if window.leg in CACHED else None
        batch = cache.next() if cache is not None else self._draw(one)
        if window.leg == "normal":
            self._cache.keep(batch)
        if window.started:
            window.samples += batch_samples(batch) or 0
            window.steps += 1
            if self._restarted:
                self._handed_first = time.perf_counter()
        self._restarted = False
        return batch

    def _over(self, window: Window) -> bool:
        if not window.started:
            return False
        if self._handed_first is not None:
            window.started += time.perf_counter() - self._handed_first  # the step still counts: ranks count alike
            self._handed_first = None
        seconds = time.perf_counter() - window.started
        enough = (
            window.steps >= self._window_steps
            if self._window_steps
            else seconds >= self._window_s and window.steps >= LEAST_STEPS
        )
        if enough:
            cuda.settle_device()
            window.seconds = time.perf_counter() - window.started
            window.trainer_cpu_s += time.process_time()
        return enough

    def _turn(self, one: Pass) -> None:
        """The next window of the plan."""
        if self._crowd is not None:
            self._crowd.leave()
            self._crowd = None
        if self._window is not None and self._window.seconds:
            self._done.append(self._window)
            self._write()
        if self._deadline is not None and time.perf_counter() > self._deadline and not self._window_steps:
            done = {window.leg for window in self._done}
            self._plan = [window for window in self._plan if window.leg not in done]
        if self._plan and self._plan[0].leg in CACHED and not self._cache.batches:
            self._cache.keep(self._draw(one))
        if self._plan and self._plan[0].leg == "laid_out" and not self._lay_out():
            self._plan = [window for window in self._plan if window.leg != "laid_out"]
        if not self._plan:
            self._window = None
            return
        window = self._plan.pop(0)
        if window.leg in KEPT and cuda.in_use() is None:
            keep_freed_memory()
        if window.leg in CACHED:
            let_workers_finish()
        if window.leg == "crowded":
            self._crowd = Crowd(window.count or 1)
        if window.leg == "cold":
            dropped = self._drop_files(one)
            window.note, window.dropped = dropped.note, dropped.share
        window.skip = SETTLE_STEPS if window.leg in CACHED else self._queue_length(one) + 1
        self._handed_first = None
        self._window = window

    def _lay_out(self) -> bool:
        """Whether there are images to lay out."""
        self._laid_out = self._laid_out or self._cache.laid_out()
        return self._laid_out is not None

    # --- the loader ---------------------------------------------------------------------------------------

    def _draw(self, one: Pass) -> Any:
        """A batch of the script's own loader, from its beginning again when it has run out."""
        draw = self._next
        assert draw is not None
        try:
            return draw()
        except StopIteration:
            stopped = time.perf_counter()
            loader = _target(one)
            if loader is None:
                self._leave("its loader was gone before the legs were done")
            with self._hooks.unwatched():
                self._next = draw = iter(loader).__next__
            batch = draw()
            self._leave_out(batch, time.perf_counter() - stopped)
            return batch

    def _leave_out(self, batch: Any, seconds: float) -> None:
        """A pass's start and first batch, the step with it included, are warm-up, as in the verdict."""
        self._restarted = True
        if self._window is not None and self._window.started:
            self._window.started += seconds
            self._window.samples -= batch_samples(batch) or 0

    def _queue_length(self, one: Pass) -> int:
        loader = _target(one)
        workers = getattr(loader, "num_workers", 0) or 0
        return workers * (getattr(loader, "prefetch_factor", None) or 2)

    def _drain(self, one: Pass, window: Window) -> None:
        if window.count is None:
            self._drain_from(lambda: self._draw(one), window, self._queue_length(one) + 1)
            return
        loader = with_workers(_target(one), window.count)
        if loader is None:
            return
        with self._hooks.unwatched():
            again = Endless(loader)
            skip = window.count * (getattr(loader, "prefetch_factor", None) or 2) + window.count
            self._drain_from(again.__next__, window, skip)
            again.close()

    def _drain_from(self, draw: Callable[[], Any], window: Window, skip: int) -> None:
        for _ in range(skip):
            draw()
        self._restarted = False
        window.started = time.perf_counter()
        cpu_s = children_cpu_seconds()
        while window.seconds < self._window_s or window.steps < LEAST_STEPS:
            window.samples += batch_samples(draw()) or 0
            window.steps += 1
            window.seconds = time.perf_counter() - window.started
        after_s = children_cpu_seconds()
        window.worker_cpu_s = after_s - cpu_s if after_s > cpu_s else None

    def _drop_files(self, one: Pass) -> Dropped:
        """Where only the files that were seen are known, and these were not all, nobody knows how cold it is."""
        listed, seen = dataset_files(getattr(_target(one), "dataset", None)), self._capture.options.paths
        dropped = drop(list(dict.fromkeys([*listed, *seen])))
        if listed or len(seen) < MOST_PATHS:
            return dropped
        return Dropped(None, f"{dropped.note}; the data has more files than these, and they were left alone")

    # --- the end ------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._capture.journal.write(
            f"legs-{os.getpid()}", {"rank": self._capture.rank, "windows": [one.to_list() for one in self._done]}
        )

    def _leave(self, why: str = "") -> NoReturn:
        self._write()
        self._capture.error = why or None
        self._capture.leave("steps")
        raise Finished


def plan(
    legs: tuple[str, ...], worker_counts: tuple[int, ...], crowds: tuple[int, ...], rounds: int
) -> Iterator[Window]:
    """Every leg once a round, the order turned by one each time. Those that keep memory come after them, in turn,
    since that cannot be undone; the cold one once, at the very end: whatever ran after it would read files from
    storage that it had in memory before."""
    once: list[tuple[str, int | None]] = []
    for leg in legs:
        if leg == "loader_only":
            once += [(leg, None), *((leg, count) for count in worker_counts)]
        elif leg == "crowded":
            once += [(leg, count) for count in crowds]
        elif leg not in (*KEPT, "cold"):
            once.append((leg, None))
    for turn in range(rounds):
        for position in range(len(once)):
            yield Window(*once[(position + turn) % len(once)])
    for turn in range(rounds):
        for leg in KEPT[:: -1 if turn % 2 else 1]:
            if leg in legs:
                yield Window(leg)
    if "cold" in legs:
        yield Window("cold")


def _target(one: Pass) -> Any:
    source = one.source
    return source() if isinstance(source, weakref.ref) else source


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
        shutdown = getattr(self.iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self.iterator = None


def with_workers(loader: Any, count: int) -> Any:
    """A loader like a script's own with another number of workers; None where that cannot be made."""
    import torch.utils.data as data

    if not isinstance(loader, data.DataLoader):
        return None
    wanted: dict[str, Any] = {
        name: getattr(loader, name) for name in ("collate_fn", "pin_memory", "worker_init_fn", "generator", "timeout")
    }
    if isinstance(loader.dataset, data.IterableDataset):
        wanted["batch_size"] = loader.batch_size
        wanted |= {} if loader.batch_size is None else {"drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        wanted["batch_sampler"] = loader.batch_sampler
    else:
        wanted |= {"batch_size": None, "sampler": loader.sampler}
    if count:
        wanted["multiprocessing_context"] = loader.multiprocessing_context
        wanted |= {"prefetch_factor": loader.prefetch_factor} if loader.prefetch_factor else {}
    try:
        return data.DataLoader(loader.dataset, num_workers=count, **wanted)
    except (TypeError, ValueError):
        return None


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


def dataset_files(dataset: Any) -> list[str]:
    """Paths a dataset lists itself: torchvision's `samples`, and the usual names for a list of paths."""
    from feedline.profiling.watch.facts import innermost

    held = vars(innermost(dataset)) if hasattr(innermost(dataset), "__dict__") else {}
    for name in ("samples", "imgs", "files", "paths", "image_paths", "img_paths", "filenames", "images", "urls"):
        members = held.get(name)
        if isinstance(members, list | tuple) and members:
            first = [one[0] if isinstance(one, list | tuple) and one else one for one in members]
            found = [str(one) for one in first if isinstance(one, str | os.PathLike)]
            if found and Path(found[0]).is_file():
                return found
    return []


def summarise(windows: list[tuple[int, list[Any]]]) -> list[dict[str, Any]]:
    """Windows of all ranks, (rank, `Window.to_list`) -> keys of `recording.Leg`; ranks' rates add up."""
    ranks = len({rank for rank, _ in windows}) or 1
    legs: dict[tuple[str, int | None], dict[int, list[list[Any]]]] = {}
    for rank, window in windows:
        legs.setdefault((window[0], window[1]), {}).setdefault(rank, []).append(window)
    found: list[dict[str, Any]] = []
    for (name, num_workers), by_rank in legs.items():
        turns = min(len(members) for members in by_rank.values()) if len(by_rank) == ranks else 0
        columns = [[members[turn] for members in by_rank.values()] for turn in range(turns)]
        cpu = [one[4] / one[2] for column in columns for one in column if one[4] is not None and one[2]]
        notes = Counter(one[5] for column in columns for one in column if one[5])
        found.append(
            {
                "name": name,
                "num_workers": num_workers,
                "samples_per_s": [sum(one[2] / one[3] for one in column if one[3]) for column in columns],
                "window_s": [max(one[3] for one in column) for column in columns],
                "worker_cpu_s_per_sample": sum(cpu) / len(cpu) if cpu else None,
                "trainer_cpu_s_per_sample": [
                    sum(one[7] for one in column) / max(1, sum(one[2] for one in column))
                    for column in columns
                    if name != "loader_only"
                ],
                "note": "; ".join(notes),
                "dropped": min((one[6] or 0.0 for column in columns for one in column), default=None)
                if name == "cold"
                else None,
            }
        )
    return found
