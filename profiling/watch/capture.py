"""The state of a profiled trainer process: what its loop does, what was seen of it, and when that is enough.

Hooks (`profiling.watch.hooks`) tell it what happens; it keeps one row a batch (`passes`), samples the thread that
trains (`trainer`), and writes all of it to the journal every second.
"""

import os
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from types import FrameType
from typing import Any, Protocol, TypeVar

from feedline.profiling.record.journal import Journal, StepRow, StudyConfig
from feedline.profiling.watch import facts
from feedline.profiling.watch.batches import describe, sizes
from feedline.profiling.watch.gradients import Gradients
from feedline.profiling.watch.passes import Loop, Pass
from feedline.profiling.watch.rules import own_place
from feedline.profiling.watch.stop import ENDED, Reason, StopRule
from feedline.profiling.watch.trainer import TrainerWatch

T = TypeVar("T")

TIMED = 10
"""One call in so many, drawn by lot, is timed and stands for all: asking the clock costs more than most of them."""
COUNTED, COUNTED_FIRST = 16, 32
"""One batch in so many has its page faults counted, and the first so many behind the warm-up: steps may be long."""
WARM_STEPS = 5  # training steps whose page faults do not count: the allocator is still growing
MOST_PLACES, SYNCS_FIRST = 32, 1000  # of hidden synchronisations: told; looked up (dear: of later ones one in TIMED)
MOST_STEPS = 16
"""Optimiser steps behind one batch. A loop that makes more asks another source: that batch's pass was broken off."""
SAY_S = 2.0  # how often the facts are written again; rows are written as they come


class Finished(SystemExit):
    """Raised in the script's loop when enough was seen. Not an Exception, so that `except Exception` lets it pass."""


class Device(Protocol):
    """`profiling.watch.cuda.Device`."""

    def optimizer_stepped(self, row: StepRow) -> None: ...
    def step_ended(self) -> None: ...
    def step_begins(self, rows: Sequence[StepRow]) -> None: ...
    def read(self) -> None: ...
    def waiting(self) -> set[int]: ...


