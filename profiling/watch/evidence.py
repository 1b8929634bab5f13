"""What the kernel says of a thread of this process: its CPU time, how long it had no core, what it is blocked in.

Python's stacks say where a thread is, not whether it computes there. The run-queue delay is the second number of
`/proc/self/task/TID/schedstat`: time in which the thread could have run and had no core. `syscall` beside it
names the system call that it is blocked in (proc(5)); a thread may always read that of another one of its process.
Where a system has neither, as containers with a kernel of their own, nothing is guessed: None.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from feedline.pipeline.base.process import read_text

SLEEP, READ, LOCK, WAIT = "sleep", "file", "lock", "wait"
_CALLS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        SLEEP: (35, 230),  # nanosleep, clock_nanosleep
        # read, write, open, stat, pread64, pwrite64, readv, writev, fsync, fdatasync, getdents64, statx, …
        READ: (0, 1, 2, 4, 5, 6, 17, 18, 19, 20, 74, 75, 217, 257, 262, 295, 332),
        LOCK: (72, 73, 202, 449),  # fcntl, flock, futex, futex_waitv
    },
    "aarch64": {
        SLEEP: (101, 115),
        READ: (56, 61, 63, 64, 65, 66, 67, 68, 69, 79, 80, 82, 83, 291),
        LOCK: (25, 32, 98, 449),
    },
}
"""A thread that is blocked in any other call waits: for a socket, a pipe, an event, a process, a driver."""
BLOCKED_IN = {number: kind for kind, numbers in _CALLS.get(os.uname().machine, {}).items() for number in numbers}
PAGE_FAULT = -1  # in place of a system call: a page of a mapped file is read
WITH_DESCRIPTOR = (0, 1, 17, 18, 19, 20, 295, 63, 64, 65, 66, 67, 68, 69)
"""Of the calls that read and write, on either machine; the others work on paths, or are of files only."""
SCHEDSTAT = "schedstat"


def run_queue_delay_s(pid: int) -> float | None:
    """Of a process's main thread, so far; None where the system does not tell."""
    text = read_text(f"/proc/{pid}/{SCHEDSTAT}").split()
    return 1e-9 * int(text[1]) if len(text) == 3 else None


class Spent(NamedTuple):
    """Of a thread, since it was asked last."""

    cpu_s: float | None
    delay_s: float | None
    """It could have run and had no core. None where the system does not tell, as with the CPU time."""


class ThreadEvidence:
    """Of another thread of this process."""

    def __init__(self, native_id: int | None) -> None:
        self._task = f"/proc/self/task/{native_id}"
        self._clock: int | None = None
        self._before = (0.0, 0.0)
        self._schedstat: int | None = None
        if sys.platform == "linux" and native_id is not None:
            # What pthread_getcpuclockid gives, which may crash where the thread has ended.
            self._clock = ~native_id << 3 | 6
        with suppress(OSError):
            self._schedstat = os.open(f"{self._task}/{SCHEDSTAT}", os.O_RDONLY | os.O_CLOEXEC)
        self.spent()

    def __del__(self) -> None:
        if self._schedstat is not None:
            os.close(self._schedstat)

    def spent(self) -> Spent:
        before_cpu_s, before_delay_s = self._before
        cpu_s = delay_s = None
        with suppress(OSError):  # it has ended
            cpu_s = None if self._clock is None else time.clock_gettime(self._clock)
        with suppress(OSError, ValueError, IndexError):
            told = b"" if self._schedstat is None else os.pread(self._schedstat, 96, 0)
            delay_s = 1e-9 * int(told.split()[1])
        self._before = cpu_s or before_cpu_s, delay_s or before_delay_s
        return Spent(
            None if cpu_s is None else cpu_s - before_cpu_s, None if delay_s is None else delay_s - before_delay_s
        )

    def mostly_blocked_in(self, spent: Spent, seconds: float) -> str | None:
        """`blocked_in` of a thread that neither ran nor wanted to for most of so long; None of any other one."""
        idle = spent.cpu_s is not None and spent.cpu_s + (spent.delay_s or 0.0) < 0.5 * seconds
        return self.blocked_in() if idle else None

    def blocked_in(self) -> str | None:
        """SLEEP, READ (or written) of a file, LOCK or WAIT; None while it runs, or where not known."""
        with suppress(OSError, ValueError):
            file = os.open(f"{self._task}/syscall", os.O_RDONLY | os.O_CLOEXEC)
            try:
                number, *arguments = os.read(file, 160).split()
            finally:
                os.close(file)
            if int(number) == PAGE_FAULT or not BLOCKED_IN:
                return READ if BLOCKED_IN else None
            kind = BLOCKED_IN.get(int(number), WAIT)
            return WAIT if kind == READ and arguments and not _is_file(int(arguments[0], 16), int(number)) else kind
        return None


def _is_file(descriptor: int, number: int) -> bool:
    """Whether it is one that a call reads or writes."""
    if number not in WITH_DESCRIPTOR:
        return True
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/")  # noqa: PTH115 no link that resolves
    except OSError:
        return True


class HelperThread:
    """A thread that a loader starts, as `find` tells."""

    def __init__(self, find: Callable[[], threading.Thread | None]) -> None:
        self._find = find
        self._thread: threading.Thread | None = None
        self._evidence: ThreadEvidence | None = None

    def look(self, frames: dict[int, FrameType]) -> tuple[FrameType | None, float | None]:
        """Its innermost frame, None while there is no such thread, and its CPU seconds since the last look."""
        thread = self._find()
        if thread is None or thread.ident is None or not thread.is_alive():
            return None, None
        if thread is not self._thread or self._evidence is None:
            self._thread, self._evidence = thread, ThreadEvidence(thread.native_id)
        return frames.get(thread.ident), self._evidence.spent().cpu_s
