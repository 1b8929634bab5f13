"""Host-to-device copies and starvation on CUDA, by events: nothing here waits for the device but `settle_device`.

An event is a mark in a stream. The mark after a step's last kernel and the one before the next step's first are as
far apart as the device had nothing of that stream to do (or less than the host's own overhead of a launch). Marks are
read back later, once they have passed, by the sampler's thread.
"""

import functools
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from feedline.profiling.record.journal import StepRow
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.patches import Patches

SYNCHRONISING = ("item", "tolist", "cpu", "numpy")
LIMIT = 8192  # marks that are waited for


def in_use() -> Any:
    """torch, where this process computes on CUDA; else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def settle_device() -> None:
    """Kernels still queued on a GPU belong to the time before."""
    torch = in_use()
    if torch is not None:
        torch.cuda.synchronize()


class Device:
    def __init__(self, torch: Any, capture: Capture) -> None:
        self._torch = torch
        self._capture = capture
        self._ended: Any = None
        self._marks: deque[tuple[StepRow, str, Any, Any]] = deque(maxlen=LIMIT)
        """Row, its field that grows by the time between, two marks."""

    def install(self, patches: Patches) -> None:
        for name in ("to", "cuda"):
            patches.replace(self._torch.Tensor, name, self._copying)
        for name in SYNCHRONISING:
            patches.replace(self._torch.Tensor, name, self._synchronising)

    def _markable(self) -> bool:
        """Whether the script itself has made a CUDA context (we never do), and captures no graph."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized()) and not cuda.is_current_stream_capturing()

    def _mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step_ended(self) -> None:
        self._ended = self._mark() if self._markable() else None

    def step_begins(self, rows: Sequence[StepRow]) -> None:
        """Which have waited for the batch."""
        if self._ended is not None:
            mark = self._mark()
            self._marks.extend((row, "starved_s", self._ended, mark) for row in rows)
            self._ended = None

    def _copying(self, original: Any) -> Any:
        capture = self._capture

        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            row = capture.loop.current if capture.active else None
            if row is None or tensor.is_cuda or not self._markable():
                return original(tensor, *args, **kwargs)
            before = capture.costing(self._mark)
            result = original(tensor, *args, **kwargs)
            if result.is_cuda:
                self._marks.append((row, "copy_s", before, capture.costing(self._mark)))
            return result

        return copy

    def _synchronising(self, original: Any) -> Any:
        capture = self._capture

        @functools.wraps(original)
        def synchronise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not capture.active or not tensor.is_cuda:
                return original(tensor, *args, **kwargs)
            started = time.perf_counter()
            result = original(tensor, *args, **kwargs)
            capture.costing(capture.synchronised, time.perf_counter() - started, sys._getframe(1))
            return result

        return synchronise

    def waiting(self) -> set[int]:
        """Reads the marks that have passed, and gives the ids of the rows that have others. Marks that cannot be read
        (a lost device) are given up."""
        while self._marks:
            row, name, before, after = self._marks[0]
            try:
                if not after.query():
                    break
                setattr(row, name, (getattr(row, name) or 0.0) + before.elapsed_time(after) / 1e3)
            except RuntimeError:
                pass
            self._marks.popleft()
        return {id(row) for row, *_ in list(self._marks)}
