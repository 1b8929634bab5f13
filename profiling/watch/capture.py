"""The state of a profiled trainer process: which loader is being waited for, the step that is open, what it cost.

Hooks (`profiling.watch.hooks`) tell it what happens; it keeps one row a batch, a sampler thread's tallies of the main
thread, and what the script's loaders and model look like, and writes all of it to the journal every half second.

A *pass* is one iteration over one loader. A row opens when a batch is asked for and closes when the next one is
asked for; a pass that runs to its end inside another's open row (an evaluation inside a training step) is that
row's pause.
"""

import os
import threading
import time
import weakref
from collections import Counter, deque
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import Journal, Options
from feedline.profiling.watch import facts
from feedline.profiling.watch.batches import describe as describe_batch
from feedline.profiling.watch.batches import sizes
from feedline.profiling.watch.data_paths import PathCollector
from feedline.profiling.watch.loader_stats import SelfTold
from feedline.profiling.watch.passes import Pass, Row
from feedline.profiling.watch.pin_thread import PinThread
from feedline.profiling.watch.row_sums import Tally
from feedline.profiling.watch.stacks import StackSampler, fair_switching
from feedline.profiling.watch.stop import Steadiness
from feedline.profiling.watch.trainer_rules import part
from feedline.profiling.watch.worker_rules import Place, classify

EVAL_BATCHES = 3  # a pass with this many batches inside one open row is an evaluation, whether it ends or breaks off
TRAINER_RATE_HZ = 50.0
TIMED, COUNTED = 5, 4
"""Every so manyth batch is timed, and has its page faults counted: asking the kernel costs more than the rest. There
is no common divisor, so that the timed ones stand for all."""
WARM_STEPS = 5
"""Training steps whose page faults do not count: the allocator is still growing."""
MOST_PLACES = 32
"""Places of hidden synchronisations that are told."""
SAY_S = 2.0  # how often the facts are written again; rows are written as they come


class Finished(SystemExit):
    """Raised in the script's loop when enough was seen. Not an Exception, so that `except Exception` lets it pass."""

    def __init__(self) -> None:
        super().__init__(0)


