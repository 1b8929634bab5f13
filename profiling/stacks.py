"""A thread that looks at other threads' Python stacks at a low, irregular rate, and accounts for its own cost.

Each look stands for the time since the one before, so a run's looks sum to its wall time. Intervals vary around the
mean so that they cannot fall into step with the loop that is watched. The rate halves whenever the sampler's own CPU
time exceeds its budget.

A Python thread must take the interpreter lock to look, and a thread that runs Python gives it up only after the
switch interval (5 ms by default): by then it may be elsewhere, and code that never releases the lock would be blamed
on the next line that does. `fair_switching` shortens the interval to keep that error below half a millisecond.
"""

import random
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

SWITCH_INTERVAL_S = 5e-4
Look = Callable[[dict[int, FrameType], float], None]


def fair_switching() -> None:
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))


class StackSampler(threading.Thread):
    """Calls `look(frames by thread id, seconds since the last look)` about `rate_hz` times a second until stopped."""

    def __init__(self, look: Look, *, rate_hz: float = 100.0, budget: float = 0.005) -> None:
        super().__init__(name="feedline-sampler", daemon=True)
        self.cpu_s = 0.0
        self.looks = 0
        self._look = look
        self._period_s = 1.0 / rate_hz
        self._budget = budget
        self._running = True

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        draw = random.Random(self.native_id).uniform  # not the global one: it is the script's
        started = last = time.perf_counter()
        while self._running:
            time.sleep(self._period_s * draw(0.5, 1.5))
            now = time.perf_counter()
            self._look(sys._current_frames(), now - last)
            last = now
            self.looks += 1
            self.cpu_s = time.thread_time()
            if self.cpu_s > self._budget * (now - started) and now - started > 1.0:
                self._period_s = min(self._period_s * 1.1, 0.2)
