"""Batch slots: reusable buffers that workers fill and the trainer shows to the user without a copy.

A slot's way: free -> given to a worker with a task -> shown to the user -> (the last tensor that shows it is
garbage-collected, and a fence behind its device copy has passed) -> free. Nobody copies, nobody overwrites
what is still looked at. No torch here: the fence is handed in.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.memory import round_up

Images = npt.NDArray[np.uint8]
CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    """The parts of a slot: the images' bytes, labels, sample numbers, and what is really there."""

    batch_size: int
    px: int
    """The largest side of an output image; smaller ones fit."""

    @property
    def images_bytes(self) -> int:
        return round_up(self.batch_size * self.px * self.px * CHANNELS)

    @property
    def slot_bytes(self) -> int:
        return self.images_bytes + round_up((2 * self.batch_size + 2) * 8)

    def images(self, view: memoryview, slot: int, size_bytes: int | None = None) -> Images:
        """The first `size_bytes` of the images' part, flat; None: all."""
        return np.frombuffer(
            view, np.uint8, self.images_bytes if size_bytes is None else size_bytes, slot * self.slot_bytes
        )

    def labels_N(self, view: memoryview, slot: int, count: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(view, np.int64, count, slot * self.slot_bytes + self.images_bytes)

    def samples_N(self, view: memoryview, slot: int, count: int) -> npt.NDArray[np.int64]:
        start = slot * self.slot_bytes + self.images_bytes + self.batch_size * 8
        return np.frombuffer(view, np.int64, count, start)

    def filled(self, view: memoryview, slot: int) -> npt.NDArray[np.int64]:
        """Two numbers: the samples delivered, fewer than asked for where bad ones were skipped, and the bytes that
        they take of the images' part."""
        start = slot * self.slot_bytes + self.images_bytes + 2 * self.batch_size * 8
        return np.frombuffer(view, np.int64, 2, start)


class Fence(Protocol):
    """Something on the device that must have happened before host memory may be written again."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Ledger:
    """Who has which slot. `take`, `give_back` and `lend` are the trainer's; a lent array may die in any thread."""

    def __init__(self, slots: int, fence: Callable[[], Fence | None] = lambda: None) -> None:
        """`fence()` is called when a lent array dies; None means that nothing on a device can still read it."""
        self._free = deque(range(slots))
        self._returned: deque[tuple[int, Fence | None]] = deque()
        self._lent: dict[int, weakref.ref[Images]] = {}
        self._fence = fence
        self._process = os.getpid()

    @property
    def lent(self) -> int:
        return len(self._lent)

    def take(self) -> int | None:
        """A free slot, the one used last first (its memory is warm); None when all are in use."""
        self._collect()
        return self._free.pop() if self._free else None

    def wait(self) -> None:
        """Until a slot whose fence has not passed is free: for when there is nothing else to wait for."""
        if self._returned:
            slot, fence = self._returned.popleft()
            if fence is not None:
                fence.synchronize()
            self._free.append(slot)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def lend(self, slot: int, shown: Images) -> None:
        """`slot` is free again when `shown`, and with it every tensor and view made from it, is gone."""
        self._lent[slot] = weakref.ref(shown, lambda _: self._died(slot))

    def _died(self, slot: int) -> None:
        if os.getpid() == self._process:  # a forked child's copy of the tensor says nothing about ours
            self._returned.append((slot, self._fence()))
            self._lent.pop(slot, None)

    def _collect(self) -> None:
        for _ in range(len(self._returned)):
            slot, fence = self._returned.popleft()
            if fence is None or fence.query():
                self._free.append(slot)
            else:
                self._returned.append((slot, fence))
