"""Slots, counters and workers of one loader, and one run through its batches in exact order. NumPy only.

Tasks go out in order, one per free slot, at most `depth` at a time; replies come in any order and are held until
their turn. So the order of batches never depends on how many workers there are or how fast each is.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import SampleError, TransformError, WorkerError
from feedline.pipeline.base.memory import SharedMemory, shared_columns
from feedline.pipeline.draw.order import PADDING, EpochPlan
from feedline.pipeline.workers import counters
from feedline.pipeline.workers.entry import make_filler, perform
from feedline.pipeline.workers.fill import Filler, FillSpec
from feedline.pipeline.workers.messages import BAD_SAMPLE, BROKEN, DONE, GIVEN_UP, Reply, Task
from feedline.pipeline.workers.pool import Crew, Equipment, InlineCrew, WorkerCrew
from feedline.pipeline.workers.slots import CHANNELS, Fence, Images, Ledger, SlotLayout

SPARE_SLOTS = 3
"""Slots the user may hold without a copy being made: the batch in hand, the next, and one fetched ahead."""
_MOST_IN_FLIGHT = 128  # tasks in the socket's buffer; more would only wait there


@dataclass(kw_only=True)
class Waits:
    """The trainer's side of the account, in seconds and counts since the loader was made."""

    trainer_wait_s: float = 0.0
    """Blocked in `next()` until the batch was there."""
    slot_wait_s: float = 0.0
    """A worker could have had a task but no slot was free."""
    copy_s: float = 0.0
    """Copying batches: out of a slot that is needed, or to the device (host's time)."""
    batches: int = 0
    samples: int = 0
    copied_batches: int = 0
    """Handed over as a copy because the user holds as many slots as there are to spare."""
    bad: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Samples left out or replaced: number and reason."""

    @contextmanager
    def clock(self, name: str) -> Generator[None]:
        """Adds what happens inside to one of the seconds."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - started_s)


@dataclass(frozen=True, kw_only=True)
class HostBatch:
    images: Images
    """Flat bytes as the filler wrote them. Shows a slot, or is a copy of one."""
    labels_N: npt.NDArray[np.int64]
    number: int
    px: int

    @property
    def images_NHWC(self) -> Images:
        """A view of the bytes of `PixelFiller`."""
        return self.images.reshape(len(self.labels_N), self.px, self.px, CHANNELS)


class Engine:
    """Owns memory and workers; `close` ends them. One run at a time."""

    def __init__(self, spec: FillSpec, index: SharedMemory, index_layout: dict[str, list[Any]], layout: SlotLayout,
                 *, workers: int, depth: int, fence: Callable[[], Fence | None],
                 where: Callable[[int], str]) -> None:  # fmt: skip
        """`where(sample)` names a sample in messages."""
        self._where = where
        self._on_close: list[Callable[[], None]] = []
        self.depth = min(depth, _MOST_IN_FLIGHT)
        self.layout = layout
        slots = self.depth + SPARE_SLOTS
        self.memory = SharedMemory("slots", slots * layout.slot_bytes)
        self.view = self.memory.view
        self.ledger = Ledger(slots, fence)
        rows = max(workers, 1) + 1  # the last one is ours: which run is the current one
        self._counters = SharedMemory("counters", rows * counters.ROW_BYTES)
        self._rows = counters.rows_of(self._counters.view, rows)
        self._outstanding = 0
        self.crew: Crew
        if workers:
            orders = {
                "workers": workers,
                "slot_layout": asdict(layout),
                "index_layout": index_layout,
                "fill": asdict(spec),
            }
            equipment = Equipment(slots=self.memory, index=index, counters=self._counters, orders=orders)
            self.crew = WorkerCrew(workers, equipment, self._doing)
        else:
            clock = counters.Clock(self._rows[0])
            filler = make_filler(spec, shared_columns(index.view, index_layout), clock)
            self.crew = InlineCrew(lambda task: self._inline(task, filler, clock))

    def _inline(self, task: Task, filler: Filler, clock: counters.Clock) -> Reply:
        if task.run < self._rows[-1][0]:
            return Reply(GIVEN_UP, 0, task.slot, task.run, task.batch)
        clock.skip()  # between batches the trainer's thread is not ours: that time is nobody's
        reply = perform(task, 0, filler, self.layout, self.view, clock)
        clock.tick()
        return reply

    def next_run(self) -> int:
        """Workers do not begin the tasks of an earlier run any more."""
        self._rows[-1][0] += 1
        return int(self._rows[-1][0])

    def submit(self, task: Task) -> None:
        self.crew.submit(task)
        self._outstanding += 1

    def receive(self) -> Reply | None:
        """The next reply; None when there was none to wait for, and a slot's fence was waited for instead."""
        if not self._outstanding:
            self.ledger.wait()
            return None
        return self._counted(self.crew.receive())

    def receive_ready(self) -> Reply | None:
        """A reply if one is there already."""
        return self._counted(self.crew.receive()) if self._outstanding and self.crew.ready() else None

    def _counted(self, reply: Reply) -> Reply:
        self._outstanding -= reply.slot >= 0
        return reply

    @property
    def pids(self) -> list[int]:
        return self.crew.pids

    def worker_stats(self) -> list[dict[str, Any]]:
        return [counters.describe(row) for row in self._rows[:-1] if row[counters.FIELD["started_ns"]]]

    def _doing(self, worker: int) -> str:
        """For the error about a dead worker; in terms that `Loader` turns into a key."""
        sample = int(self._rows[worker][counters.FIELD["sample"]])
        started = int(self._rows[worker][counters.FIELD["started_ns"]])
        if not started:
            return "before it could start"
        return "while it waited for work" if sample < 0 else f"while it worked on {self._where(sample)}"

    def on_close(self, undo: Callable[[], None]) -> None:
        self._on_close.append(undo)

    def close(self) -> None:
        self.crew.close()
        while self._on_close:
            self._on_close.pop()()
        self.memory.close_descriptor()
        self._counters.close_descriptor()


