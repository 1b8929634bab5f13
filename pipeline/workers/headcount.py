"""`num_workers="auto"`: how many workers there should be, from what was seen of a second. Decisions, no effects.

Every change is a trial: one more (or as many as the waiting calls for) while the trainer waits, one fewer where they
idle; what follows is measured, and the change is taken back if it gained nothing, or lost. After one in vain comes a
pause, longer each time. So the number settles, and follows when the work changes; tf.data's AUTOTUNE climbs too.
"""

from math import ceil
from typing import Any, NamedTuple

WINDOW_S, WINDOW_BATCHES = 1.0, 8
"""What is measured at a time, at least; half as much right after a change does not count."""
WAITING = 0.05
"""Of the trainer's time: what it must wait for batches before another worker is tried."""
SPARE = 0.75
"""Work for so much of what one worker fewer could do, at most, before one is sent away."""
GAIN = 0.03
"""Of the rate: what counts as a difference."""
FIRST_PAUSE, MOST_PAUSE = 8, 256
"""Windows."""
FEW = "few at first"


class Totals(NamedTuple):
    """Since the loader was made."""

    active_s: float = 0.0
    """Within epochs; between them the trainer does what it likes."""
    samples: int = 0
    batches: int = 0
    wait_s: float = 0.0
    """The trainer's, for batches."""
    worker_ns: int = 0
    idle_ns: int = 0
    """Of that."""


class Window(NamedTuple):
    samples_per_s: float
    waiting: float
    """Share of the trainer's time."""
    idle: float
    """Share of the workers' time."""


class Headcount:
    def __init__(self, most: int, ranks: int = 1) -> None:
        """`most`: the cores that this rank may use. Where there are other ranks, all go at the pace of the slowest: a
        worker then has to spare this one waiting."""
        self.most, self._ranks = most, ranks
        self.workers = 1 if most < 3 else 2
        self.why = FEW
        self.changes: list[dict[str, Any]] = []
        self._start: Totals | None = None
        self._counts = False
        """Whether the window under way does."""
        self._trial: tuple[int, Window] | None = None
        """The number before, and how that went."""
        self._leaps = True
        self._wait, self._pause = 0, FIRST_PAUSE

    def told(self, now: Totals, ready: int) -> int:
        """How many workers there should be. `ready`: those that are at work; nothing is measured while some start or
        leave."""
        if ready != self.workers:
            self.begin_anew()
        elif self._start is None:
            self._start = now
        elif self._is_over(now, self._start):
            counts, start = self._counts, self._start
            self._start, self._counts = now, True
            if counts:
                self._decide(_window(start, now), now.batches)
        return self.workers

    def _is_over(self, now: Totals, start: Totals) -> bool:
        part = 1.0 if self._counts else 0.5
        enough = now.batches - start.batches >= part * WINDOW_BATCHES
        return enough and now.active_s - start.active_s >= part * WINDOW_S

    def begin_anew(self) -> None:
        """With other workers, or totals that count from another moment: what is under way does not count."""
        self._start, self._counts = None, False

    def refused(self, workers: int, why: str) -> None:
        """There are so many, and no more can be started."""
        self.begin_anew()
        self._trial, self.most, self.workers, self.why = None, workers, workers, why

    def _decide(self, seen: Window, batches: int) -> None:
        trial, self._trial = self._trial, None
        if trial is not None and not self._is_better(seen, *trial):
            self._take_back(seen, batches, *trial)
            return
        if trial is not None:
            self._pause = FIRST_PAUSE
        self._wait = max(0, self._wait - 1)
        waits = f"the trainer waits {seen.waiting:.0%} of its time for {self.workers}"
        if seen.waiting > WAITING and self.workers == self.most:
            self.why = f"{waits}, and may use no more cores"
        elif self._wait:
            pass
        elif seen.waiting > WAITING:
            wanted = ceil(self.workers / max(0.5, 1 - seen.waiting)) if self._leaps else 0
            self._try(min(self.most, max(self.workers + 1, wanted)), seen, batches, waits)
        elif self.workers > 1 and (1 - seen.idle) * self.workers < SPARE * (self.workers - 1):
            self._try(self.workers - 1, seen, batches, f"{self.workers} idle {seen.idle:.0%} of their time")
        else:
            self.why = waits

    def _is_better(self, seen: Window, before: int, then: Window) -> bool:
        gained = seen.samples_per_s / max(then.samples_per_s, 1e-9) - 1
        if self.workers < before:
            return gained > -GAIN
        return gained > GAIN or (self._ranks > 1 and seen.waiting < 0.7 * then.waiting)

    def _take_back(self, seen: Window, batches: int, before: int, then: Window) -> None:
        rates = f"{self.workers} gave {seen.samples_per_s:,.0f} samples/s, {before} {then.samples_per_s:,.0f}"
        if self.workers > before + 1:  # too many, perhaps
            self._leaps = False
            self._change(before + 1, batches, rates)
            self._trial = (before, then)
        else:
            self._wait, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE)
            self._change(before, batches, rates)

    def _try(self, workers: int, seen: Window, batches: int, why: str) -> None:
        self._trial = (self.workers, seen)
        self._change(workers, batches, why)

    def _change(self, workers: int, batches: int, why: str) -> None:
        self.begin_anew()
        self.workers, self.why = workers, why
        self.changes.append({"batch": batches, "workers": workers, "why": why})

    def describe(self) -> dict[str, Any]:
        """Plain JSON, as `Loader.stats` shows it."""
        settled = self._trial is None and self.why != FEW
        return {"most": self.most, "settled": settled, "why": self.why, "changes": list(self.changes)}


def _window(start: Totals, now: Totals) -> Window:
    active_s, worker_ns = max(now.active_s - start.active_s, 1e-9), max(now.worker_ns - start.worker_ns, 1)
    return Window(
        samples_per_s=(now.samples - start.samples) / active_s,
        waiting=min(1.0, (now.wait_s - start.wait_s) / active_s),
        idle=min(1.0, (now.idle_ns - start.idle_ns) / worker_ns),
    )
