"""A loader's worker: takes tasks, fills slots, replies. Starts in 0.2 s because it imports no torch.

Started by `pipeline.workers.pool` as `python -m feedline.pipeline.workers.entry NUMBER PARENT PARENT_IS_MAIN SOCKET
    SLOTS INDEX
COUNTERS ORDERS`, the last five being inherited file descriptors. It waits in one `recv`; the socket's end, the
parent's death and STOP all end it. Ctrl-C is the trainer's business: the terminal sends it to everyone, and
the trainer then ends its workers in order.
"""

import gc
import json
import os
import signal
import socket
import sys
from typing import Any

import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError, SampleError, TransformError
from feedline.pipeline.base.memory import attach, shared_columns
from feedline.pipeline.base.process import die_with_parent, keep_freed_memory
from feedline.pipeline.workers.counters import FIELD, NOTHING, Clock, rows_of
from feedline.pipeline.workers.fill import Filler, FillSpec, PixelFiller, where_raised
from feedline.pipeline.workers.fill_regions import RegionFiller
from feedline.pipeline.workers.messages import BAD_SAMPLE, BAD_TRANSFORM, BROKEN, DONE, GIVEN_UP, STOP, Reply, Task
from feedline.pipeline.workers.slots import SlotLayout

_ORPHAN_CHECK_S = 2.0


def die_with(parent: int, parent_is_main_thread: bool) -> None:
    """The kernel kills us when the trainer dies. It would also do so when the *thread* that started us ends, so a
    trainer that starts us from another thread is watched through the socket and getppid alone."""
    if parent_is_main_thread:
        die_with_parent()
    if os.getppid() != parent:
        sys.exit(0)


def main(arguments: list[str]) -> None:
    number, parent, in_main, link, slots, index, counters, orders = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent, bool(in_main))
    keep_freed_memory()  # a sample's buffers are the next one's: no page faults for them
    connection = socket.socket(fileno=link)
    try:
        worker = Worker(number, connection, slots, index, counters, orders)
        gc.freeze()
        worker.run(parent)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the trainer is gone
    except Exception as error:
        what = str(error) if isinstance(error, FeedlineError) else where_raised(error)
        connection.send(Reply(BROKEN, number, -1, -1, -1, text=f"loader worker {number} cannot work: {what}").pack())


class Worker:
    def __init__(self, number: int, connection: socket.socket, slots: int, index: int, counters: int, orders: int):
        told = json.loads(bytes(attach(orders)).rstrip(b"\0"))
        self._number = number
        self._connection = connection
        self._slots = attach(slots)
        self._layout = SlotLayout(**told["slot_layout"])
        rows = rows_of(attach(counters), told["workers"] + 1)
        self._current_run = rows[-1].data
        self._clock = Clock(rows[number])
        self._clock.set(FIELD["pid"], os.getpid())
        columns = shared_columns(attach(index), told["index_layout"])
        self._filler = make_filler(FillSpec(**told["fill"]), columns, self._clock)

    def run(self, parent: int) -> None:
        self._connection.settimeout(_ORPHAN_CHECK_S)
        while (data := self._next(parent)) and (task := Task.unpack(data)).slot != STOP.slot:
            self._clock.mark(FIELD["idle"])
            if task.run < self._current_run[0]:
                reply = Reply(GIVEN_UP, self._number, task.slot, task.run, task.batch)
            else:
                reply = perform(task, self._number, self._filler, self._layout, self._slots, self._clock)
            self._connection.send(reply.pack())
            self._clock.mark(FIELD["send"])
            self._clock.tick()

    def _next(self, parent: int) -> bytes:
        """The next datagram; empty when the trainer is gone."""
        while True:
            try:
                return self._connection.recv(64)
            except TimeoutError:
                if os.getppid() != parent:
                    return b""
                self._clock.mark(FIELD["idle"])
                self._clock.tick()


def make_filler(spec: FillSpec, columns: dict[str, npt.NDArray[Any]], clock: Clock) -> Filler:
    return {"cpu": PixelFiller, "gpu": RegionFiller}[spec.decode](spec, columns, clock)


def perform(task: Task, number: int, filler: Filler, layout: SlotLayout, slots: memoryview, clock: Clock) -> Reply:
    """Fills the task's slot. What went wrong is in the reply: a worker outlives a bad sample or transform."""
    labels_N = layout.labels_N(slots, task.slot, task.count)
    samples_N = layout.samples_N(slots, task.slot, task.count)
    clock.set(FIELD["batch"], task.batch)
    try:
        filled, size_bytes, bad = filler.fill(
            samples_N, task.epoch, task.px, layout.images(slots, task.slot), labels_N
        )
    except SampleError as error:
        return Reply(BAD_SAMPLE, number, task.slot, task.run, task.batch, error.sample, error.reason)
    except TransformError as error:
        return Reply(BAD_TRANSFORM, number, task.slot, task.run, task.batch, error.sample, error.reason)
    finally:
        clock.set(FIELD["batch"], NOTHING)
        clock.set(FIELD["sample"], NOTHING)
    layout.filled(slots, task.slot)[:] = filled, size_bytes
    clock.add(FIELD["samples"], filled)
    clock.add(FIELD["batches"], 1)
    notes = "\n".join(f"{one.sample} {one.reason}" for one in bad)
    return Reply(DONE, number, task.slot, task.run, task.batch, text=notes)


if __name__ == "__main__":
    main(sys.argv[1:])
