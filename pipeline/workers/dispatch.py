"""Slots, counters and workers of one loader, and the runs through its epochs in exact order. NumPy only.

Tasks go out in order, one per free slot, at most `depth` at a time; replies come in any order and are held until
their turn. So the order of batches never depends on how many workers there are or how fast each is.

Behind an epoch's last task go those of the epoch that is expected next, into slots that are free anyway: no worker
stops at an epoch's end. Its run is the next one if it was the right guess; if not, workers leave it before they read
another sample, at the latest when a call that fills several places (`fill`) is over.

With each task goes what is to be announced to the storage (`ahead`). With `num_workers="auto"` workers come and go
between two batches (`headcount`).
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
from feedline.pipeline.workers.ahead import Ahead, Seen
from feedline.pipeline.workers.counters import FIELD
from feedline.pipeline.workers.entry import Worker
from feedline.pipeline.workers.fill import FillSpec
from feedline.pipeline.workers.headcount import Headcount, Totals
from feedline.pipeline.workers.memory import Layout, SharedMemory
from feedline.pipeline.workers.messages import BAD_SAMPLE, BROKEN, DONE, Reply, Task
from feedline.pipeline.workers.pool import InlineCrew, WorkerCrew
from feedline.pipeline.workers.slots import CHANNELS, Fence, Images, Ledger, Numbers, Slot, SlotLayout

SPARE_SLOTS = 3
"""Slots the user may hold without a copy being made: the batch in hand, the next, and one fetched ahead."""
_NO_RUN = 2**63 - 1  # as the current one: nothing is wanted any more
_MOST_IN_FLIGHT = 128  # tasks in the socket's buffer; more would only wait there
_REPLIES_PER_LOOK = 4  # a look at what reads wait for takes 8 µs
_MOST_CHANGES = 64  # of the number of workers, each of whom has a row of counters


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
    """Flat bytes as the filler wrote them. Shows a slot, which is lent for as long as this lives, or is a copy."""
    labels_N: Numbers
    """Shows the same slot or is a copy; lends nothing."""
    px: int

    @property
    def images_NHWC(self) -> Images:
        """A view of the bytes of `PixelFiller`."""
        count = len(self.labels_N)
        return self.images[: count * self.px * self.px * CHANNELS].reshape(count, self.px, self.px, CHANNELS)


class Workshop:
    """Owns memory and workers, and says what these do next; `close` ends them. One run is iterated at a time."""

    def __init__(self, spec: FillSpec, index: SharedMemory, index_layout: Layout, layout: SlotLayout,
                 *, workers: int, prefetch: int, fence: Callable[[], Fence], where: Callable[[int], str],
                 waits: Waits, ahead: Ahead, headcount: Headcount | None = None, trim: bool = False,
                 before: counters.Rows | None = None) -> None:  # fmt: skip
        """`workers`, or as many as `headcount` says. `prefetch`: batches under way for each. `where(sample)` names a
        sample in messages. `trim`: padding is left out, so that an epoch's last batch is shorter. `before`: the rows
        of a workshop to go on for."""
        self._where = where
        self.waits, self.ahead, self.trim = waits, ahead, trim
        self._headcount, self._prefetch = headcount, prefetch
        if headcount:
            headcount.begin_anew()
        self._last_s = self._active_s = 0.0
        self.process = os.getpid()
        most = headcount.most if headcount else workers
        self.depth = min(max(1, most * prefetch), _MOST_IN_FLIGHT)
        """Tasks under way at most."""
        self.layout = layout
        slots = self.depth + SPARE_SLOTS
        self.memory = SharedMemory("slots", slots * layout.slot_bytes)
        self.view = self.memory.view
        self.slots = [layout.slot(self.view, number) for number in range(slots)]
        self.ledger = Ledger(slots, fence)
        # the last one is ours: which run is the current one
        rows = len(before) if before is not None else max(most, 1) + 1 + (_MOST_CHANGES if headcount else 0)
        self._counters = SharedMemory("counters", rows * counters.ROW_BYTES)
        self.rows = counters.rows_of(self._counters.view, rows)
        if before is not None:
            self.rows[:-1] = before[:-1]
            self.rows[:-1, FIELD["pid"]] = 0
        self.outstanding = 0
        """Tasks without a reply, those of runs that were given up too."""
        self._begun = self._replies = 0
        self.torn = False
        """Amid what must happen as a whole. What is so when nobody is at work was interrupted (Ctrl-C), has lost a
        slot, a task or a batch, and is of no more use."""
        self._runs: dict[int, EpochRun] = {}
        """By number: the one that is iterated, and behind it the one that is begun ahead."""
        self.on_close: list[Callable[[], None]] = []
        setup = {"slot_layout": asdict(layout), "index_layout": index_layout, "fill": asdict(spec), "rows": rows}
        memories = [self.memory, index, self._counters]
        self.crew: InlineCrew | WorkerCrew
        if most:
            self.crew = WorkerCrew(headcount.workers if headcount else workers, setup, memories, self._doing)
        else:
            self.crew = InlineCrew(Worker(0, setup, *(memory.view for memory in memories)))
            self.rows[0, FIELD["pid"]] = self.process

    def begin(self, plan: EpochPlan, px: int, then: EpochPlan | None = None) -> "EpochRun":
        """A run through the plan: the one that was begun ahead, if that is what it goes through. What else is under
        way is given up. `then` is begun ahead in turn. Raises WorkerError where a worker has ended since."""
        while self.crew.ready():
            self.take_reply()
        kept = next((run for run in self._runs.values() if run.goes_through(plan, px)), None)
        for other in [run for run in self._runs.values() if run is not kept]:
            other.close()
        run = kept or self._new_run(plan, px)
        self.rows[-1][0] = run.number  # workers leave the tasks of earlier ones
        self._last_s = time.perf_counter()
        if then is not None:
            self._new_run(then, px)
        self.send_tasks()
        return run

    def _new_run(self, plan: EpochPlan, px: int) -> "EpochRun":
        self._begun += 1
        run = self._runs[self._begun] = EpochRun(self, self._begun, plan, px)
        return run

    def forget(self, run: "EpochRun") -> None:
        """It has ended: the slots of its tasks come back with their replies."""
        self.ahead.given_up(run)
        self._runs.pop(run.number, None)

    def send_tasks(self) -> None:
        """One into every free slot, while fewer than `depth` are under way; a run's all before those of the next."""
        under_way = sum(run.sent - run.received for run in self._runs.values())
        most = min(self.depth, max(1, self.crew.count * self._prefetch))
        for run in self._runs.values():
            while run.sent < run.batches and under_way < most:
                self.torn = True
                number = self.ledger.take()
                if number is None:
                    self.torn = False
                    return
                hints = self._hints(self.slots[number])
                self.crew.submit(run.task(number, hints, self.ahead.reach.way))
                self.outstanding += 1
                run.sent += 1
                under_way += 1
                self.torn = False

    def _hints(self, slot: Slot) -> int:
        """Writes there what is to be announced with the next task; how many samples."""
        end = 0
        for samples_N in self.ahead.hints(self._runs.values()):
            begin, end = end, end + len(samples_N)
            slot.hints_N[begin:end] = samples_N
        return end

    def take_reply(self) -> None:
        """Waits for one and hands it to its run. Raises WorkerError."""
        self.crew.wait()
        self.torn = True
        reply = self.crew.receive()
        if reply.kind == BROKEN:
            raise WorkerError(reply.text)
        self.outstanding -= 1
        self._replies += 1
        if self._replies % _REPLIES_PER_LOOK == 0:
            self.ahead.reach.told(Seen.by(self.rows[:-1]))
        run = self._runs.get(reply.run)
        if run is not None:
            run.keep(reply)
            self.ahead.done(run, reply.batch)
        else:
            self.ledger.give_back(reply.slot)
        self.torn = False

    def batch_shown(self) -> None:
        """Lets workers come and go, as the headcount says."""
        count = self._headcount
        if count is None or isinstance(self.crew, InlineCrew):
            return
        now_s = time.perf_counter()
        self._active_s, self._last_s = self._active_s + now_s - self._last_s, now_s
        sums = self.rows[:-1].sum(axis=0).tolist()
        worker_ns, idle_ns = sums[FIELD["now_ns"]] - sums[FIELD["started_ns"]], sums[FIELD["idle"]]
        waits, workers = self.waits, self.crew.workers
        totals = Totals(self._active_s, waits.samples, waits.batches, waits.wait_s, worker_ns, idle_ns)
        at_work = sum(bool(self.rows[number, FIELD["pid"]]) for number in workers)
        wanted = count.told(totals, at_work if len(workers) == self.crew.count else 0)
        try:
            while self.crew.count < wanted:
                if self.crew.started == len(self.rows) - 1:
                    raise OSError(0, f"{_MOST_CHANGES} changes are enough")
                self.crew.add()
        except OSError as error:
            count.refused(self.crew.count, f"no worker can be added: {error.strerror}")
        while self.crew.count > wanted:
            self.crew.retire()
        self.ahead.reach.least = self.crew.count

    def _doing(self, worker: int) -> str:
        """For the error about a dead worker. Samples that are filled together were all read before."""
        row = self.rows[worker]
        if not row[FIELD["pid"]]:
            return "before it could start"
        sample = int(row[FIELD["sample"]])
        if sample < 0:
            return "while it waited for work"
        return f"while it worked on {self._where(sample)}, or on one that it read just before"

    def close(self) -> None:
        """In a forked child of the trainer's, only what is the child's own: workers and CUDA are not."""
        for run in self._runs.values():
            self.ahead.given_up(run)
        self._runs.clear()  # they lead back to us: the memory must not wait for the cycle collector
        if os.getpid() == self.process:
            self.rows[-1][0] = _NO_RUN
            self.crew.close()
            while self.on_close:
                self.on_close.pop()()
        self.memory.close_descriptor()
        self._counters.close_descriptor()


