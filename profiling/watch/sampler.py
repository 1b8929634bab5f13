"""A thread that looks at other threads' Python stacks at a low, irregular rate, and accounts for its own cost.

Each look stands for the time since the one before, so a run's looks sum to its wall time. Intervals vary around the
mean so that they cannot fall into step with the loop that is watched. They are chosen so that what a look costs
lately stays within a budget of CPU time: a look is dear while the rules still meet new code, and cheap afterwards.

A Python thread must take the interpreter lock to look, and a thread that runs Python gives it up only after the
switch interval (5 ms by default): by then it may be elsewhere, and code that never releases the lock would be blamed
on the next line that does. A sampler shortens the interval to keep that error at a fifth of a millisecond; two
threads that both want the lock all the time pay 3 % more CPU time for it. While it looks, the interval is the default
again: on crowded cores each change of hands waits for a core, and a first look, which reads sources, took seconds.

Nor is garbage collected meanwhile. Before Python 3.12 any allocation may collect; a finalizer of the script may give
up the lock in the middle of `frame.f_back`, and the thread that is looked at return from the very frame: that ended a
script by SIGSEGV.
"""

import gc
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import SWITCH_INTERVAL_S, Journal, TimeRow
from feedline.profiling.watch.evidence import Spent, ThreadEvidence
from feedline.profiling.watch.rules import Place

WORKER_HZ, TRAINER_HZ = 100.0, 50.0  # looks a second, at most
BUDGET = 0.003  # the share of the time that looks may take, lately
LOOKING_INTERVAL_S = 5e-3
LONGEST_S = 0.15
SOON_LONGEST_S, SOON_LOOKS = 0.05, 60  # a short run must be seen often enough, whatever a look costs
FIRST_ROW_S, ROW_S = 0.1, 1.0
"""The first row of sums is written soon, so that workers that live on after a short run have spoken, each further one
a little later than the one before, up to this: a row takes about a millisecond."""

NEVER = 2**30 - 1  # in place of the number of objects from which on garbage is collected

SUMS = ("stages", "stages_cpu", "stages_delay", "transforms", "functions", "beside_cpu")
HELD_S = 1.4e-4
"""A look that comes so late, its wait for a core left out, has waited for the interpreter lock: a thread that runs
Python gives it up after SWITCH_INTERVAL_S; timers are late by 0.05 ms."""


class StackSampler(threading.Thread):
    """Calls `look(frames by thread id, seconds since the last look, whether another thread held the interpreter lock
    as this one wanted it)` about `rate_hz` times a second until stopped. The last is None where that is not known."""

    def __init__(
        self,
        look: Callable[[dict[int, FrameType], float, bool | None], None],
        journal: Journal,
        *,
        rate_hz: float,
    ) -> None:
        super().__init__(name="feedline-sampler", daemon=True)
        self._usual_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._usual_interval_s, SWITCH_INTERVAL_S))
        self.cpu_s = 0.0
        self.looks = 0
        self._look = look
        self._journal = journal
        self._shortest_s = 1.0 / rate_hz
        self._failed = False
        self._running = True
        self.pausing = threading.RLock()  # while it is held there is no look

    def stop(self) -> None:
        """A look that goes on is waited for, and none follows: what they saw may be read by any thread."""
        with self.pausing:
            self._running = False
            self.restore_interval()

    def restore_interval(self) -> None:
        """As it was before; what the script has set meanwhile stays."""
        if abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 5e-6:  # it is kept in whole microseconds
            sys.setswitchinterval(self._usual_interval_s)

    def gone(self) -> None:
        """Waits for its last look: a thread that wakes while the interpreter is torn down may abort the process."""
        self.stop()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout=2 * LONGEST_S + 1)

    def run(self) -> None:
        draw = random.Random(self.native_id).uniform  # not the global one: it is the script's
        evidence = ThreadEvidence(self.native_id)
        last = time.perf_counter()
        cost_s = 0.0
        while self._running:
            longest_s = SOON_LONGEST_S if self.looks < SOON_LOOKS else LONGEST_S
            for_s = min(max(self._shortest_s, cost_s / BUDGET), longest_s) * draw(0.5, 1.5)
            evidence.spent()
            began = time.perf_counter()
            time.sleep(for_s)
            now = time.perf_counter()
            delay_s = evidence.spent().delay_s
            held = None if delay_s is None else now - began - for_s - delay_s > HELD_S
            with self.pausing:
                if self._running:
                    self._look_once(now - last, held)
            last = now
            self.looks += 1
            spent_s, self.cpu_s = self.cpu_s, time.thread_time()
            cost_s += 0.1 * (self.cpu_s - spent_s - cost_s)

    def _look_once(self, seconds: float, held: bool | None) -> None:
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(max(interval_s, LOOKING_INTERVAL_S))
        if gc.get_threshold()[0] != NEVER:
            _thresholds[:] = gc.get_threshold()
            gc.set_threshold(NEVER, *_thresholds[1:])
        try:
            self._look(sys._current_frames(), seconds, held)
        except Exception as error:  # a stack nobody foresaw must not end the watch, nor be heard in the script
            if not self._failed:
                line = f"a look at the stacks failed: {type(error).__name__}: {error} (process {os.getpid()})"
                self._journal.complain(line)
            self._failed = True
        finally:
            _collect_again()
            if abs(sys.getswitchinterval() - LOOKING_INTERVAL_S) < 1e-6:  # what the script sets meanwhile stays
                sys.setswitchinterval(interval_s)
            if not self._running:
                self.restore_interval()


