"""A loader's worker: takes tasks, fills slots, replies. Starts in 0.2 s because it imports no torch.

Started by `pipeline.workers.pool` as `python -m feedline.pipeline.workers.entry NUMBER PARENT PARENT_IS_MAIN SOCKET
SLOTS INDEX COUNTERS SETUP`, the last five being inherited file descriptors. It waits in one `recv`; the socket's
end, the parent's death and STOP all end it. Signals are the trainer's business: the terminal, Slurm and torchrun send
them to everyone, and the trainer then ends its workers in order, or writes a checkpoint and goes on.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

import cv2

from feedline.pipeline.base.errors import FeedlineError, SampleError, TransformError
from feedline.pipeline.base.process import allow_open_files, die_with, keep_freed_memory
from feedline.pipeline.format.local import BLOCK_BYTES
from feedline.pipeline.workers.counters import FIELD, NOTHING, Clock, rows_of
from feedline.pipeline.workers.fill import FillSpec, GivenUp, PixelFiller, where_raised
from feedline.pipeline.workers.fill_regions import RegionFiller
from feedline.pipeline.workers.memory import attach, shared_columns
from feedline.pipeline.workers.messages import BAD_SAMPLE, BAD_TRANSFORM, BROKEN, GIVEN_UP, STOP, Reply, Task
from feedline.pipeline.workers.slots import SlotLayout

_ORPHAN_CHECK_S = 2.0
DEAF_TO = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


class Worker:
    """Fills slots: in a process of its own, or in the trainer with `num_workers=0`."""

    def __init__(self, number: int, setup: dict[str, Any], slots: memoryview, index: memoryview,
                 counters: memoryview) -> None:  # fmt: skip
        self._slots = slots
        self._layout = SlotLayout(**setup["slot_layout"])
        rows = rows_of(counters, setup["rows"])
        self._current_run = rows[-1].data
        self.clock = Clock(rows[number])
        filler = {"cpu": PixelFiller, "gpu": RegionFiller}[setup["fill"]["decode"]]
        columns = shared_columns(index, setup["index_layout"])
        self._filler = filler(FillSpec(**setup["fill"]), columns, self.clock)

    def perform(self, task: Task) -> Reply:
        """Fills the task's slot. What went wrong is in the reply: a worker outlives a bad sample or transform."""
        about, run, current_run = (task.slot, task.run, task.batch), task.run, self._current_run
        self._filler.wanted = lambda: run >= current_run[0]  # not of `self`: a circle would keep the memory
        slot, clock = self._layout.slot(self._slots, task.slot), self.clock
        samples_N, labels_N = slot.samples_N[: task.samples], slot.labels_N[: task.samples]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        try:
            if task.hints:
                self._filler.announce(slot.hints_N[: task.hints], task.way)
            filled, size_bytes, bad = self._filler.fill(samples_N, task.epoch, task.px, slot.images, labels_N)
        except SampleError as error:
            return Reply(BAD_SAMPLE, *about, error.sample, error.reason)
        except TransformError as error:
            return Reply(BAD_TRANSFORM, *about, error.sample, error.reason)
        except GivenUp:
            return Reply(GIVEN_UP, *about)
        finally:
            clock.row[FIELD["sample"]] = NOTHING
            blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before
            clock.row[FIELD["storage_bytes"]] += BLOCK_BYTES * blocks
        slot.filled[:] = filled, size_bytes
        clock.row[FIELD["samples"]] += filled
        clock.row[FIELD["batches"]] += 1
        return Reply.done(*about, bad)


def main(arguments: list[str]) -> None:
    number, parent, in_main, link, slots, index, counters, setup = map(int, arguments)
    for kind in DEAF_TO:
        signal.signal(kind, signal.SIG_IGN)
    cv2.setNumThreads(1)  # a worker per core: threads inside one would only queue
    # The kernel would kill us with the *thread* that started us, too: a trainer that starts us from another thread
    # than its first is watched through the socket and getppid alone.
    if in_main:
        die_with(parent)
    keep_freed_memory()  # a sample's buffers are the next one's: no page faults for them
    allow_open_files()
    connection = socket.socket(fileno=link)
    connection.settimeout(_ORPHAN_CHECK_S)
    try:
        settings = json.loads(bytes(attach(setup)).rstrip(b"\0"))
        worker = Worker(number, settings, attach(slots), attach(index), attach(counters))
        worker.clock.row[FIELD["pid"]] = os.getpid()
        gc.freeze()
        serve(worker, connection, parent)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the trainer is gone
    except Exception as error:
        what = str(error) if isinstance(error, FeedlineError) else where_raised(error)
        connection.send(Reply(BROKEN, -1, -1, -1, text=f"loader worker {number} cannot work: {what}").pack())


def serve(worker: Worker, connection: socket.socket, parent: int) -> None:
    """Until STOP comes or the trainer is gone."""
    idle, send = FIELD["idle"], FIELD["send"]
    while True:
        try:
            data = connection.recv(64)
        except TimeoutError:
            if os.getppid() != parent:
                return
            worker.clock.mark(idle)
            worker.clock.tick()
            continue
        if not data or (task := Task.unpack(data)) == STOP:
            return
        worker.clock.mark(idle)
        reply = worker.perform(task).pack()
        while True:
            try:
                connection.send(reply)
                break
            except TimeoutError:  # what the trainer has not heard yet fills the buffer that all workers share
                if os.getppid() != parent:
                    return
        worker.clock.mark(send)
        worker.clock.tick()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # a transform's libraries report at an interpreter's end what they leave behind, line by line
