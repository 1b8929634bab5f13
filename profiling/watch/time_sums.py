"""Sums of a sampler's looks, handed on as short rows, so that a reader can choose which times count."""

import threading
import time
from collections import defaultdict
from types import FrameType

from feedline.profiling.record.rows import TimeRow
from feedline.profiling.watch.rules import Place

FIRST_ROW_S = 0.1
"""Soon, so that workers that live on after a short run have spoken."""
ROW_S = 0.5
LONG_ROW_S = 1.0
"""A row is written in about a millisecond; after `SHORT_ROWS` the picture is fine enough without so many."""
SHORT_ROWS = 10


class TimeSums:
    """What one thread of this process spent its time on. Not thread-safe: one sampler feeds it."""

    def __init__(self, thread_id: int | None = None) -> None:
        self.batches = 0
        self.samples = 0
        self.hook_s = 0.0
        """CPU time of counting them."""
        self._rows = 0
        self._clock = _thread_clock(thread_id)
        self._thread_cpu_s = self._thread_cpu()
        self._process_cpu_s = time.process_time()
        self._open()

    def _open(self) -> None:
        self.started = time.perf_counter()
        self._stages: defaultdict[str, float] = defaultdict(float)
        self._stages_cpu: defaultdict[str, float] = defaultdict(float)
        self._transforms: defaultdict[str, float] = defaultdict(float)
        self._functions: defaultdict[str, float] = defaultdict(float)
        self._ticks = 0
        self._counted = (self.batches, self.samples)

    def add(self, place: Place, seconds: float, *, others_cpu_s: float = 0.0) -> float:
        """The thread's CPU seconds since the last time; `others_cpu_s` is another's, working for it meanwhile."""
        now_s = self._thread_cpu()
        cpu_s, self._thread_cpu_s = now_s - self._thread_cpu_s, now_s
        self._stages[place.stage] += seconds
        self._stages_cpu[place.stage] += cpu_s + others_cpu_s
        if place.transform:
            self._transforms[place.transform] += seconds
        self._functions[f"{place.stage} {place.where}"] += seconds
        self._ticks += 1
        return cpu_s

    def skip(self) -> None:
        """Time that is not its own: its CPU seconds are dropped too."""
        self._thread_cpu_s = self._thread_cpu()

    @property
    def due(self) -> bool:
        row_s = FIRST_ROW_S if self._rows == 0 else ROW_S if self._rows < SHORT_ROWS else LONG_ROW_S
        return time.perf_counter() - self.started > row_s

    def take(self) -> TimeRow:
        """The row since the last one."""
        cpu_s = time.process_time()
        row = TimeRow(
            self.started,
            time.perf_counter(),
            _rounded(self._stages),
            _rounded(self._stages_cpu),
            _rounded(self._transforms),
            _rounded(self._functions),
            self.batches - self._counted[0],
            self.samples - self._counted[1],
            round(cpu_s - self._process_cpu_s, 6),
            self._ticks,
        )
        self._process_cpu_s = cpu_s
        self._rows += 1
        self._open()
        return row

    def _thread_cpu(self) -> float:
        return time.clock_gettime(self._clock) if self._clock is not None else 0.0


def _thread_clock(thread_id: int | None) -> int | None:
    """The CPU clock of another thread of this process, where the system has one (Linux)."""
    try:
        return time.pthread_getcpuclockid(thread_id or threading.main_thread().ident or 0)
    except (AttributeError, OSError):
        return None


def _rounded(sums: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 6) for key, value in sums.items()}


class Feeder:
    """The thread of this worker's queue that serialises batches and hands them over.

    It works when it is past its wait for a batch and uses the CPU; blocked on a full pipe, it waits for the trainer.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._clock: int | None = None
        self._cpu_s = 0.0

    def works(self, frames: dict[int, FrameType], seconds: float) -> bool:
        """Whether it has mostly been serialising during the last `seconds`."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = next((one for one in threading.enumerate() if one.name.startswith("QueueFeeder")), None)
            if self._thread is None:
                return False
            self._clock = _thread_clock(self._thread.ident)
        cpu_s = time.clock_gettime(self._clock) if self._clock is not None else self._cpu_s + seconds
        used_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        frame = frames.get(self._thread.ident or 0)
        return frame is not None and _serialises(frame) and used_s > 0.25 * seconds


def _serialises(frame: FrameType) -> bool:
    """Not waiting for something to do."""
    one: FrameType | None = frame
    while one is not None:
        if one.f_code.co_name == "_feed":
            return True
        if one.f_code.co_name == "wait" and one.f_code.co_filename.endswith("threading.py"):
            return False
        one = one.f_back
    return False
