"""What a window of the loop comes to."""

import time
from typing import NamedTuple

MOST_WINDOWS = 10  # a window with what is left out of it is over after so many times its length


class Clocks(NamedTuple):
    wall_s: float
    cpu_s: float  # all threads of the process

    @classmethod
    def now(cls) -> "Clocks":
        return cls(time.perf_counter(), time.process_time())


class Counted(NamedTuple):
    samples: int
    seconds: float
    cpu_s: float


class Tally:
    """Steps in which a pass begins or ends are left out, with whatever the script does between passes, as the verdict
    leaves them out; unless most steps are like that, as in `next(iter(loader))`: then that is the loop.

    Workers that keep the loop waiting hand over their batches in turn, often all at once: it ends behind whole turns,
    for one that ended at the first batch of a turn would lack all others."""

    def __init__(self, window_s: float, least_steps: int, turn: int = 1) -> None:
        self.steps = 0
        self._window_s = window_s
        self._least = least_steps
        self._turn = turn
        self._began = self._asked = Clocks.now()
        self._samples = self._apart_samples = self._apart_steps = 0
        self._apart_s = self._apart_cpu_s = 0.0

    def asks(self) -> None:
        """A step begins: the loop asks for its batch."""
        self._asked = Clocks.now()

    def add(self, samples: int, *, apart: bool) -> None:
        """The step is over: the loop asks for the next batch."""
        self.steps += 1
        self._samples += samples
        if apart:
            now = Clocks.now()
            self._apart_steps += 1
            self._apart_samples += samples
            self._apart_s += now.wall_s - self._asked.wall_s
            self._apart_cpu_s += now.cpu_s - self._asked.cpu_s

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began.wall_s

    @property
    def full(self) -> bool:
        if self.elapsed_s > MOST_WINDOWS * self._window_s:
            return self.steps >= self._least
        whole = self.steps >= self._least and self.steps % self._turn == 0
        return whole and self.counted().seconds >= self._window_s

    def counted(self) -> Counted:
        now = Clocks.now()
        seconds, cpu_s = now.wall_s - self._began.wall_s, now.cpu_s - self._began.cpu_s
        if 2 * self._apart_steps > self.steps:
            return Counted(self._samples, seconds, cpu_s)
        return Counted(self._samples - self._apart_samples, seconds - self._apart_s, cpu_s - self._apart_cpu_s)
