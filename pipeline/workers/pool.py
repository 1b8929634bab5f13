"""The workers of one loader: started as interpreters of their own, watched, and ended with it.

A worker is `python -m feedline.pipeline.workers.entry`: no fork of a process full of torch, no start method, no guard
in the user's script. It gets its memory by file descriptor and its tasks by datagram. It ends when it is told
to, when the trainer's end of the socket closes, and when the trainer dies in whatever way.

A crew takes tasks and gives replies in any order; `receive` waits, unless `ready`.
"""

import errno
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
from typing import Any, NoReturn

import cv2

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.base.process import how_it_ended, start_python, wait_or_kill
from feedline.pipeline.workers.entry import DEAF_TO, Worker
from feedline.pipeline.workers.memory import SharedMemory
from feedline.pipeline.workers.messages import MAX_BYTES, STOP, Reply, Task

GRACE_S = 2.0
"""How long a worker may take to end by itself before it is killed; a batch takes milliseconds."""


def _process_watch(pid: int) -> list[int]:
    """Nothing on kernels before 5.3, and where a sandbox refuses it: the lifeline tells of a death, unless a process
    that the worker has started holds it."""
    try:
        return [os.pidfd_open(pid)]
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return []


class _OneOpenCvThread:
    """Within it OpenCV has one, in however many threads of ours; whoever leaves last gives it back what it had."""

    def __init__(self) -> None:
        self._turn, self._inside, self._threads = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._turn:
            if not self._inside:
                self._threads = cv2.getNumThreads()
                cv2.setNumThreads(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._inside -= 1
            if not self._inside:
                cv2.setNumThreads(self._threads)


_one_opencv_thread = _OneOpenCvThread()


class InlineCrew:
    """`num_workers=0`: the task is done in the trainer itself, when its reply is asked for."""

    pids: list[int] = []  # noqa: RUF012 never changed
    count = 0

    def __init__(self, worker: Worker) -> None:
        self._worker: Worker | None = worker
        self._tasks: deque[Task] = deque()
        self._reply: Reply | None = None

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def ready(self) -> bool:
        return False  # it takes the trainer's own time

    def wait(self) -> None:
        if self._worker is None:
            raise WorkerError("the loader has been closed")
        self._worker.clock.skip()  # between batches the trainer's thread is not ours: that time is nobody's
        with _one_opencv_thread:  # as in a worker; the trainer's own OpenCV keeps what it has
            self._reply = self._worker.perform(self._tasks[0])
        self._worker.clock.tick()

    def receive(self) -> Reply:
        assert self._reply is not None
        self._tasks.popleft()  # only now: a Ctrl-C amid the task leaves it to be done
        return self._reply

    def close(self) -> None:
        self._worker = None


class WorkerCrew:
    """All take tasks from one socket, so workers may come and go at any time."""

    def __init__(self, workers: int, setup: dict[str, Any], memories: list[SharedMemory],
                 blame: Callable[[int], str]) -> None:  # fmt: skip
        """What `entry.Worker` takes: plain JSON, and the memories of slots, index and counters. `blame(worker)` says
        in words what the worker was doing when it died."""
        self._blame = blame
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        """By number, which is that of their row of counters and given once; those who are leaving too."""
        self.started = self._leaving = 0
        self._watches: dict[int, int] = {}
        """What tells of a worker's end, or that it has closed all it was given: its number."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)
        text = json.dumps(setup).encode()
        self._setup = SharedMemory("setup", len(text))
        self._setup.view[: len(text)] = text
        self._handed = [self._theirs.fileno(), *(memory.descriptor for memory in (*memories, self._setup))]
        try:
            for _ in range(workers):
                self.add()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise WorkerError(f"no loader worker can be started: {error.strerror}") from error
            raise

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers.values()]

    @property
    def count(self) -> int:
        """Workers, without those who have been told to leave."""
        return len(self.workers) - self._leaving

    def add(self) -> None:
        """Raises OSError where no process can be started."""
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (self.started, os.getpid(), int(in_main), *self._handed)
        lifeline, held = os.pipe()  # nobody else holds its other end: it is closed with all else that a worker has
        worker: subprocess.Popen[bytes] | None = None
        try:
            words = [*map(str, numbers)]
            worker = start_python("feedline.pipeline.workers.entry", words, [*self._handed, held], blocked=DEAF_TO)
            watches = [lifeline, *_process_watch(worker.pid)]
        except BaseException:
            os.close(lifeline)
            if worker is not None:  # it cannot be watched, and has had no time to take a task
                worker.kill()
                worker.wait()
            raise
        finally:
            os.close(held)
        self.workers[self.started] = worker
        for watch in watches:
            self._watches[watch] = self.started
            self._poll.register(watch, select.POLLIN)
        self.started += 1

    def retire(self) -> None:
        """One worker, whichever is first, leaves when it has done the tasks sent before."""
        self._leaving += 1
        self._ours.send(STOP.pack())

    def submit(self, task: Task) -> None:
        self._ours.send(task.pack())

    def ready(self) -> bool:
        return bool(self._news(0))

    def wait(self) -> None:
        """Until there is a reply, or a worker has died."""
        self._news()

    def receive(self) -> Reply:
        """The next reply. Raises WorkerError as soon as a worker has died, even if others could go on: whoever
        kills one (a memory limit, usually) will do it again."""
        if self._news().isdisjoint(self._watches) and (data := self._ours.recv(MAX_BYTES)):
            return Reply.unpack(data)
        return self._raise_death()

    def _news(self, timeout_ms: int | None = None) -> set[int]:
        """Descriptors that have any. Workers who have left as they were told are seen off and are none."""
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}
            ended = {self._watches[watch] for watch in ready & self._watches.keys()} if self._leaving else set[int]()
            left = [number for number in ended if self._has_left(number)]
            if not left:
                return ready
            for number in left:
                self._forget(number)

    def _has_left(self, number: int) -> bool:
        with suppress(subprocess.TimeoutExpired):
            return self._leaving > 0 and self.workers[number].wait(GRACE_S) == 0
        return False

    def _forget(self, number: int) -> None:
        self._leaving -= 1
        del self.workers[number]
        for watch in [watch for watch, of in self._watches.items() if of == number]:
            self._poll.unregister(watch)
            del self._watches[watch]
            os.close(watch)

    def _raise_death(self) -> NoReturn:
        """Raises WorkerError that says which worker ended and how."""
        deaths = select.poll()
        for watch in self._watches:
            deaths.register(watch, select.POLLIN)
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            for number, worker in self.workers.items():
                if (status := worker.poll()) is not None:
                    how = how_it_ended(status)
                    raise WorkerError(f"loader worker {number} (pid {worker.pid}) {how} {self._blame(number)}")
            deaths.poll(GRACE_S * 1000)
        raise WorkerError("a loader worker closed its connection and did not end")

    def close(self) -> None:
        """Ends every worker, by word, then by signal. Returns when all are gone; safe to call twice."""
        try:
            self._ours.setblocking(False)
            for _ in self.workers:
                self._ours.send(STOP.pack())
        except OSError:
            pass  # full, broken or closed: closing says the same
        self._ours.close()
        self._theirs.close()
        self._setup.close_descriptor()
        deadline_s = time.monotonic() + GRACE_S
        for worker in self.workers.values():
            wait_or_kill(worker, max(0.0, deadline_s - time.monotonic()))
        for watch in self._watches:
            os.close(watch)
        self.workers, self._watches, self._leaving = {}, {}, 0
        self._blame = str  # it leads back to who owns us: the memory must not wait for the cycle collector
