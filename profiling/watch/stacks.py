"""A thread that looks at other threads' Python stacks at a low, irregular rate, and accounts for its own cost.

Each look stands for the time since the one before, so a run's looks sum to its wall time. Intervals vary around the
mean so that they cannot fall into step with the loop that is watched. They are chosen so that what a look costs
lately stays within a budget of CPU time: a look is dear while the rules still meet new code, and cheap afterwards.

A Python thread must take the interpreter lock to look, and a thread that runs Python gives it up only after the
switch interval (5 ms by default): by then it may be elsewhere, and code that never releases the lock would be blamed
on the next line that does. `fair_switching` shortens the interval to keep that error at a fifth of a millisecond; two
threads that both want the lock all the time pay 3 % more CPU time for it. While it looks, the interval is the default
again: on crowded cores each change of hands waits for a core, and a first look, which reads sources, took seconds.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from feedline.profiling.record.journal import Journal

SWITCH_INTERVAL_S = 2e-4
LOOKING_INTERVAL_S = 5e-3
LONGEST_S = 0.15
SOON_LONGEST_S, SOON_LOOKS = 0.05, 60
"""A short run must be seen often enough, whatever a look costs."""
Look = Callable[[dict[int, FrameType], float], None]


def fair_switching() -> None:
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))


@contextmanager
def unhurried() -> Generator[None]:
    """Keeps the interpreter for longer; what the script sets meanwhile stays set."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(max(before, LOOKING_INTERVAL_S))
    try:
        yield
    finally:
        if abs(sys.getswitchinterval() - LOOKING_INTERVAL_S) < 1e-6:
            sys.setswitchinterval(before)


class StackSampler(threading.Thread):
    """Calls `look(frames by thread id, seconds since the last look)` about `rate_hz` times a second until stopped."""

    def __init__(self, look: Look, journal: Journal, *, rate_hz: float = 100.0, budget: float = 0.003) -> None:
        super().__init__(name="feedline-sampler", daemon=True)
        self.cpu_s = 0.0
        self.looks = 0
        self.failed = 0
        self._look = look
        self._journal = journal
        self._shortest_s = 1.0 / rate_hz
        self._budget = budget
        self._running = True

    def stop(self) -> None:
        self._running = False

    def gone(self) -> None:
        """Waits for its last look: a thread that wakes while the interpreter is torn down may abort the process."""
        self.stop()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout=2 * LONGEST_S + 1)

    def run(self) -> None:
        draw = random.Random(self.native_id).uniform  # not the global one: it is the script's
        last = time.perf_counter()
        cost_s = 0.0
        while self._running:
            longest_s = SOON_LONGEST_S if self.looks < SOON_LOOKS else LONGEST_S
            time.sleep(min(max(self._shortest_s, cost_s / self._budget), longest_s) * draw(0.5, 1.5))
            now = time.perf_counter()
            try:
                with unhurried():
                    self._look(sys._current_frames(), now - last)
            except Exception as error:  # a stack nobody foresaw must not end the watch, nor be heard in the script
                if not self.failed:
                    line = f"a look at the stacks failed: {type(error).__name__}: {error} (process {os.getpid()})"
                    self._journal.complain(line)
                self.failed += 1
            last = now
            self.looks += 1
            spent_s, self.cpu_s = self.cpu_s, time.thread_time()
            cost_s += 0.1 * (self.cpu_s - spent_s - cost_s)
