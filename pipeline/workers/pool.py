"""The workers of one loader: started as interpreters of their own, watched, and ended with it.

A worker is `python -m feedline.pipeline.workers.entry`: no fork of a process full of torch, no start method, no guard
in the user's script. It gets its memory by file descriptor and its tasks by datagram. It ends when it is told
to, when the trainer's end of the socket closes, and when the trainer dies in whatever way.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.base.memory import SharedMemory
from feedline.pipeline.workers.messages import MAX_BYTES, STOP, Reply, Task

GRACE_S = 2.0
"""How long a worker may take to end by itself before it is killed; a batch takes milliseconds."""

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
"""A worker per core: a numeric library that starts a thread per core in each of them only makes them queue."""


class Crew(Protocol):
    """Takes tasks, gives replies in any order. `receive` waits, unless `ready`."""

    @property
    def pids(self) -> list[int]: ...
    def submit(self, task: Task) -> None: ...
    def ready(self) -> bool: ...
    def receive(self) -> Reply: ...
    def close(self) -> None: ...


class InlineCrew:
    """`num_workers=0`: the task is done in the trainer itself, when its reply is asked for."""

    def __init__(self, perform: Callable[[Task], Reply]) -> None:
        self._perform = perform
        self._tasks: deque[Task] = deque()

    pids: list[int] = []  # noqa: RUF012 never changed

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def ready(self) -> bool:
        return False  # it takes the trainer's own time

    def receive(self) -> Reply:
        return self._perform(self._tasks.popleft())

    def close(self) -> None:
        self._tasks.clear()
        self._perform = _gone  # it leads back to who owns us: the memory must not wait for the cycle collector


def _gone(_: Task) -> Reply:
    raise WorkerError("the loader has been closed")


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What every worker of a crew is given."""

    slots: SharedMemory
    index: SharedMemory
    counters: SharedMemory
    orders: dict[str, Any]
    """Plain JSON: the layout of the memory and how to fill a slot."""


class WorkerCrew:
    def __init__(self, workers: int, equipment: Equipment, blame: Callable[[int], str]) -> None:
        """`blame(worker)` says in words what the worker was doing when it died."""
        self._blame = blame
        self._process = os.getpid()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        text = json.dumps(equipment.orders).encode()
        orders = SharedMemory("orders", len(text))
        orders.view[: len(text)] = text
        memories = (equipment.slots, equipment.index, equipment.counters, orders)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)
        self._watches: dict[int, int] = {}
        try:
            handed = [theirs.fileno(), *(memory.descriptor for memory in memories)]
            for number in range(workers):
                self._start(number, handed)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            orders.close_descriptor()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _start(self, number: int, handed: list[int]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (number, os.getpid(), int(in_main), *handed)
        command = [sys.executable, "-P", "-m", "feedline.pipeline.workers.entry", *map(str, numbers)]
        with _no_interrupts():
            worker = subprocess.Popen(command, env=_environment(), pass_fds=handed, stdin=subprocess.DEVNULL)
        self._workers.append(worker)
        watch = os.pidfd_open(worker.pid)
        self._watches[watch] = number
        self._poll.register(watch, select.POLLIN)

    def submit(self, task: Task) -> None:
        try:
            self._ours.send(task.pack())
        except (BrokenPipeError, ConnectionResetError):
            self._bury_one()

    def ready(self) -> bool:
        return bool(self._poll.poll(0))

    def receive(self) -> Reply:
        """The next reply. Raises WorkerError as soon as a worker has died, even if others could go on: whoever
        kills one (a memory limit, usually) will do it again."""
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if ready.isdisjoint(self._watches) and (data := self._read()):
                return Reply.unpack(data)
            self._bury_one()

    def _read(self) -> bytes:
        """b"" when all workers have closed; so does one that dies with orders unread, before its end is announced."""
        try:
            return self._ours.recv(MAX_BYTES)
        except ConnectionResetError:
            return b""

    def _bury_one(self) -> None:
        """Raises WorkerError that says which worker ended and how."""
        deadline_s = time.monotonic() + GRACE_S
        while time.monotonic() < deadline_s:
            for number, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    raise WorkerError(f"loader worker {number} {_end(worker)} {self._blame(number)}")
            select.select(list(self._watches), [], [], GRACE_S)
        raise WorkerError("a loader worker closed its connection and did not end")

    def close(self) -> None:
        """Ends every worker, by word, then by signal. Returns when all are gone; safe to call twice."""
        if os.getpid() != self._process:
            return  # a forked child of the trainer: the workers are not its own
        self._ours.setblocking(False)
        try:
            for _ in self._workers:
                self._ours.send(STOP.pack())
        except OSError:
            pass  # full or broken: closing says the same
        self._ours.close()
        _wait(self._workers, GRACE_S)
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        for watch in self._watches:
            os.close(watch)
        self._workers, self._watches = [], {}
        self._blame = str  # as `_perform` above


def _environment() -> dict[str, str]:
    """The trainer's, with its import path: what it can import its workers can, whatever changed sys.path since."""
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def _no_interrupts() -> Generator[None]:
    """A Ctrl-C in here is delivered to us at the end; the child inherits the mask until it ignores the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


HINTS: dict[int, str] = {
    signal.SIGKILL: ", perhaps for want of memory,",
    signal.SIGBUS: ", perhaps because a shard became shorter while it was read,",
}


def _end(worker: subprocess.Popen[bytes]) -> str:
    status = worker.returncode
    if status >= 0:
        return f"(pid {worker.pid}) ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    hint = HINTS.get(-status, "")
    return f"(pid {worker.pid}) was killed by {name}{hint}"


def _wait(workers: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # the caller kills it
