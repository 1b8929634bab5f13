"""The workers of one loader: started as interpreters of their own, watched, and ended with it.

A worker is `python -m feedline.pipeline.workers.entry`: no fork of a process full of torch, no start method, no guard
in the user's script. It gets its memory by file descriptor and its tasks by datagram. It ends when it is told
to, when the trainer's end of the socket closes, and when the trainer dies in whatever way.

A crew takes tasks and gives replies in any order; `receive` waits, unless `ready`.
"""

import json
import os
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.base.process import how_it_ended, start_python
from feedline.pipeline.workers.entry import Worker
from feedline.pipeline.workers.memory import SharedMemory
from feedline.pipeline.workers.messages import MAX_BYTES, STOP, Reply, Task

GRACE_S = 2.0
"""How long a worker may take to end by itself before it is killed; a batch takes milliseconds."""


class InlineCrew:
    """`num_workers=0`: the task is done in the trainer itself, when its reply is asked for."""

    pids: list[int] = []  # noqa: RUF012 never changed

    def __init__(self, worker: Worker) -> None:
        self._worker: Worker | None = worker
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def ready(self) -> bool:
        return False  # it takes the trainer's own time

    def receive(self) -> Reply:
        if self._worker is None:
            raise WorkerError("the loader has been closed")
        self._worker.clock.skip()  # between batches the trainer's thread is not ours: that time is nobody's
        reply = self._worker.perform(self._tasks[0])
        self._tasks.popleft()  # only now: a Ctrl-C amid the task leaves it to be done
        self._worker.clock.tick()
        return reply

    def close(self) -> None:
        self._worker = None


class WorkerCrew:
    def __init__(self, workers: int, setup: dict[str, Any], memories: list[SharedMemory],
                 blame: Callable[[int], str]) -> None:  # fmt: skip
        """What `entry.Worker` takes: plain JSON, and the memories of slots, index and counters. `blame(worker)` says
        in words what the worker was doing when it died."""
        self._blame = blame
        self._workers: list[subprocess.Popen[bytes]] = []
        self._watches: dict[int, int] = {}
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)
        text = json.dumps(setup).encode()
        shared_setup = SharedMemory("setup", len(text))
        shared_setup.view[: len(text)] = text
        try:
            handed = [theirs.fileno(), *(memory.descriptor for memory in (*memories, shared_setup))]
            for number in range(workers):
                self._start(number, handed)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            shared_setup.close_descriptor()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _start(self, number: int, handed: list[int]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (number, os.getpid(), int(in_main), *handed)
        worker = start_python("feedline.pipeline.workers.entry", [*map(str, numbers)], handed)
        self._workers.append(worker)
        watch = os.pidfd_open(worker.pid)
        self._watches[watch] = number
        self._poll.register(watch, select.POLLIN)

    def submit(self, task: Task) -> None:
        try:
            self._ours.send(task.pack())
        except (BrokenPipeError, ConnectionResetError):
            self._raise_death()

    def ready(self) -> bool:
        return bool(self._poll.poll(0))

    def receive(self) -> Reply:
        """The next reply. Raises WorkerError as soon as a worker has died, even if others could go on: whoever
        kills one (a memory limit, usually) will do it again."""
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if ready.isdisjoint(self._watches):
                # nothing comes, or a reset, when all have closed or one died with tasks unread
                with suppress(ConnectionResetError):
                    if data := self._ours.recv(MAX_BYTES):
                        return Reply.unpack(data)
            self._raise_death()

    def _raise_death(self) -> None:
        """Raises WorkerError that says which worker ended and how."""
        deaths = select.poll()
        for watch in self._watches:
            deaths.register(watch, select.POLLIN)
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            for number, worker in enumerate(self._workers):
                if (status := worker.poll()) is not None:
                    how = how_it_ended(status)
                    raise WorkerError(f"loader worker {number} (pid {worker.pid}) {how} {self._blame(number)}")
            deaths.poll(GRACE_S * 1000)
        raise WorkerError("a loader worker closed its connection and did not end")

    def close(self) -> None:
        """Ends every worker, by word, then by signal. Returns when all are gone; safe to call twice."""
        try:
            self._ours.setblocking(False)
            for _ in self._workers:
                self._ours.send(STOP.pack())
        except OSError:
            pass  # full, broken or closed: closing says the same
        self._ours.close()
        deadline_s = time.monotonic() + GRACE_S
        for worker in self._workers:
            try:
                worker.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for watch in self._watches:
            os.close(watch)
        self._workers, self._watches = [], {}
        self._blame = str  # it leads back to who owns us: the memory must not wait for the cycle collector
