"""Slots, counters and workers of one loader, and one run through its batches in exact order. NumPy only.

Tasks go out in order, one per free slot, at most `depth` at a time; replies come in any order and are held until
their turn. So the order of batches never depends on how many workers there are or how fast each is.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from feedline.pipeline.base.errors import SampleError, TransformError, WorkerError
from feedline.pipeline.draw.order import PADDING, EpochPlan
from feedline.pipeline.workers import counters
from feedline.pipeline.workers.counters import FIELD
from feedline.pipeline.workers.entry import Worker
from feedline.pipeline.workers.fill import FillSpec
from feedline.pipeline.workers.memory import Layout, SharedMemory
from feedline.pipeline.workers.messages import BAD_SAMPLE, BROKEN, DONE, Reply, Task
from feedline.pipeline.workers.pool import InlineCrew, WorkerCrew
from feedline.pipeline.workers.slots import CHANNELS, Fence, Images, Ledger, Numbers, SlotLayout

SPARE_SLOTS = 3
"""Slots the user may hold without a copy being made: the batch in hand, the next, and one fetched ahead."""
_MOST_IN_FLIGHT = 128  # tasks in the socket's buffer; more would only wait there


@dataclass(kw_only=True)
class Waits:
    """The trainer's side of the account since the loader was made, as `Loader.stats` shows it."""

    wait_s: float = 0.0
    """Blocked in `next()` until the batch was there."""
    copy_s: float = 0.0
    """Copying batches: out of a slot that is needed, or to the device (host's time)."""
    batches: int = 0
    samples: int = 0
    copied_batches: int = 0
    """Handed over as a copy because the user holds as many slots as there are to spare."""
    bad: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Samples left out or replaced: number and reason."""

    @contextmanager
    def copying(self) -> Generator[None]:
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.copy_s += time.perf_counter() - started_s


class HostBatch(NamedTuple):
    images: Images
    """Flat bytes as the filler wrote them. Shows a slot, or is a copy of one."""
    labels_N: Numbers
    px: int

    @property
    def images_NHWC(self) -> Images:
        """A view of the bytes of `PixelFiller`."""
        count = len(self.labels_N)
        return self.images[: count * self.px * self.px * CHANNELS].reshape(count, self.px, self.px, CHANNELS)


class Workshop:
    """Owns memory and workers; `close` ends them. One run at a time."""

    def __init__(self, spec: FillSpec, index: SharedMemory, index_layout: Layout, layout: SlotLayout,
                 *, workers: int, depth: int, fence: Callable[[], Fence], where: Callable[[int], str],
                 before: counters.Rows | None = None) -> None:  # fmt: skip
        """`where(sample)` names a sample in messages. `before`: the rows of a workshop to go on for."""
        self._where = where
        self.process = os.getpid()
        self.depth = min(depth, _MOST_IN_FLIGHT)
        self.layout = layout
        slots = self.depth + SPARE_SLOTS
        self.memory = SharedMemory("slots", slots * layout.slot_bytes)
        self.view = self.memory.view
        self.ledger = Ledger(slots, fence)
        rows = max(workers, 1) + 1  # the last one is ours: which run is the current one
        self._counters = SharedMemory("counters", rows * counters.ROW_BYTES)
        self.rows = counters.rows_of(self._counters.view, rows)
        if before is not None:
            self.rows[:-1] = before[:-1]
            self.rows[:-1, FIELD["pid"]] = 0
        self.outstanding = 0
        self.on_close: list[Callable[[], None]] = []
        setup = {"slot_layout": asdict(layout), "index_layout": index_layout, "fill": asdict(spec), "rows": rows}
        memories = [self.memory, index, self._counters]
        self.crew: InlineCrew | WorkerCrew
        if workers:
            self.crew = WorkerCrew(workers, setup, memories, self._doing)
        else:
            self.crew = InlineCrew(Worker(0, setup, *(memory.view for memory in memories)))

    def submit(self, task: Task) -> None:
        self.crew.submit(task)
        self.outstanding += 1

    def receive(self) -> Reply:
        reply = self.crew.receive()
        self.outstanding -= reply.slot >= 0
        return reply

    def _doing(self, worker: int) -> str:
        """For the error about a dead worker."""
        row = self.rows[worker]
        if not row[FIELD["pid"]]:
            return "before it could start"
        sample = int(row[FIELD["sample"]])
        return "while it waited for work" if sample < 0 else f"while it worked on {self._where(sample)}"

    def close(self) -> None:
        """In a forked child of the trainer's, only what is the child's own: workers and CUDA are not."""
        if os.getpid() == self.process:
            self.crew.close()
            while self.on_close:
                self.on_close.pop()()
        self.memory.close_descriptor()
        self._counters.close_descriptor()


class EpochRun(Iterator[HostBatch]):
    """The batches of a plan, in order. Iterate it once; a newer run of the same workshop ends it."""

    def __init__(self, workshop: Workshop, plan: EpochPlan, px: int, waits: Waits, *, trim: bool = False) -> None:
        """`trim`: padding is left out, so that the last batch is shorter."""
        self._workshop, self.plan, self._px, self.waits, self._trim = workshop, plan, px, waits, trim
        workshop.rows[-1][0] += 1  # workers do not begin the tasks of an earlier run any more
        self._number = int(workshop.rows[-1][0])
        self._batches = len(plan)
        self._sent = self._received = self._shown = 0
        self.taken = 0
        """Batches that the user has; the device's side may have one more."""
        self._ready: dict[int, int] = {}
        self._failed: dict[int, SampleError | TransformError] = {}
        """By batch; raised when its turn comes, whichever worker was first."""
        self._send_tasks()

    def __next__(self) -> HostBatch:
        """Raises StopIteration, SampleError, TransformError or WorkerError."""
        if self._shown == self._batches:
            raise StopIteration
        self._send_tasks()
        started_s = time.perf_counter()
        while self._shown not in self._ready:
            if self._shown in self._failed:
                raise self._failed.pop(self._shown)
            if self._workshop.outstanding:
                self._take_reply(self._workshop.receive())
            else:
                self._workshop.ledger.wait()
            self._send_tasks()
        self.waits.wait_s += time.perf_counter() - started_s
        self._shown += 1
        return self._show(self._ready.pop(self._shown - 1))

    def next_if_ready(self) -> HostBatch | None:
        """The next batch if that needs no waiting; None otherwise, and at the end."""
        workshop = self._workshop
        while self._shown not in self._ready and workshop.outstanding and workshop.crew.ready():
            self._take_reply(workshop.receive())
        return next(self) if self._shown in self._ready else None

    def handed_over(self, samples: int) -> None:
        """The user has one batch more, of so many samples."""
        self.taken += 1
        self.waits.batches += 1
        self.waits.samples += samples

    def _send_tasks(self) -> None:
        workshop = self._workshop
        while self._sent < self._batches and self._sent - self._received < workshop.depth:
            number = workshop.ledger.take()
            if number is None:
                return
            samples_N = self.plan.batch(self._sent)
            if self._trim:
                samples_N = samples_N[samples_N != PADDING]
            workshop.layout.slot(workshop.view, number).samples_N[: len(samples_N)] = samples_N
            workshop.submit(Task(self._number, self._sent, number, len(samples_N), self.plan.epoch, self._px))
            self._sent += 1

    def _take_reply(self, reply: Reply) -> None:
        if reply.slot >= 0 and reply.run != self._number:  # of a run that was given up
            self._workshop.ledger.give_back(reply.slot)
            return
        if reply.kind == BROKEN:
            raise WorkerError(reply.text)
        self._received += 1
        if reply.kind != DONE:
            self._workshop.ledger.give_back(reply.slot)
            error = SampleError if reply.kind == BAD_SAMPLE else TransformError
            self._failed[reply.batch] = error(reply.text, reply.sample)
            return
        self._ready[reply.batch] = reply.slot
        self.waits.bad += reply.bad

    def _show(self, slot_number: int) -> HostBatch:
        workshop, waits = self._workshop, self.waits
        slot = workshop.layout.slot(workshop.view, slot_number)
        filled, size_bytes = slot.filled.tolist()
        images = slot.images
        if workshop.ledger.lent < SPARE_SLOTS:
            workshop.ledger.lend(slot_number, images)
        else:
            with waits.copying():
                images = images[:size_bytes].copy()
            workshop.ledger.give_back(slot_number)
            waits.copied_batches += 1
        return HostBatch(images, slot.labels_N[:filled].copy(), self._px)

    def close(self) -> None:
        """Gives up what is under way; the workers finish it and its slots come back with the next run's replies."""
        for slot in self._ready.values():
            self._workshop.ledger.give_back(slot)
        self._ready.clear()
        self._shown = self._sent = self._batches