class EpochRun(Iterator[HostBatch]):
    """The batches of a plan, in order; iterate it once. `Workshop.begin` makes it, and ends it with the next."""

    def __init__(self, workshop: Workshop, number: int, plan: EpochPlan, px: int) -> None:
        self._workshop, self.number, self.plan, self._px, self.waits = workshop, number, plan, px, workshop.waits
        self.batches = len(plan)
        self.sent = self.received = self._shown = self.announced = 0
        self.announced_bytes: dict[int, int] = {}
        self.taken = 0
        """Batches that the user has; the device's side may have one more."""
        self._replies: dict[int, Reply] = {}
        """By batch: filled, or what went wrong, which is told when its turn comes, whichever worker was first."""

    def goes_through(self, plan: EpochPlan, px: int) -> bool:
        """Plans of one loader differ in nothing else."""
        return (self.plan.epoch, self.plan.start, self._px) == (plan.epoch, plan.start, px)

    def samples(self, batch: int) -> Numbers:
        samples_N = self.plan.batch(batch)
        return samples_N[samples_N != PADDING] if self._workshop.trim else samples_N

    def task(self, slot: int, hints: int, way: int) -> Task:
        """The next one to send, its samples' numbers written into the slot."""
        samples_N = self.samples(self.sent)
        self._workshop.slots[slot].samples_N[: len(samples_N)] = samples_N
        return Task(self.number, self.sent, slot, len(samples_N), self.plan.epoch, self._px, hints, way)

    def keep(self, reply: Reply) -> None:
        self.received += 1
        self._replies[reply.batch] = reply

    def __next__(self) -> HostBatch:
        """Raises StopIteration, SampleError, TransformError or WorkerError."""
        if self._shown == self.batches:
            raise StopIteration
        workshop = self._workshop
        workshop.send_tasks()
        started_s = time.perf_counter()
        while self._shown not in self._replies:
            if workshop.outstanding:
                workshop.take_reply()
            else:
                workshop.ledger.wait()
            workshop.send_tasks()
        self.waits.wait_s += time.perf_counter() - started_s
        workshop.torn = True  # until the user has the batch
        reply = self._replies.pop(self._shown)
        if reply.kind != DONE:
            workshop.ledger.give_back(reply.slot)
            workshop.torn = False
            raise (SampleError if reply.kind == BAD_SAMPLE else TransformError)(reply.text, reply.sample)
        self._shown += 1
        self.waits.bad += reply.bad
        workshop.batch_shown()
        return self._show(reply.slot)

    def next_if_ready(self) -> HostBatch | None:
        """The next batch if that needs no waiting; None otherwise, before a bad one, and at the end."""
        workshop = self._workshop
        while self._shown not in self._replies and self.received < self.sent and workshop.crew.ready():
            workshop.take_reply()
        reply = self._replies.get(self._shown)
        return next(self) if reply is not None and reply.kind == DONE else None

    def handed_over(self, samples: int) -> None:
        """The user has one batch more, of so many samples."""
        self._workshop.torn = False
        self.taken += 1
        self.waits.batches += 1
        self.waits.samples += samples

    def _show(self, slot_number: int) -> HostBatch:
        workshop, waits = self._workshop, self.waits
        slot = workshop.slots[slot_number]
        filled, size_bytes = slot.filled.tolist()
        images, labels_N = workshop.layout.images(workshop.view, slot_number), slot.labels_N[:filled]
        if workshop.ledger.lent < SPARE_SLOTS:
            workshop.ledger.lend(slot_number, images)
        else:
            with waits.copying():
                images, labels_N = images[:size_bytes].copy(), labels_N.copy()
            workshop.ledger.give_back(slot_number)
            waits.copied_batches += 1
        return HostBatch(images, labels_N, self._px)

    def close(self) -> None:
        """Gives up what is under way: workers leave it once another run is begun."""
        while self._replies:  # and never twice, should this be interrupted
            self._workshop.ledger.give_back(self._replies.popitem()[1].slot)
        self._shown = self.sent = self.received = self.batches
        self._workshop.forget(self)
