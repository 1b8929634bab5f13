"""The state of a profiled trainer process: what its loop does, what was seen of it, and when that is enough.

Hooks (`profiling.watch.hooks`) tell it what happens; it keeps one row a batch (`passes`), samples the thread that
trains (`trainer`), and writes all of it to the journal every half second.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from feedline.profiling.record.journal import Journal, Options
from feedline.profiling.watch import facts
from feedline.profiling.watch.batches import describe, sizes
from feedline.profiling.watch.data_paths import PathCollector
from feedline.profiling.watch.passes import Loop, Pass, Row
from feedline.profiling.watch.stop import Reason, StopRule
from feedline.profiling.watch.trainer import TrainerWatch

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


class Device(Protocol):
    """`profiling.watch.cuda.Device`."""

    def step_ended(self) -> None: ...
    def step_begins(self, row: Row) -> None: ...
    def collect(self) -> None: ...
    def settled(self, row: Row) -> bool: ...


class Capture:
    """One per profiled process. Every public method is called from the script's own thread and must be cheap."""

    def __init__(
        self, journal: Journal, options: Options, price: Callable[[], dict[str, float]] | None = None
    ) -> None:
        """`price` measures what one event of each kind costs: `hook_cost.event_cost_s`."""
        self.journal = journal
        self.options = options
        self.rank = 0
        """Asked again at every pass: the script initialises torch.distributed after us."""
        self.pid = os.getpid()
        self.active = True
        """False once nothing more is to be seen: every hook passes straight through."""
        self.ours = 0
        """Above 0 while we work ourselves: loaders that are iterated then are not the script's."""
        self.error: str | None = None
        self.ended_by: str | None = None
        self.diagnosing = False
        """The verdict's steps are over, other windows follow."""
        self.optimizer_steps = 0
        self.asking: Pass | None = None
        self.loop = Loop()
        self.loaders = facts.Loaders()
        self.facts = facts.Facts()
        self.stop = StopRule(options, journal)
        self.device: Device | None = None
        self.events: Counter[str] = Counter()
        self.hook_s = 0.0
        """Time spent in `ask` and `got`: what watching a batch costs the loop."""
        self.mark_s = 0.0
        """The same for the marks around copies on CUDA."""
        self.event_cost_s: dict[str, float] = {}
        """Of the other hooks, measured as the watch begins."""
        self.watch: TrainerWatch | None = None
        self._price = price
        self._loose_steps = 0
        self._first_loose_step: float | None = None
        self._late: list[Row] = []
        self._flushing = threading.Lock()
        self._said = float("-inf")
        self._seen: tuple[float, ...] = (0.0, 0.0, 0.0)
        """Of all rows written so far, as `Row.waits` gives them."""
        self._told: tuple[float, ...] = (0.0, 0.0, 0.0)
        """And of all that `take_metrics` has told of."""
        self._sync_places: Counter[tuple[int, str]] = Counter()
        self._usage: Any = None

    # --- what the hooks tell ------------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        """Whether a loader that is asked now is asked by the script's own loop."""
        return self.active and self.asking is None and not self.ours

    @contextmanager
    def unwatched(self) -> Generator[None]:
        """Iterators made and asked in here belong to us, not to the script."""
        self.ours += 1
        try:
            yield
        finally:
            self.ours -= 1

    def begin_pass(self, loader: Any, kind: str, *, in_trainer: bool | None = None) -> Pass:
        """A loader's iterator was asked for."""
        self.see_rank()
        self.start()
        number = self.loaders.number(loader, kind)
        about = self.loaders.about[number]
        if in_trainer is None:
            in_trainer = not about.get("num_workers")
        assert self.watch is not None
        self.watch.see_loader(loader, number, self.rank, pins=bool(about.get("pin_memory")) and not in_trainer)
        return self.loop.begin(number, time.perf_counter(), in_trainer=in_trainer)

    def ask(self, by: Pass) -> float:
        """The loop asks for the next batch."""
        now = time.perf_counter()
        timing = None if self.loop.rows % TIMED else Timing()
        self._closed(self.loop.close(by, now))
        if self.device is not None:
            self.device.step_ended()
        self.asking = by
        by.last_asked = now
        if timing is not None:
            self.hook_s += timing.of_all()
        return now

    def got(self, by: Pass, asked: float, batch: Any) -> None:
        now = time.perf_counter()
        if "batch_bytes" not in (about := self.loaders.about[by.loader]):
            about.update(describe(batch))
        timing = None if self.loop.rows % TIMED else Timing()
        self.asking = None
        samples, size = sizes(batch)
        row = Row(asked, now, samples or 0, size, by.loader, by.epoch)
        if self.device is not None:
            self.device.step_begins(row)
        self.loop.got(by, row)
        self.events["batch"] += 1
        self._usage = None if self.loop.rows % COUNTED else facts.usage()
        if timing is not None:
            self.hook_s += timing.of_all()

    def end_pass(self, ending: Pass, *, exhausted: bool = False) -> None:
        """The iterator is exhausted, was dropped, or failed."""
        if self.asking is ending:
            self.asking = None
        self._closed(self.loop.end(ending, time.perf_counter(), exhausted=exhausted))

    def _closed(self, row: Row | None) -> None:
        if row is None or not row.trained or self._usage is None or row.pause:
            return
        if self.loop.train_steps > WARM_STEPS:
            self.facts.see_usage(self._usage, facts.usage())

    def backward(self, seconds: float) -> None:
        if (row := self.loop.current) is not None:
            row.backward += seconds
            row.trained = True
        self.events["backward"] += 1

    def optimizer_step(self, seconds: float) -> None:
        """Raises Finished when enough was seen of a loop whose batches come from no loader we know: an optimiser step
        is the training step then."""
        self.optimizer_steps += 1
        self.events["optimizer"] += 1
        if (row := self.loop.current) is not None:
            row.optimizer += seconds
            row.trained = True
        elif not self.loop.any_trained:
            now = time.perf_counter()
            self._loose_steps += 1
            self._first_loose_step = self._first_loose_step or now
            self.stop.steadiness.add(now, 1, 0.0)
            if reason := self.enough(now):
                self.end_watch(reason)

    def pause(self, seconds: float) -> None:
        """A checkpoint."""
        if (row := self.loop.current) is not None:
            row.pause += seconds
        self.events["checkpoint"] += 1

    def synchronised(self, seconds: float, place: str) -> None:
        """`place`: file:line of the script's own code."""
        if (row := self.loop.current) is not None:
            row.sync += seconds
            row.syncs += 1
            self._sync_places[row.loader, place] += 1
        self.events["sync"] += 1

    # --- stopping -----------------------------------------------------------------------------------------

    def enough(self, now: float, *, held: bool = False) -> Reason | None:
        """Whether the verdict's steps are over, and why. `held`: the loop is in a pass that the script did not ask
        for."""
        if not self.active:
            return None
        loop = self.loop
        return self.stop.reached(
            now,
            steps=loop.train_steps if loop.any_trained else self._loose_steps or loop.rows,
            started=loop.first_got or self._first_loose_step,
            ranks=self.facts.world_size,
            rank=self.rank,
            held=held,
        )

    def end_watch(self, reason: Reason) -> None:
        """Nothing more is to be seen, and no window follows: raises Finished, unless the script shall run on."""
        on = reason == "running" and not self.options.diagnostic
        self.leave("running" if on else "seconds" if reason == "running" else reason)
        if not on:
            raise Finished

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
            self.watch.sampler.stop()
        self.flush()
        self.journal.leave(self.rank)

    def end(self) -> None:
        """The interpreter is about to be torn down."""
        if self.watch is not None:
            self.watch.sampler.gone()

    # --- the sampler's side -------------------------------------------------------------------------------

    def see_rank(self) -> None:
        found = facts.rank()
        self.rank = self.rank if found is None else found

    def start(self) -> None:
        if self.watch is not None:
            return
        self.see_rank()
        if self._price is not None:
            self.event_cost_s = self._price()
        PathCollector.active().start()
        self.facts.look()
        self.watch = TrainerWatch(self.journal, lambda: self.asking, self.flush)
        self.watch.sampler.start()
        self.flush()

    def flush(self) -> None:
        """Write what was seen since the last time. Also called at exit."""
        with self._flushing:
            self._write_rows()
            if self.watch is not None:
                self.watch.write()
            now = time.perf_counter()
            if not self.active or now - self._said > SAY_S:
                self._said = now
                self.journal.write(f"trainer-{self.pid}", self.about())

    def _write_rows(self) -> None:
        if self.device is not None:
            self.device.collect()
        rows, self._late = self._late, []
        while self.loop.closed:
            row = self.loop.closed.popleft()
            self.stop.steadiness.add(row.end, row.samples, row.pause)
            self._seen = _added(self._seen, row.waits())
            rows.append(row)
        ready: list[Row] = []
        for row in rows:
            settled = not self.active or self.device is None or self.device.settled(row)
            (ready if settled else self._late).append(row)
        self.journal.append(f"steps-{self.pid}", [row.written() for row in ready])

    def take_metrics(self) -> dict[str, float]:
        """Wait fraction and samples/s since the last call, over all batches; empty when there were none."""
        with self._flushing:
            seen = self._seen
            for row in list(self.loop.closed):
                seen = _added(seen, row.waits())
        waited_s, seconds, samples = (now - before for now, before in zip(seen, self._told, strict=True))
        self._told = seen
        return {"wait_fraction": waited_s / seconds, "samples_per_s": samples / seconds} if seconds else {}

    def about(self) -> dict[str, Any]:
        sampler = self.watch.sampler if self.watch is not None else None
        return {
            "pid": self.pid,
            "rank": self.rank,
            "loaders": self.loaders.about,
            "facts": self.facts.to_dict(),
            "optimizer_steps": self.optimizer_steps,
            "train_steps": self.loop.train_steps,
            "ended_by": self.ended_by,
            "diagnosing": self.diagnosing,
            "error": self.error,
            "passes": self.loop.passes(),
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


def _added(to: tuple[float, ...], more: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(was + new for was, new in zip(to, more, strict=True))
