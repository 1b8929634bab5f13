"""What the thread that trains does, sampled and written down; beside it the thread that pins, and loading itself.

The counterpart of `worker`: one sampler, sums by who did it, a row a second. DataLoader's pinning thread
(pin_memory=True) unpickles and pins batches before the training thread gets them: while that waits and this thread
works, the loop waits for unpickling or pinning, not for its workers.
"""

import functools
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any, Protocol

from feedline.profiling.record.journal import MOST_PATHS, Journal, StepRow
from feedline.profiling.watch.calls import called, takes_gradient
from feedline.profiling.watch.data_files import dataset_files
from feedline.profiling.watch.evidence import HelperThread, Spent, ThreadEvidence
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.gradients import Gradients
from feedline.profiling.watch.loader_stats import LoaderStats
from feedline.profiling.watch.parts import LoopCode, generated, has_weights, of_module, part, yields_batches
from feedline.profiling.watch.passes import Loop, Pass
from feedline.profiling.watch.rules import (
    TRAINER,
    WORKER,
    Place,
    classify,
    frames,
    is_in,
    is_library,
    is_ours,
    line_of,
    package,
    place_name,
    slashed,
)
from feedline.profiling.watch.sampler import TRAINER_HZ, StackSampler, TimeSums

PIN_LOOP, PIN = "_pin_memory_loop", "pin_memory"
"""torch's functions: the pinning thread's loop, and what pins a batch in it."""
STEP = "training_step"  # Lightning's name for what stands in the loop elsewhere, a method of what holds the model
LOADER, DRAW = "/torch/utils/data/dataloader.py", "_next_index"  # torch's function that asks a sampler
NETWORK = r"_?(socket|ssl)\b.*"  # calls that wait for it
MOST_THREADS = 16
BETWEEN_S = 0.02  # the least time of a row of looks that ends where a pass begins or ends
STEPS_SEEN, ONE_IN = 3, 8  # first steps of a pass at which its stack is looked at; of later ones one in so many


class WatchedLoop(Protocol):
    """`profiling.watch.capture.Capture`."""

    asking: Pass | None
    loop: Loop
    ours: Counter[int]
    gradients: Gradients

    @property
    def hands_itself(self) -> bool: ...
    def flush(self) -> None: ...