_thresholds = list(gc.get_threshold())


def _collect_again() -> None:
    """What the script has set meanwhile stays."""
    if gc.get_threshold()[0] == NEVER:
        gc.set_threshold(*_thresholds)


os.register_at_fork(after_in_child=_collect_again)  # a process may be forked while its parent's sampler looks


class TimeSums:
    """What a thread spent its time on, handed on as short rows, so that a reader can choose which times count. Not
    thread-safe: one sampler feeds it, and takes from it until it has stopped."""

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self._rows, self._ready, self._taken = 0, list[TimeRow](), time.perf_counter()
        self._delay_known = False
        self._cpu_s = time.process_time()
        self._open()

    def _open(self, at: float | None = None) -> None:
        self._started = time.perf_counter() if at is None else at
        self._sums = {name: defaultdict[str, float](float) for name in SUMS}
        self._ticks = 0
        self._counted = (self.batches, self.samples)

    def add(self, place: Place, seconds: float, spent: Spent) -> None:
        """One look; `spent` is of the thread, and who works for it, since the last one."""
        self._sums["stages"][place.stage] += seconds
        self._sums["stages_cpu"][place.stage] += spent.cpu_s or 0.0
        self._sums["stages_delay"][place.stage] += min(seconds, spent.delay_s or 0.0)
        self._delay_known = spent.delay_s is not None
        if place.transform:
            self._sums["transforms"][place.transform] += seconds
        self._sums["functions"][f"{place.stage} {place.where}"] += seconds
        self._ticks += 1

    def add_beside(self, where: str, cpu_s: float) -> None:
        """CPU time of another thread since the last look."""
        self._sums["beside_cpu"][where] += cpu_s

    @property
    def due(self) -> bool:
        return time.perf_counter() - self._taken > min(ROW_S, FIRST_ROW_S * (self._rows + 1))

    def cut(self, watch_cpu_s: float, at: float, least_s: float) -> None:
        """At that time, unless it was just done: what follows may not count."""
        if at - self._started > least_s:
            self._ready.append(self._row(watch_cpu_s, min(at, time.perf_counter())))

    def take(self, watch_cpu_s: float) -> list[TimeRow]:
        """The rows since the last ones. `watch_cpu_s`: CPU time of all looks so far, which is not the script's: of a
        process that mostly waits it is a tenth."""
        rows, self._ready = [*self._ready, self._row(watch_cpu_s)], []
        self._rows, self._taken = self._rows + 1, time.perf_counter()
        return rows

    def _row(self, watch_cpu_s: float, until: float | None = None) -> TimeRow:
        cpu_s = time.process_time() - watch_cpu_s
        sums: dict[str, Any] = {
            name: {key: round(s, 6) for key, s in one.items()} for name, one in self._sums.items()
        }
        if not self._delay_known:
            sums["stages_delay"] = None
        row = TimeRow(
            t0=self._started,
            t1=time.perf_counter() if until is None else until,
            **sums,
            batches=self.batches - self._counted[0],
            samples=self.samples - self._counted[1],
            cpu_s=max(0.0, round(cpu_s - self._cpu_s, 6)),
            ticks=self._ticks,
        )
        self._cpu_s = cpu_s
        self._open(until)
        return row
