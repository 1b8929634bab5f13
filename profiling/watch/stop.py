"""When enough was seen: after so many steps or seconds as asked, whichever comes first, else when the rate is known
well enough.

Without either the run is cut into stretches of five seconds. Watching ends when there are at least six and the
standard error of their rates is below one per cent of the mean, or after two minutes. In a diagnostic run
it also ends ten seconds after the first step, once a pass is over: a short script is held for long enough, and no
longer. Seconds are counted from the end of the first step: it may compile the model for a minute.
"""

import math
import os
import time
from collections.abc import Sequence
from typing import Literal

from feedline.profiling.record.journal import Journal, StudyConfig

STRETCH_S = 5.0
LEAST = 6
ERROR = 0.01
LONGEST_S = 120.0
HELD_S = 10.0
POLL_S = 0.25
TELL_S = 1.0
MET_STEPS, MEET_S = 3, 10.0  # by that step every rank has begun its loop, or is waited for so long
Reason = Literal["steps", "seconds", "running", "apart"]
"""What ended the verdict's steps; running: the script runs on, unwatched; apart: other ranks cannot be told when."""
ENDED: tuple[str, ...] = ("steps", "seconds", "signal", "apart")  # by us, as `Capture.ended_by` has it


class Steadiness:
    def __init__(self) -> None:
        self._started: float | None = None
        self._steady = False
        self._samples = 0
        self._seconds = 0.0
        self._rates: list[float] = []

    def add(self, now: float, samples: int, seconds: float) -> None:
        """A step has ended that took so long, pauses left out."""
        if self._started is None:
            self._started = now  # the first step, with its start-up, belongs to no stretch
            return
        self._samples += samples
        self._seconds += seconds
        if self._seconds >= STRETCH_S:
            self._rates.append(self._samples / self._seconds)
            self._steady = is_steady(self._rates[1:])  # the first still has what was prepared during warm-up
            self._samples, self._seconds = 0, 0.0

    def reached(self, now: float) -> bool:
        """Asked at every step: cheap."""
        return self._steady or (self._started is not None and now - self._started > LONGEST_S)


def is_steady(rates: Sequence[float]) -> bool:
    """Whether their mean is known well enough."""
    count = len(rates)
    if count < LEAST:
        return False
    mean = sum(rates) / count
    deviation = math.dist(rates, [mean] * count) / math.sqrt(count - 1)
    return mean > 0 and deviation / math.sqrt(count) < ERROR * mean


class StopRule:
    def __init__(self, config: StudyConfig, journal: Journal) -> None:
        self.steadiness = Steadiness()
        self._config = config
        self._journal = journal
        self._stop_at: int | None = None
        ends = config.diagnostic or not config.inside  # else the process runs on
        timed = config.seconds is not None or (config.diagnostic and not config.steps)
        self._counted: Reason = "steps" if ends and config.steps else "running"
        self._timed: Reason = "seconds" if ends and timed else "running"
        self.began: float | None = None  # when the first step had ended
        self._polled = self._told = 0.0
        self._met = False

    def ignored(self) -> None:
        """The script was ended, and trains on: its launcher is told."""
        now = time.monotonic()  # the clock of all processes
        if now - self._told > TELL_S:
            self._told = now
            self._journal.write("trains-on", {"at": now})

    def _apart(self, ranks: int) -> bool:
        """Whether some have another journal, on another machine: they would not hear when to leave, and hang."""
        if os.environ.get("LOCAL_WORLD_SIZE") == str(ranks):
            return False
        until = time.monotonic() + MEET_S
        while (here := sum(one["ended_by"] is None for one in self._journal.all("trainer-"))) < ranks:
            if time.monotonic() > until:
                self._journal.write("apart", {"here": here, "ranks": ranks})
                return True
            time.sleep(0.05)
        return False

    def reached(
        self, now: float, *, steps: int, ranks: int, rank: int, held: bool, trained: bool = True
    ) -> Reason | None:
        """Why the watch ends now, None while it goes on. `steps` have ended; `held`: a first pass of a diagnostic run
        is behind the loop; `trained`: not only evaluated so far, while other ranks may wait for this one."""
        config, reason = self._config, self._timed
        if self.began is None and steps:
            self.began = now
        counted = config.steps is not None and steps >= config.steps
        if counted and not config.diagnostic:
            return self._counted
        agree = ranks > 1 and (reason != "running" or (config.diagnostic and self._counted != "running"))
        if agree and trained and steps >= MET_STEPS and not self._met:
            self._met = True
            if self._apart(ranks):
                return "apart"
        if counted:
            return self._counted
        if self._stop_at is not None:
            return reason if steps >= self._stop_at else None
        if self.began is None or (config.steps is not None and config.seconds is None):
            return None
        seconds = now - self.began
        if config.seconds is not None:
            over = seconds > config.seconds
        else:
            over = config.steady and (self.steadiness.reached(now) or (held and seconds > HELD_S))
        if ranks == 1 or reason == "running":
            return reason if over else None
        # Ranks must leave at the same step, or the others hang in their all-reduce: rank 0 names a later one, far
        # enough ahead that all others read it before they get there.
        if rank == 0 and over:
            self._stop_at = steps + 3 + int(2 * steps / max(seconds, 1e-3))
            self._journal.write("stop", {"step": self._stop_at})
        elif rank and now - self._polled > POLL_S:
            self._polled = now
            stop = self._journal.read("stop")
            self._stop_at = stop["step"] if stop else None
        return None