class TrainerWatch:
    """Of the thread that makes it, until another one trains. `on_device`: whether the model computes on one."""

    def __init__(self, loop: WatchedLoop, journal: Journal, on_device: Callable[[], bool]) -> None:
        self._watched = loop
        self._journal = journal
        self._on_device = on_device
        for rules in (WORKER, TRAINER):
            rules.stage_of_call("")  # so that its patterns are compiled here: forked workers have them then
        self._pid = os.getpid()
        self.follow()
        self._loop = LoopCode()
        self._main = TimeSums()
        self._loading: dict[int, TimeSums] = {}  # by loader: what a loader without workers did in this thread
        self._steps_seen, self._trains = 0, False
        self._row: tuple[StepRow | None, bool, float] = None, False, 0.0
        """The loop's row as the last look began, whether it had been trained on then, and for how long."""
        self._apart = False  # it is between two passes
        self._held: list[tuple[Place, Place, float, Spent]] = []
        self._held_for: tuple[StepRow | None, float] = None, 0.0
        self._prepares = set[str]()
        """Places that make batches, or parts of them: seen between a draw and the step on it."""
        self._asked: Pass | None = None  # the pass that the loop has asked last
        self._pin_thread = HelperThread(lambda: self._asked.pin_thread if self._asked is not None else None)
        self._beside: dict[int | None, ThreadEvidence] = {}  # of the script's other threads, by their native ids
        self._stats: dict[int, LoaderStats] = {}
        self._loaders = set[int]()
        self.listed: list[str] = []  # files of the datasets
        self._draw = random.Random(self._pid).choice  # not the global one: it is the script's
        self.sampler = StackSampler(self._look, journal, rate_hz=TRAINER_HZ)

    def follow(self) -> None:
        """The calling thread is the one that trains."""
        self.thread = threading.get_ident()
        self._evidence = ThreadEvidence(threading.get_native_id())

    def stop(self) -> None:
        """No look follows, and the loop's row is over: so is what was held for it."""
        self.sampler.stop()
        self._settle()

    def see_step(self, frame: FrameType | None) -> None:
        """An optimiser steps; `frame` is of whoever asked it to. What has done so before is looked at a few times a
        pass only."""
        self._trains = True
        self._steps_seen += 1
        if self._steps_seen > STEPS_SEEN and self._steps_seen % ONE_IN:
            return
        for one in frames(frame):
            code = one.f_code
            if (self._steps_seen <= STEPS_SEEN or code not in self._loop.steps) and not is_ours(code.co_filename):
                self._loop.steps.add(code)
                self._loop.stepped[code] = max(line_of(one), self._loop.stepped.get(code, 0))

    def see_draw(self, frame: FrameType) -> None:
        """A loader is asked; `frame` is of whoever does, perhaps for a loop further out."""
        for code in (one.f_code for one in frames(frame) if not is_ours(one.f_code.co_filename)):
            yields = yields_batches(code) or code.co_name == "<genexpr>"
            if yields and TRAINER.stage_of(code, code.co_firstlineno) != "logging":
                self._loop.between.add(code)

    def see_loader(self, loader: Any, number: int, rank: int) -> None:
        """A pass begins."""
        self._steps_seen = 0
        if number not in self._loaders:
            self._loaders.add(number)
            self.listed += quietly(lambda: dataset_files(loader.dataset, MOST_PATHS)) or []
        if number not in self._stats and hasattr(loader, "worker_pids") and callable(getattr(loader, "stats", None)):
            self._stats[number] = LoaderStats(loader, number, rank)

    def _look(self, frames_by_thread: dict[int, FrameType], seconds: float, held: bool | None) -> None:
        frame, asking, row = frames_by_thread.get(self.thread), self._watched.asking, self._watched.loop.row
        if frame is None:
            return
        # Now: the thread runs on as soon as evidence is read, and the row is another one, while its stack stays.
        self._cut(row, seconds)
        self._row = row, row is not None and row.trained, _trained_s(row)
        self._asked = asking or self._asked
        spent = self._evidence.spent()
        blocked = functools.partial(self._evidence.mostly_blocked_in, spent, seconds)
        if asking is not None and asking.in_trainer:
            drawn = drawing(frame)
            if drawn is None and asking.loader not in self._stats:
                self._loading.setdefault(asking.loader, TimeSums()).add(classify(frame, blocked), seconds, spent)
            self._main.add(drawn or Place("load", "loader"), seconds, spent)
        else:
            hands_itself = self._watched.hands_itself
            loop = self._loop if hands_itself or asking is None else None
            place = part(frame, on_device=self._on_device(), loop=loop, blocked=blocked(), held=held,
                         hands_itself=hands_itself, trains=self._trains)  # fmt: skip
            if self._watched.ours[self.thread] and asking is None:  # a pass begins: its workers start
                place = drawing(frame) or Place("wait", place.where)
            pin_frame, pin_cpu_s = self._pin_thread.look(frames_by_thread)
            pinning = pin_work(pin_frame)
            if asking is not None and place.stage not in ("unpickle", "pin"):
                place = asked_for(frame, place, pinning, working=not blocked())
            if asking is not None and place.stage == pinning:
                spent = Spent((spent.cpu_s or 0.0) + (pin_cpu_s or 0.0), spent.delay_s)
            elif asking is None and place.stage == "wait" and hands_itself:
                place = Place("wait", self._maker(frames_by_thread) or "")
            self._settle()
            if asking is None and place.stage in ("python", "forward") and self._is_between(frame, place.stage):
                self._between(place, seconds, spent)
            elif asking is None and place.stage in ("forward", "wait") and self._is_aside(frame, place.stage):
                self._hold(Place("python", place.where), place, seconds, spent)
            else:
                if place.stage == "forward":
                    self._watched.gradients.see_forward(frame)
                self._main.add(self._of_loss(frame, place), seconds, spent)
        self._see_beside(frames_by_thread)
        if self._main.due:
            self._watched.flush()

    def _cut(self, row: StepRow | None, seconds: float) -> None:
        """What the script does between two passes is of no step, and told apart. How a pass begins is told of the
        loop."""
        apart = row is None and self._watched.asking is None and not self._watched.ours[self.thread]
        if apart != self._apart:
            looked = time.perf_counter() - (0.0 if apart else seconds)  # at a gap's end: the last time within it
            self._main.cut(self.sampler.cpu_s, looked, BETWEEN_S)
            self._apart = apart

    def _see_beside(self, frames_by_thread: dict[int, FrameType]) -> None:
        """What the process's other Python threads compute meanwhile: they share its cores, and Python's lock."""
        known, self._beside = self._beside, {}
        for thread in islice(threading.enumerate(), MOST_THREADS):
            frame = frames_by_thread.get(thread.ident or 0)
            if thread.ident == self.thread or thread is self.sampler or _own(frame) is None:
                continue
            number = thread.native_id
            evidence = self._beside[number] = known.get(number) or ThreadEvidence(number)
            if frame is not None and (cpu_s := evidence.spent().cpu_s):
                self._main.add_beside((own_work(frame) or "").rpartition(":")[0], cpu_s)

    def _between(self, place: Place, seconds: float, spent: Spent) -> None:
        """A look in a generator. Before the loop trains, or trains again, on what was drawn last it makes batches,
        and so it does at the same place at any time: one that batches anew works on the rest of a batch behind a
        step. What else it does behind that is the script's own, as a callback is."""
        row, trained, _ = self._row
        if row is None or trained:
            makes = Place("prepare", place.where)
            self._hold(makes if place.where in self._prepares else place, makes, seconds, spent)
        else:
            if place.where:
                self._prepares.add(place.where)
            self._main.add(Place("prepare", place.where), seconds, spent)

    def _hold(self, place: Place, again: Place, seconds: float, spent: Spent) -> None:
        """A look that is told once it is known whether the loop trains `again` on what was drawn last."""
        row, _, trained_s = self._row
        self._held.append((place, again, seconds, spent))
        self._held_for = row, trained_s

    def _settle(self) -> None:
        row, trained_s = self._held_for
        trains = _trained_s(row) > trained_s
        if trains or self._watched.loop.row is not row:
            for place, again, seconds, spent in self._held:
                self._main.add(again if trains else place, seconds, spent)
            self._held.clear()

    def _is_aside(self, frame: FrameType, stage: str) -> bool:
        """Whether torch is asked for something behind a training step, in no model and not of what one has computed:
        as by a callback that measures weights. On a device it may be that step which takes long there, where ranks
        meet the others'. Or whether the network is waited for there, as by a callback that reports to a server."""
        _, trained, _ = self._row
        if not trained or self._watched.hands_itself:
            return False
        if stage == "wait":
            return re.fullmatch(NETWORK, called(frame) or "") is not None
        if self._on_device() or takes_gradient(frame, weights=False):
            return False
        for one in frames(frame):
            if one.f_code in self._loop.steps:
                return True
            if has_weights(one) or is_in(one.f_code, "/torch/distributed/"):
                return False
        return False

    def _of_loss(self, frame: FrameType, place: Place) -> Place:
        """A look at the forward pass, which is `loss` where a function that the loop calls asks torch for something
        in no module that has weights."""
        if place.stage != "forward" or not place.where:
            return place
        own = False
        for one in frames(frame):
            if one.f_code in self._loop.steps or (one.f_code.co_name == STEP and of_module(one)):
                return Place("loss", place.where) if own else place
            if has_weights(one) or of_module(one) or generated(one):
                break
            own = own or not (is_library(one.f_code.co_filename) or is_ours(one.f_code.co_filename))
        return place

    def _is_between(self, frame: FrameType, stage: str) -> bool:
        """Whether it works in or for a generator that stands between a loader and the loop, and is no model."""
        loop = self._loop
        if not loop.steps or self._watched.hands_itself:
            return False
        for depth, one in enumerate(frames(frame)):
            if one.f_code in loop.steps:
                break
            if one.f_code in loop.between:
                models = any(map(has_weights, islice(frames(frame), depth)))
                return not (models or (stage == "forward" and takes_gradient(frame)))
        return False

    def _maker(self, frames_by_thread: dict[int, FrameType]) -> str | None:
        """Where another thread of the script works meanwhile, one of them by chance: it may make what this one waits
        for."""
        others = [frame for thread, frame in frames_by_thread.items() if thread != self.thread]
        places = [place for frame in others if (place := own_work(frame)) is not None]
        return self._draw(places) if places else None

    def write(self) -> None:
        """Rows since the last time."""
        self._journal.append(f"main-{self._pid}", self._main.take(self.sampler.cpu_s))
        for stats in list(self._stats.values()):  # another thread may begin a pass meanwhile
            stats.write(self._journal)
        for loader, sums in self._loading.items():
            self._journal.append(f"loading-{self._pid}-{loader}", sums.take(self.sampler.cpu_s))


