"""What the kernel says of a thread of this process: its CPU time, how long it had no core, what it is blocked in.

Python's stacks say where a thread is, not whether it computes there. The run-queue delay is the second number of
`/proc/self/task/TID/schedstat`: time in which the thread could have run and had no core. `syscall` beside it
names the system call that it is blocked in (proc(5)); a thread may always read that of another one of its process.
Where a system has neither, as containers with a kernel of their own, nothing is guessed: None.
"""

import os
import platform
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
        READ: (0, 2, 4, 5, 6, 17, 19, 217, 257, 262, 295, 332),  # read, open, stat, pread64, getdents64, statx, …
        WAIT: (7, 23, 45, 47, 232, 270, 271, 281),  # poll, select, recvfrom, recvmsg, epoll_wait, ppoll, …
        LOCK: (72, 73, 202, 449),  # fcntl, flock, futex, futex_waitv
    },
    "aarch64": {
        SLEEP: (101, 115),
        READ: (56, 61, 63, 65, 67, 69, 79, 80, 291),
        WAIT: (22, 72, 73, 207, 212),
        LOCK: (25, 32, 98, 449),
    },
}
BLOCKED_IN = {number: kind for kind, numbers in _CALLS.get(platform.machine(), {}).items() for number in numbers}
PAGE_FAULT = -1
"""In place of a system call: a page of a mapped file is read."""


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

    def mostly_blocked(self, seconds: float) -> bool | None:
        """Whether it neither ran nor wanted to for most of so long; None where that is not known."""
        return None if self.cpu_s is None else self.cpu_s + (self.delay_s or 0.0) < 0.5 * seconds


class ThreadEvidence:
    """Of another thread of this process."""

    def __init__(self, thread_id: int, native_id: int | None) -> None:
        """The thread must be alive: of another number the C library may crash."""
        self._task = f"/proc/self/task/{native_id}"
        self._clock: int | None = None
        self._before = (0.0, 0.0)
        self._schedstat: int | None = None
        with suppress(AttributeError, OSError):  # Linux has it
            self._clock = time.pthread_getcpuclockid(thread_id)
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

    def blocked_in(self) -> str | None:
        """SLEEP, READ, LOCK or WAIT (for a socket, a pipe, an event); None while it runs, or where not known."""
        with suppress(OSError, ValueError):
            file = os.open(f"{self._task}/syscall", os.O_RDONLY | os.O_CLOEXEC)
            try:
                number, *arguments = os.read(file, 160).split()
            finally:
                os.close(file)
            kind = READ if int(number) == PAGE_FAULT else BLOCKED_IN.get(int(number))
            return WAIT if kind == READ and arguments and not _is_file(int(arguments[0], 16), int(number)) else kind
        return None


def _is_file(descriptor: int, number: int) -> bool:
    """Whether a call that reads does so from a file; those without a descriptor work on paths."""
    if number not in (0, 17, 19, 295, 63, 65, 67, 69):
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
            self._thread, self._evidence = thread, ThreadEvidence(thread.ident, thread.native_id)
        return frames.get(thread.ident), self._evidence.spent().cpu_s