class Capture:
    """One per profiled process. Every public method is called from the script's own thread and must be cheap."""

    def __init__(self, journal: Journal, options: Options) -> None:
        self.journal = journal
        self.options = options
        self.rank = 0
        """Asked again at every pass: the script initialises torch.distributed after us."""
        self.pid = os.getpid()
        self.active = True
        """False once nothing more is to be seen: every hook passes straight through."""
        self.error: str | None = None
        self.ended_by: str | None = None
        self.train_steps = 0
        self.optimizer_steps = 0
        self.asking: Pass | None = None
        self.current: Row | None = None
        self.director: Any = None
        """Legs: takes over what a training loader hands out."""
        self.lines: Any = None
        """`--lines`: what runs the workers' line profiler."""
        self.line_watch: Any = None
        """And the trainer's: profiling.watch.lines.LineWatch."""
        self.withhold: Any = None
        """Legs and lines: profiling.watch.legs.write_guard.Withhold."""
        self.facts = facts.Facts()
        self.events: Counter[str] = Counter()
        self.hook_s = 0.0
        """Time spent in `ask` and `got`: what watching a batch costs the loop."""
        self.mark_s = 0.0
        """The same for the marks around copies on CUDA."""
        self.event_cost_s: dict[str, float] = {}
        """Of the other hooks, measured as the watch begins."""
        self.device: Any = None
        """profiling.watch.cuda.Device where there is CUDA."""
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._about: list[dict[str, Any]] = []
        self._epochs: Counter[int] = Counter()
        self._open: list[Pass] = []
        self._rows: deque[Row] = deque()
        """Appended to by the script's thread while the sampler's takes from its front."""
        self._closed = 0
        self._late: list[Row] = []
        self._flushing = threading.Lock()
        self._steadiness = Steadiness()
        self._any_trained = False
        self._loose_steps = 0
        self._stop_at: int | None = None
        self._first_step: float | None = None
        self._thread: int | None = None
        self._said = float("-inf")
        self._sampler: StackSampler | None = None
        self._main: Tally | None = None
        self._pin_thread: PinThread | None = None
        self._loading: dict[int, Tally] = {}
        self._self_told: dict[int, SelfTold] = {}
        self._seen: list[float] = [0.0, 0.0, 0.0]
        """Of all rows written so far, as `_waits` gives them."""
        self._told: list[float] = [0.0, 0.0, 0.0]
        """And of all that `take_metrics` has told of."""
        self._passes: dict[tuple[int, int], list[Any]] = {}
        self._sync_places: Counter[tuple[int, str]] = Counter()
        self._usage: Any = None

    # --- what the hooks tell ------------------------------------------------------------------------------

    def begin_pass(self, loader: Any, kind: str, *, in_trainer: bool | None = None) -> Pass:
        """A loader's iterator was asked for."""
        self._see_rank()
        self.start()
        number = self._number(loader, kind)
        about = self._about[number]
        if in_trainer is None:
            in_trainer = not about.get("num_workers")
        if about.get("pin_memory") and not in_trainer and self._pin_thread is None:
            self._pin_thread = PinThread()
        if number not in self._self_told and SelfTold.speaks(loader):
            self._self_told[number] = SelfTold(loader, number, self.rank)
        epoch = self._epochs[number]
        self._epochs[number] += 1
        one = Pass(number, epoch, time.perf_counter(), in_trainer, self.current)
        one.source = weakref.ref(loader) if self.director is None else loader  # legs begin it again
        if one.outer is not None:
            for other in self._open:
                if other.row is one.outer:
                    other.inner.append(one)
        self._open.append(one)
        if self.line_watch is not None:
            self.line_watch.start()
        return one

    def ask(self, one: Pass) -> float:
        """The loop asks for the next batch; raises Finished when enough was seen."""
        now = time.perf_counter()
        timing = None if self._closed % TIMED else Timing()
        self._close_row(one, now)
        self._end_here(now)
        if self.device is not None:
            self.device.step_ended()
        self.asking = one
        one.last_asked = now
        if timing is not None:
            self.hook_s += timing.of_all()
        return now

    def got(self, one: Pass, asked: float, batch: Any) -> None:
        now = time.perf_counter()
        if "batch_bytes" not in (about := self._about[one.loader]):
            about.update(describe_batch(batch))
        timing = None if self._closed % TIMED else Timing()
        self.asking = None
        samples, size = sizes(batch)
        row = Row(asked, now, samples or 0, size, one.loader, one.epoch)
        if self.device is not None:
            self.device.step_begins(row)
        one.row = self.current = row
        one.first_got = now if one.first_got is None else one.first_got
        one.samples += row.samples
        one.batches += 1
        self.events["batch"] += 1
        self._usage = None if self._closed % COUNTED else facts.usage()
        if timing is not None:
            self.hook_s += timing.of_all()

    def end_pass(self, one: Pass, *, exhausted: bool = False) -> None:
        """The iterator is exhausted, was dropped, or failed."""
        now = time.perf_counter()
        if not one.done and one.batches and exhausted:
            self._passes[one.loader, one.epoch] = one.told(now)
        if self.asking is one:
            self.asking = None
        self._close_row(one, now)
        self._finish(one, now)

    def backward(self, seconds: float) -> None:
        if self.current is not None:
            self.current.backward += seconds
            self.current.trained = True
        self.events["backward"] += 1

    def optimizer_step(self, seconds: float) -> None:
        self.optimizer_steps += 1
        if self.current is not None:
            self.current.optimizer += seconds
            self.current.trained = True
        elif not self._any_trained:
            self._loose_step(time.perf_counter())
        self.events["optimizer"] += 1

    def pause(self, seconds: float) -> None:
        """A checkpoint."""
        if self.current is not None:
            self.current.pause += seconds
        self.events["checkpoint"] += 1

    def copied(self, seconds: float) -> None:
        if self.current is not None:
            self.current.copy += seconds
        self.events["copy"] += 1

    def synchronised(self, seconds: float, place: str) -> None:
        """`place`: file:line of the script's own code."""
        if self.current is not None:
            self.current.sync += seconds
            self.current.syncs += 1
            self._sync_places[self.current.loader, place] += 1
        self.events["sync"] += 1

    # --- passes and rows ----------------------------------------------------------------------------------

    def number_of(self, loader: Any) -> int:
        """The id of a loader that has been seen, else 0."""
        try:
            return self._loaders.get(loader, 0)
        except TypeError:
            return 0

    def _number(self, loader: Any, kind: str) -> int:
        try:
            known = self._loaders.get(loader)
        except TypeError:  # not hashable
            known = None
        if known is not None:
            return known
        number = len(self._about)
        self._about.append({"id": number, "kind": kind, **facts.loader(loader)})
        try:
            self._loaders[loader] = number
        except TypeError:
            pass
        return number

    def _close_row(self, one: Pass, now: float) -> None:
        row, one.row = one.row, None
        if row is None:
            return
        for inner in one.inner:
            if not inner.done and inner.batches >= EVAL_BATCHES:  # broken off, as in `if i == 50: break`
                last = inner.row
                self._close_row(inner, last.got if last else now)
                self._finish(inner, last.got if last else now)
        one.inner.clear()
        row.end = now
        if row.trained:
            self.train_steps += 1
            if self._usage is not None and self.train_steps > WARM_STEPS and not row.pause:
                self.facts.see_usage(self._usage, facts.usage())
            if not self._any_trained:
                self._any_trained = True
        if self._first_step is None:
            self._first_step = row.got
        if self.current is row:
            self.current = None
        self._rows.append(row)
        self._closed += 1

    def _finish(self, one: Pass, now: float) -> None:
        if one.done:
            return
        one.done = True
        if one in self._open:
            self._open.remove(one)
        outer = one.outer
        if outer is not None and not outer.end:
            outer.pause += now - one.started
            self.current = outer

    # --- stopping -----------------------------------------------------------------------------------------

    def _loose_step(self, now: float) -> None:
        """An optimiser step of a loop whose batches come from no loader we know: it is the training step then. Raises
        Finished when enough was seen."""
        self._loose_steps += 1
        self._first_step = self._first_step or now
        if self.line_watch is not None:
            self.line_watch.start()
        self._steadiness.add(now, 1, 0.0)
        self._end_here(now)

    def _end_here(self, now: float) -> None:
        """Raises Finished when enough was seen. A script may go on after a signal, but not for windows of ours."""
        if self.active and self.options.mode != "verdict" and self.journal.interrupted():
            self.leave("signal")
        elif self._enough(now):
            self.leave("steps" if self.options.steps else "seconds")
        else:
            return
        raise Finished

    def _enough(self, now: float) -> bool:
        if not self.active or self.director is not None:
            return False
        steps = self._steps()
        if self._stop_at is not None:
            return steps >= self._stop_at
        if self.options.steps is not None:
            return steps >= self.options.steps
        started = self._first_step
        if started is None:
            return False
        if self.options.seconds is not None and now - started > self.options.seconds:
            return self.facts.world_size == 1 or self._agree_on_the_end(steps, now - started)
        if self.options.seconds is None and self.options.steady and self._steadiness.reached(now):
            self.leave("running")
        return False

    def _steps(self) -> int:
        if self._any_trained:
            return self.train_steps
        return self._loose_steps or self._closed

    def _agree_on_the_end(self, steps: int, seconds: float) -> bool:
        """Ranks must leave at the same step, or the others hang in their all-reduce: rank 0 names a later one."""
        said = self.journal.read("stop")
        if said is None and self.rank == 0:
            said = {"step": steps + 3 + int(2 * steps / max(seconds, 1e-3))}
            self.journal.write("stop", said)
        self._stop_at = said["step"] if said else None
        return False

    def leave(self, ended_by: str) -> None:
        """Nothing more is to be seen. Called again as the script ends, for how it ended."""
        first, self.active = self.ended_by is None, False
        self.ended_by = self.ended_by or ended_by
        self.asking = self.current = None
        if not first:
            self.journal.write(f"trainer-{self.pid}", self.about())
            return
        if self._sampler is not None:
            self._sampler.stop()
        if self.line_watch is not None:
            self.line_watch.stop()
        self.flush()
        self.journal.leave(self.rank)

    def end(self) -> None:
        """The interpreter is about to be torn down."""
        if self._sampler is not None:
            self._sampler.gone()

    # --- the sampler's side -------------------------------------------------------------------------------

    def _see_rank(self) -> None:
        found = facts.rank()
        self.rank = self.rank if found is None else found

    def start(self) -> None:
        if self._sampler is not None:
            return
        self._see_rank()
        if self.options.mode == "verdict":
            from feedline.profiling.watch.hook_cost import event_cost_s

            self.event_cost_s = event_cost_s()
        fair_switching()
        PathCollector.active().start()
        self._thread = threading.get_ident()
        self._main = Tally(self._thread)
        self.facts.look()
        self._sampler = StackSampler(self._look, rate_hz=TRAINER_RATE_HZ)
        self._sampler.start()
        self.flush()

    def _look(self, frames: dict[int, FrameType], seconds: float) -> None:
        frame = frames.get(self._thread or 0)
        asking = self.asking
        if self._main is None or frame is None:
            return
        if asking is not None and asking.in_trainer and asking.loader in self._self_told:
            self._main.add(Place("load", "loader"), seconds)
        elif asking is not None and asking.in_trainer:
            self._loading.setdefault(asking.loader, Tally(self._thread)).add(classify(frame), seconds)
            self._main.add(Place("load", "loader"), seconds)
        else:
            for tally in self._loading.values():
                tally.skip()
            name, place = part(frame)
            others, cpu_s = self._pin_thread.look(frames, seconds) if self._pin_thread is not None else (None, 0.0)
            if asking is not None and name not in ("unpickle", "pin"):
                name = others or "wait"
            waits = asking is not None and name == others
            self._main.add(Place(name, place), seconds, others_cpu_s=cpu_s if waits else 0.0)
        if self._main.due:
            self.flush()

    def flush(self) -> None:
        """Write what was seen since the last time. Also called at exit."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        if self.device is not None:
            self.device.collect()
        rows, self._late = self._late, []
        while self._rows:
            row = self._rows.popleft()
            self._steadiness.add(row.end, row.samples, row.pause)
            self._seen = [was + more for was, more in zip(self._seen, _waits(row), strict=True)]
            rows.append(row)
        ready: list[Row] = []
        for row in rows:
            settled = not self.active or self.device is None or self.device.settled(row)
            (ready if settled else self._late).append(row)
        self.journal.append(f"steps-{self.pid}", [row.values() for row in ready])
        if self._main is not None:
            self.journal.append(f"main-{self.pid}", [self._main.take()])
        if self._pin_thread is not None:
            self.journal.append(f"pin-{self.pid}", self._pin_thread.take())
        for teller in self._self_told.values():
            teller.ask(self.journal)
        for loader, tally in self._loading.items():
            self.journal.append(f"loading-{self.pid}-{loader}", [tally.take()])
        now = time.perf_counter()
        if not self.active or now - self._said > SAY_S:
            self._said = now
            self.journal.write(f"trainer-{self.pid}", self.about())
        if self.line_watch is not None and self.active:
            self.line_watch.dump_sometimes()

    def take_metrics(self) -> dict[str, float]:
        """Wait fraction and samples/s since the last call, over all batches; empty when there were none."""
        with self._flushing:
            pending = [_waits(row) for row in list(self._rows)]
            seen = [float(sum(column)) for column in zip(self._seen, *pending, strict=True)]
        waited_s, seconds, samples = (now - before for now, before in zip(seen, self._told, strict=True))
        self._told = seen
        return {"wait_fraction": waited_s / seconds, "samples_per_s": samples / seconds} if seconds else {}

    def _told_passes(self) -> list[list[Any]]:
        """Those that have ended, and those still open."""
        going = [one.told(None) for one in list(self._open) if one.first_got is not None]
        return [*self._passes.values(), *going]

    def about(self) -> dict[str, Any]:
        sampler = self._sampler
        return {
            "pid": self.pid,
            "rank": self.rank,
            "loaders": self._about,
            "facts": self.facts.to_dict(),
            "optimizer_steps": self.optimizer_steps,
            "train_steps": self.train_steps,
            "ended_by": self.ended_by,
            "error": self.error,
            "passes": self._told_passes(),
            "events": dict(self.events),
            "sync_places": [[*key, count] for key, count in self._sync_places.most_common(MOST_PLACES)],
            "hook_s": self.hook_s,
            "mark_s": self.mark_s,
            "event_cost_s": self.event_cost_s,
            "sampler_cpu_s": sampler.cpu_s if sampler else 0.0,
            "looks": sampler.looks if sampler else 0,
            "paths": PathCollector.active().found,
        }


class Timing:
    """What one batch of `TIMED` costs, told for all of them; CPU time, since another program that takes the core
    meanwhile is not our cost. What reading the clock costs is told once."""

    def __init__(self) -> None:
        began_s = time.thread_time()
        self._began_s = time.thread_time()
        self._clock_s = self._began_s - began_s

    def of_all(self) -> float:
        spent_s = time.thread_time() - self._began_s - self._clock_s
        return TIMED * max(0.0, spent_s) + 3 * self._clock_s


def _waits(row: Row) -> tuple[float, float, int]:
    """Seconds waited, seconds in all, samples."""
    return row.got - row.start, row.end - row.start - row.pause, row.samples
