"""Host-to-device copies and starvation on CUDA, by events: nothing here waits for the device but `settle_device`.

An event is a mark in a stream. The mark after a step's last kernel and the one before the next step's first are as
far apart as the device had nothing of that stream to do (or less than the host's own overhead of a launch). Marks are
read back later, once they have passed, by the sampler's thread.
"""

import functools
import sys
import time
from collections import deque
from typing import Any

from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.loader_contract import LoaderHooks
from feedline.profiling.watch.passes import Row
from feedline.profiling.watch.rules import own_place

SYNCHRONISING = ("item", "tolist", "cpu", "numpy")
LIMIT = 4096  # rows whose marks are waited for


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
        self._gaps: deque[tuple[Row, Any, Any]] = deque(maxlen=LIMIT)
        self._copies: deque[tuple[Row, Any, Any]] = deque(maxlen=LIMIT)
        self._waiting: set[int] = set()

    def install(self, hooks: LoaderHooks) -> None:
        tensor = self._torch.Tensor
        for name in ("to", "cuda"):
            hooks.replace(tensor, name, self._copying)
        for name in SYNCHRONISING:
            hooks.replace(tensor, name, self.synchronising)

    @property
    def _started(self) -> bool:
        """Whether the script itself has made a CUDA context: we never do."""
        return bool(self._torch.cuda.is_initialized())

    def _mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step_ended(self) -> None:
        self._ended = self._mark() if self._started and not self._capturing() else None

    def step_begins(self, row: Row) -> None:
        if self._ended is not None:
            self._gaps.append((row, self._ended, self._mark()))
            self._waiting.add(id(row))
            self._ended = None

    def _capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())

    def _copying(self, original: Any) -> Any:
        capture = self._capture

        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            row = capture.loop.current if capture.active else None
            if row is None or tensor.is_cuda or not self._started or self._capturing():
                return original(tensor, *args, **kwargs)
            began_s = time.thread_time()
            before = self._mark()
            marked_s = time.thread_time()
            result = original(tensor, *args, **kwargs)
            if result.is_cuda:
                again_s = time.thread_time()
                self._copies.append((row, before, self._mark()))
                self._waiting.add(id(row))
                capture.events["copy"] += 1
                capture.mark_s += time.thread_time() - again_s + marked_s - began_s
            return result

        return copy

    def synchronising(self, original: Any) -> Any:
        capture = self._capture

        @functools.wraps(original)
        def synchronise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not capture.active or not tensor.is_cuda:
                return original(tensor, *args, **kwargs)
            started = time.perf_counter()
            result = original(tensor, *args, **kwargs)
            capture.synchronised(time.perf_counter() - started, own_place(sys._getframe(1)))
            return result

        return synchronise

    def collect(self) -> None:
        """Read the marks that have passed. Marks that cannot be read (a lost device) are given up."""
        pending = {id(row) for row in self._drain(self._gaps, "starved")}
        pending |= {id(row) for row in self._drain(self._copies, "copy")}
        self._waiting &= pending

    def _drain(self, marks: deque[tuple[Row, Any, Any]], name: str) -> list[Row]:
        while marks:
            row, before, after = marks[0]
            try:
                if not after.query():
                    break
                seconds = before.elapsed_time(after) / 1e3
            except RuntimeError:
                seconds = None
            marks.popleft()
            if seconds is not None:
                setattr(row, name, (getattr(row, name) or 0.0) + seconds)
        return [row for row, _, _ in list(marks)]

    def settled(self, row: Row) -> bool:
        return id(row) not in self._waiting