class Capture:
    """One per profiled process. Every public method is called from the script's own thread and must be cheap."""

    def __init__(self, journal: Journal, config: StudyConfig) -> None:
        self.journal = journal
        self.config = config
        self.rank = 0  # asked again at every pass: the script initialises torch.distributed after us
        self.pid = os.getpid()
        self.origin = time.perf_counter()
        self.active = True  # False once nothing more is to be seen: every hook passes straight through
        self.ours = Counter[int]()
        """By thread, above 0 while it works for us: loaders that it iterates over then are not the script's."""
        self.error: str | None = None
        self.ended_by: str | None = None
        self.over = False  # that thread shall leave its loop; another one has learned of it
        self.diagnosing = False  # the verdict's steps are over, other windows follow
        self.optimizer_steps = 0
        self.trainer: int | None = None  # the thread that trains, once one has
        self.asking: Pass | None = None  # the pass that the loop waits for
        self.loop = Loop()
        self.loaders = facts.Loaders()
        self.facts = facts.Facts()
        self.gradients = Gradients()
        self.stop = StopRule(config, journal)
        self.device: Device | None = None
        self.hook_s = 0.0  # CPU time of what hooks do (`costing`): what watching costs the script's own thread
        self.watch: TrainerWatch | None = None
        self._draw = random.Random(1).random  # not the global one: it is the script's
        self._starting, self._flushing = threading.Lock(), threading.Lock()
        self._said = float("-inf")
        self._pacer = self._others = 0
        """The optimiser whose steps are a loop's, where it asks no watched loader itself; steps of others since."""
        self._background: int | None = None  # the loader that such a loop's batches come from
        self._drawn = dict[int, tuple[int, int]]()  # by loader, samples and bytes of its last batch
        self._syncs, self._sync_places = 0, Counter[tuple[int, str]]()
        self._stepped = 0  # optimiser steps before the last batch came
        self._counted: tuple[StepRow, resource.struct_rusage] | None = None
        """The row whose page faults are counted, and what they were as it began."""

    @contextmanager
    def unwatched(self) -> Generator[None]:
        """Iterators made and asked in here belong to us, not to the script."""
        thread = threading.get_ident()
        self.ours[thread] += 1
        try:
            yield
        finally:
            self.ours[thread] -= 1

    def costing(self, work: Callable[..., T], *args: Any) -> T:
        """What `work` gives; its CPU time is ours."""
        if self._draw() * TIMED > 1.0:
            return work(*args)
        began_s = time.thread_time()
        try:
            return work(*args)
        finally:
            self.hook_s += TIMED * (time.thread_time() - began_s)

    def begin_pass(self, loader: Any, kind: str, *, place: str = "") -> Pass:
        """A loader's iterator was asked for, by the loop at `place`."""
        self._see_rank()
        self.start()
        number = self.loaders.number(loader, kind, place)
        in_trainer = not self.loaders.about[number]["num_workers"]
        assert self.watch is not None
        self.watch.see_loader(loader, number, self.rank)
        background = self.trainer not in (None, threading.get_ident())
        if background:
            self.loaders.about[number]["background"] = True
        return self._begun(number, in_trainer=in_trainer, background=background)

    def go_on(self, of: Pass) -> Pass:
        """A pass that was taken to be over goes on, as another one."""
        begun = self._begun(of.loader, in_trainer=of.in_trainer)
        begun.resumed, begun.pin_thread = True, of.pin_thread
        return begun

    def _begun(self, loader: int, *, in_trainer: bool, background: bool = False) -> Pass:
        begun, ended = self.loop.begin(loader, time.perf_counter(), in_trainer=in_trainer, background=background)
        for row in ended:
            self._closed(row)
        return begun

    def to_background(self, drawn: Pass) -> None:
        """Another thread than the one that trains draws its batches."""
        self.loaders.about[drawn.loader]["background"] = True
        if drawn.batches:
            self._background = drawn.loader
        self.loop.to_background(drawn)

    def end_in_background(self, ending: Pass) -> None:
        """It is exhausted; the loop goes on with what it has trained on."""
        ending.over = True
        self.loop.finish(ending, time.perf_counter())
        if self.loop.own is not None:
            self._background = self.loop.own.loader

    def ask(self, by: Pass) -> None:
        """The loop asks for the next batch."""
        by.asked, by.thread = time.perf_counter(), threading.get_ident()
        self.costing(self._ask, by)

    def _ask(self, by: Pass) -> None:
        if self.device is not None:  # before the row is closed: a closed one without marks is written
            self.device.step_ended()
        self._closed(self.loop.close(by, by.asked))
        self.asking = by

    def got(self, by: Pass, batch: Any) -> None:
        now = time.perf_counter()
        if "batch_bytes" not in (about := self.loaders.about[by.loader]):
            about.update(describe(batch))
        self.costing(self._got, by, batch, now)

    def _got(self, by: Pass, batch: Any, now: float) -> None:
        samples, size = sizes(batch, self.loaders.about[by.loader]["batch_size"])
        self._drawn[by.loader] = samples or 0, size
        if by.background:  # perhaps since it asked
            self._background = by.loader
            return
        self.asking = None if self.asking is by else self.asking
        waited = self.loop.got(by, now, samples or 0, size)
        if self.device is not None:
            self.device.step_begins(waited)
        self._stepped = self.optimizer_steps
        if not self.loop.rows % COUNTED or self.loop.rows < WARM_STEPS + COUNTED_FIRST:
            self._counted = waited[0], resource.getrusage(resource.RUSAGE_SELF)

    def end_pass(self, ending: Pass, *, exhausted: bool) -> None:
        """The iterator is exhausted, or has failed."""
        self.asking = None if self.asking is ending else self.asking
        self._closed(self.loop.end(ending, time.perf_counter(), exhausted=exhausted))
        if exhausted and ending.trained:  # after an error nothing may come between it and the script
            self._ask_for_refusals()

    def _ask_for_refusals(self) -> None:
        """Of loaders that the script still has: later they are gone."""
        with self.unwatched():
            for number, loader in self.loaders.alive():
                about = self.loaders.about[number]
                if about["kind"] == "torch" and "refused" not in about:
                    about["refused"] = facts.refused(loader)

    def _closed(self, row: StepRow | None) -> None:
        if row is None:
            return
        if row.trained or not self.loop.any_trained:  # batches that are evaluated have a rate of their own
            self.stop.steadiness.add(row.start_s + row.duration_s, row.samples, row.duration_s - row.pause_s)
        if self._counted is None or row is not self._counted[0]:
            return
        if self.loop.train_steps > WARM_STEPS and row.trained and not row.pause_s:
            self.facts.see_usage(self._counted[1])

    def backward(self, seconds: float) -> None:
        if (row := self.trains_here()) is not None:
            row.backward_s += seconds
            row.trained = True

    def optimizer_step(self, seconds: float, optimizer: int = 0, frame: FrameType | None = None) -> None:
        """Raises Finished when enough was seen of a loop whose batches come from no loader that it asks itself: the
        steps of its first `optimizer` are the training steps then. `frame`: of the call."""
        self.optimizer_steps += 1
        row, loop = self.trains_here(), self.loop
        if threading.get_ident() != self.trainer:
            return
        if self.watch is not None:
            self.watch.see_step(frame)
        if row is not None:
            row.optimizer_s += seconds
            row.trained = True
            if self.device is not None:
                self.device.optimizer_stepped(row)
        ended, long = loop.current is None, self.optimizer_steps - self._stepped > MOST_STEPS
        if loop.own is not None or (ended and long) or ((ended or long) and not loop.any_trained):
            self._own_step(optimizer)

    def trains_here(self) -> StepRow | None:
        """The open row of the thread that trains, which is the first that calls; None in another one."""
        thread = threading.get_ident()
        if self.trainer is None:
            self.trainer = thread
            if self.watch is not None and self.watch.thread != thread:
                self.watch.follow()
            for one in self.loop.of_others(thread):
                self.asking = None if self.asking is one else self.asking
                self.to_background(one)
        return self._row_here()

    def _row_here(self) -> StepRow | None:
        """None in another thread than the one that trains, where that is known."""
        return self.loop.row if self.trainer in (None, threading.get_ident()) else None

    def _own_step(self, optimizer: int) -> None:
        self._others = self._others + 1 if optimizer != self._pacer else 0
        if self._pacer and 0 < self._others <= MOST_STEPS:
            return
        self._pacer, self._others = optimizer, 0
        if self._background is None:
            self._background = self.loaders.unwatched()
        now, (samples, size) = time.perf_counter(), self._drawn.get(self._background, (1, 0))
        self._closed(self.loop.own_step(now, self._background, samples or 1, size))
        directed = self.config.diagnostic and "background" in self.loaders.about[self._background]
        if not directed and (reason := self.enough(now)):
            self.end_watch(reason)

    @property
    def hands_itself(self) -> bool:
        """Whether no watched loader hands the loop its batches, as far as is known."""
        return self.loop.own is not None or not self.loop.any_trained

    def ended_workers(self, seconds: float) -> None:
        """Of an iterator that is given up in the middle of a step: what follows it waits for that, too."""
        row = self.loop.current
        if row is not None and self.asking is None and threading.get_ident() == self.trainer:
            row.wait_s += seconds

    def pause(self, seconds: float) -> None:
        """A checkpoint."""
        if (row := self._row_here()) is not None:
            row.pause_s += seconds

    def synchronised(self, seconds: float, frame: FrameType) -> None:
        """`frame`: of the call."""
        if (row := self._row_here()) is not None:
            row.sync_s += seconds
            row.syncs += 1
            self._syncs += 1
            stands_for = 1 if self._syncs <= SYNCS_FIRST else TIMED
            if stands_for * self._draw() <= 1.0:
                self._sync_places[row.loader, own_place(frame)] += stands_for

    def enough(self, now: float, *, held: bool = False) -> Reason | None:
        """Whether the verdict's steps are over, and why. `held`: a first pass of a diagnostic run is behind the
        loop."""
        if not self.active:
            return None
        loop = self.loop
        own = loop.own is not None  # the first of its steps has opened a row, and closed none
        in_loop, ranks = own or loop.any_trained, self.facts.world_size
        steps = loop.train_steps + own if in_loop else self.optimizer_steps or loop.rows
        trained = in_loop or self.optimizer_steps > 0
        if not trained and (ranks > 1 or facts.is_child()):  # somebody waits for what it does: it is not ended so
            return None
        return self.stop.reached(now, steps=steps, ranks=ranks, rank=self.rank, held=held, trained=trained)

    def end_watch(self, reason: Reason) -> None:
        """Nothing more is to be seen, and no window follows: the script is ended, unless it shall run on."""
        self.leave(reason)
        if reason != "running":
            self.finish()

    def finish(self) -> None:
        """Raises Finished in the thread that trains: now, or (batches are drawn by another one) behind its next
        step."""
        if self.trainer in (None, threading.get_ident()):
            raise Finished
        self.over = True

    def trains_on(self) -> None:
        """It is asked for more, though nothing more is to be seen."""
        if self.ended_by in ENDED:
            self.stop.ignored()

    def leave(self, ended_by: str | None) -> None:
        """Nothing more is to be seen; None: other windows follow. Called again as these and the script end, for how
        it ended."""
        first, self.active = self.active, False
        self.ended_by = self.ended_by or ended_by
        self.diagnosing = self.ended_by is None
        self.asking = self.loop.current = None
        if not first:
            self.journal.write(f"trainer-{self.pid}", self.about())
            return
        if self.watch is not None:
            self.watch.stop()
        if self.loop.any_trained:
            self._ask_for_refusals()
        if self.device is not None:
            self.device.read()
        self.flush()
        self.journal.write(f"left-{self.pid}", {})  # its workers that live on say their last and stop looking

    def end(self) -> None:
        """The interpreter is about to be torn down."""
        if self.watch is not None:
            self.watch.sampler.gone()

    def start(self) -> None:
        if self.watch is not None:
            return
        with self._starting:  # threads may begin their first passes together
            if self.watch is None:
                self._see_rank()
                self.facts.look()
                self.watch = TrainerWatch(self, self.journal, self.facts.on_device)
                self.flush()
                self.watch.sampler.start()  # from here on it flushes

    def _see_rank(self) -> None:
        rank = facts.rank()
        self.rank = self.rank if rank is None else rank

    def flush(self) -> None:
        """Write what was seen since the last time: by the sampler, and at exit. A row whose marks on the device have
        not passed yet waits, and those behind it."""
        with self._flushing:
            closed, rows = self.loop.closed, list[StepRow]()
            count = len(closed)  # first: the marks of these are made
            waiting = self.device.waiting() if self.device is not None else set[int]()
            while len(rows) < count and not (self.active and id(closed[0]) in waiting):
                rows.append(closed.popleft())
            self.journal.append(f"steps-{self.pid}", [list(vars(row).values()) for row in rows])
            if self.watch is not None:
                self.watch.write()
            now = time.perf_counter()
            if not self.active or now - self._said > SAY_S:
                self._said = now
                self.journal.write(f"trainer-{self.pid}", self.about())

    def tell(self) -> None:
        """Write what was seen until now, in the script's own thread; the watch goes on."""
        with self.watch.sampler.pausing if self.watch is not None else nullcontext():
            self._said = float("-inf")
            self.flush()

    def about(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "rank": self.rank,
            "loaders": self.loaders.told(),
            "facts": asdict(self.facts) | self.gradients.told(),
            "optimizer_steps": self.optimizer_steps,
            "ended_by": self.ended_by,
            "error": self.error,
            "passes": self.loop.passes(),
            "sync_places": [[*key, count] for key, count in self._sync_places.most_common(MOST_PLACES)],
            "hook_s": self.hook_s,
            "sampler_cpu_s": self.watch.sampler.cpu_s if self.watch is not None else 0.0,
            "paths": self.watch.listed if self.watch is not None else [],
        }
