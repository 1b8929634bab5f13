"""When to stop watching: the rate is known well enough, or will not become so.

The run is cut into stretches of five seconds. Watching ends when there are at least six and the standard error of
their rates is below one per cent of the mean, or after two minutes.
"""

import math
import statistics

STRETCH_S = 5.0
LEAST = 6
ERROR = 0.01
LONGEST_S = 120.0


class Steadiness:
    def __init__(self) -> None:
        self._started: float | None = None
        self._stretch_began = 0.0
        self._samples = 0
        self._paused_s = 0.0
        self._rates: list[float] = []

    def add(self, now: float, samples: int, pause_s: float) -> None:
        """One step has ended."""
        if self._started is None:
            self._started = self._stretch_began = now  # the first step, with its start-up, belongs to no stretch
            return
        self._samples += samples
        self._paused_s += pause_s
        seconds = now - self._stretch_began - self._paused_s
        if seconds >= STRETCH_S:
            self._rates.append(self._samples / seconds)
            self._stretch_began, self._samples, self._paused_s = now, 0, 0.0

    def reached(self, now: float) -> bool:
        if self._started is None:
            return False
        if now - self._started > LONGEST_S:
            return True
        rates = self._rates[1:]  # the first stretch still has what was prepared during warm-up
        if len(rates) < LEAST:
            return False
        mean = statistics.fmean(rates)
        return mean > 0 and statistics.stdev(rates) / math.sqrt(len(rates)) < ERROR * mean
