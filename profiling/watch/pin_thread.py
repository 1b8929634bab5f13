"""DataLoader's thread that unpickles and pins batches before the main thread gets them (pin_memory=True).

While the main thread waits and this thread works, the loop waits for unpickling or pinning, not for its workers.
"""

import threading
from types import FrameType

from feedline.profiling.record.rows import TimeRow
from feedline.profiling.watch.rules import Place, frames
from feedline.profiling.watch.time_sums import TimeSums
from feedline.profiling.watch.trainer_rules import RULES

LOOP = "_pin_memory_loop"
WORKING = "pin_memory"
"""torch's function that pins a batch, called by the loop."""


class PinThread:
    """Fed by the trainer's sampler. Where there is no such thread, a look costs a walk over the threads' names."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._sums: TimeSums | None = None
        self._rows: list[TimeRow] = []

    def look(self, frames_by_thread: dict[int, FrameType], seconds: float) -> tuple[str | None, float]:
        """What it does now, unpickle or pin (None: it waits), and its CPU time since the last look."""
        if self._thread is None or not self._thread.is_alive():
            self._find()
        frame = frames_by_thread.get(self._thread.ident or 0) if self._thread is not None else None
        if frame is None or self._sums is None:
            return None, 0.0
        doing = work_of(frame)
        return doing, self._sums.add(Place(doing or "wait", "pin_memory.py"), seconds)

    def take(self) -> list[TimeRow]:
        """Rows since the last time."""
        rows, self._rows = self._rows, []
        return rows if self._sums is None else [*rows, self._sums.take()]

    def _find(self) -> None:
        """Without persistent_workers every epoch has its own."""
        if self._sums is not None:
            self._rows.append(self._sums.take())
        self._thread = next((one for one in threading.enumerate() if LOOP in one.name), None)
        self._sums = TimeSums(self._thread.ident) if self._thread is not None else None


def work_of(frame: FrameType) -> str | None:
    """unpickle or pin; None when it waits for a batch, or for room to put one."""
    for one in frames(frame):
        if one.f_code.co_name == LOOP:
            return None
        if one.f_code.co_name == WORKING:
            return "pin"
        if RULES.stage_of(one.f_code, one.f_lineno) == "unpickle":
            return "unpickle"
    return None