class Run:
    """The batches of a plan, in order. Iterate it once; a newer run of the same engine ends it."""

    def __init__(
        self, engine: Engine, plan: EpochPlan, epoch: int, px: int, waits: Waits, *, trim: bool = False
    ) -> None:
        """`trim`: padding is left out, so that the last batch is shorter."""
        self._engine, self.plan, self._epoch, self._px, self.waits = engine, plan, epoch, px, waits
        self._number = engine.next_run()
        self._batches = len(plan)
        self._sent = self._received = self._shown = 0
        self._ready: dict[int, int] = {}
        self._failed: dict[int, SampleError | TransformError] = {}
        """By batch; raised when its turn comes, whichever worker was first."""
        self._trim = trim
        self._lacked_slot_since: float | None = None
        self._send_tasks()

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        """Raises StopIteration, SampleError, TransformError or WorkerError."""
        if self._shown == self._batches:
            raise StopIteration
        self._send_tasks()
        started_s = time.perf_counter()
        while self._shown not in self._ready:
            if self._shown in self._failed:
                raise self._failed.pop(self._shown)
            reply = self._engine.receive()
            if reply is not None:
                self._take_reply(reply)
            self._send_tasks()
        self.waits.trainer_wait_s += time.perf_counter() - started_s
        batch = self._show(self._shown, self._ready.pop(self._shown))
        self._shown += 1
        return batch

    def next_if_ready(self) -> HostBatch | None:
        """The next batch if that needs no waiting; None otherwise, and at the end."""
        while self._shown not in self._ready and (reply := self._engine.receive_ready()) is not None:
            self._take_reply(reply)
        return next(self) if self._shown in self._ready else None

    def _send_tasks(self) -> None:
        engine = self._engine
        while self._sent < self._batches and self._sent - self._received < engine.depth:
            slot = engine.ledger.take()
            if slot is None:
                self._lacked_slot_since = self._lacked_slot_since or time.perf_counter()
                return
            self._note_slot()
            samples_N = self.plan.batch(self._sent)
            if self._trim:
                samples_N = samples_N[samples_N != PADDING]
            engine.layout.samples_N(engine.view, slot, len(samples_N))[:] = samples_N
            engine.submit(Task(self._number, self._sent, slot, len(samples_N), self._epoch, self._px))
            self._sent += 1

    def _note_slot(self) -> None:
        if self._lacked_slot_since is not None:
            self.waits.slot_wait_s += time.perf_counter() - self._lacked_slot_since
            self._lacked_slot_since = None

    def _take_reply(self, reply: Reply) -> None:
        if reply.slot >= 0 and reply.run != self._number:  # of a run that was given up
            self._engine.ledger.give_back(reply.slot)
            return
        if reply.kind == BROKEN:
            raise WorkerError(reply.text)
        self._received += 1
        if reply.kind != DONE:
            self._engine.ledger.give_back(reply.slot)
            error = SampleError if reply.kind == BAD_SAMPLE else TransformError
            self._failed[reply.batch] = error(reply.text, reply.sample)
            return
        self._ready[reply.batch] = reply.slot
        for line in reply.text.splitlines():
            sample, _, reason = line.partition(" ")
            self.waits.bad.append((int(sample), reason))

    def _show(self, number: int, slot: int) -> HostBatch:
        engine, waits = self._engine, self.waits
        filled, size_bytes = engine.layout.filled(engine.view, slot).tolist()
        images = engine.layout.images(engine.view, slot, size_bytes)
        labels_N = engine.layout.labels_N(engine.view, slot, filled).copy()
        if engine.ledger.lent < SPARE_SLOTS:
            engine.ledger.lend(slot, images)
        else:
            started_s = time.perf_counter()
            images = images.copy()
            engine.ledger.give_back(slot)
            waits.copied_batches += 1
            waits.copy_s += time.perf_counter() - started_s
        waits.batches += 1
        waits.samples += filled
        return HostBatch(images=images, labels_N=labels_N, number=number, px=self._px)

    def close(self) -> None:
        """Gives up what is under way; the workers finish it and its slots come back with the next run's replies."""
        for slot in self._ready.values():
            self._engine.ledger.give_back(slot)
        self._ready.clear()
        self._shown = self._sent = self._batches