def _trained_s(row: StepRow | None) -> float:
    return 0.0 if row is None else row.backward_s + row.optimizer_s


def own_work(frame: FrameType) -> str | None:
    """The innermost place of the script's own in a thread's stack; None where there is none, or it waits there."""
    if classify(frame).stage in ("lock", "blocked"):
        return None
    own = _own(frame)
    return None if own is None else f"{place_name(own.f_code)}:{line_of(own)}"


def _own(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the script's own."""
    files = ((one, one.f_code.co_filename) for one in frames(frame))
    return next((one for one, file in files if not (is_library(file) or is_ours(file))), None)


def asked_for(frame: FrameType, place: Place, pinning: str | None, *, working: bool) -> Place:
    """What the thread does while its loader is asked: wait, draw samples for the workers, or change what they have
    made, in the innermost function that is not torch's, or called by it (`__torch_function__`): of a package with its
    module, as `--lines-of` takes it."""
    if (drawn := drawing(frame)) is not None:
        return drawn
    if not working or place.stage not in ("forward", "python"):
        return Place(pinning or "wait", place.where)
    for one in frames(frame):
        code, file = one.f_code, slashed(one.f_code.co_filename)
        if "/torch/utils/data/" in file or "/multiprocessing/" in file:
            break  # torch's own loader takes a batch apart
        aside = is_ours(file) or "/torch/" in file or (is_library(file) and not package(file))
        if not aside and not code.co_name.startswith("__"):
            return Place("change", _named(one))
    return Place("wait", place.where)


def drawing(frame: FrameType | None) -> Place | None:
    """Where a sampler works that torch asks there: in the script's innermost function, else in the innermost."""
    inner = None
    for one in frames(frame):
        if one.f_code.co_name == DRAW and slashed(one.f_code.co_filename).endswith(LOADER):
            return Place("draw", _named(inner) if inner is not None else "")
        if is_ours(one.f_code.co_filename):
            continue
        if inner is None or (is_library(inner.f_code.co_filename) and not is_library(one.f_code.co_filename)):
            inner = one
    return None


def _named(frame: FrameType) -> str:
    """Its function's name and the line: of a package with its module, as `--lines-of` takes it."""
    name = place_name(frame.f_code)
    if package(frame.f_code.co_filename):
        name = f"{frame.f_globals.get('__name__')}:{name.partition(':')[2]}"
    return f"{name}:{line_of(frame)}"


def pin_work(frame: FrameType | None) -> str | None:
    """What the pinning thread does, unpickle or pin; None when it waits for a batch, or for room to put one."""
    for one in frames(frame):
        if one.f_code.co_name == PIN_LOOP:
            return None
        if one.f_code.co_name == PIN:
            return "pin"
        if TRAINER.stage_of(one.f_code, one.f_lineno) == "unpickle":
            return "unpickle"
    return None
