"""Batch slots: reusable buffers that workers fill and the trainer shows to the user without a copy.

A slot's way: free -> given to a worker with a task -> shown to the user -> (the last tensor that shows it is
garbage-collected, and the fence behind its device copy has passed) -> free. Nobody copies, nobody overwrites
what is still looked at. No torch here: the fence is handed in.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedline.pipeline.workers.memory import round_up

Images = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
CHANNELS = 3
HINT_BATCHES = 4
"""So many batches' samples can be announced with one task."""


class Slot(NamedTuple):
    """The parts of a slot, as views."""

    images: Images
    """Flat bytes."""
    labels_N: Numbers
    samples_N: Numbers
    filled: Numbers
    """Two numbers: the samples delivered, fewer than asked for where bad ones were skipped, and the bytes that they
    take of the images' part."""
    hints_N: Numbers
    """Samples that are read soon."""


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    batch_size: int
    px: int
    """The largest side of an output image; smaller ones fit."""

    @property
    def images_bytes(self) -> int:
        return round_up(self.batch_size * self.px * self.px * CHANNELS)

    @property
    def slot_bytes(self) -> int:
        return self.images_bytes + round_up(self._numbers * 8)

    @property
    def _numbers(self) -> int:
        return (2 + HINT_BATCHES) * self.batch_size + 2

    def slot(self, view: memoryview, number: int) -> Slot:
        count = self.batch_size
        numbers = np.frombuffer(view, np.int64, self._numbers, number * self.slot_bytes + self.images_bytes)
        filled, hints_N = numbers[2 * count : 2 * count + 2], numbers[2 * count + 2 :]
        return Slot(self.images(view, number), numbers[:count], numbers[count : 2 * count], filled, hints_N)

    def images(self, view: memoryview, number: int) -> Images:
        """An array of its own: what `Ledger.lend` watches. Views of it keep it alive."""
        return np.frombuffer(view, np.uint8, self.images_bytes, number * self.slot_bytes)


Fence = Sequence[Any]
"""CUDA events that must have happened before host memory may be written again."""


class Ledger:
    """Who has which slot. `take`, `give_back` and `lend` are the trainer's; a lent array may die in any thread."""

    def __init__(self, slots: int, fence: Callable[[], Fence] = lambda: ()) -> None:
        """`fence()` is called when a lent array dies: whatever on a device may still read it."""
        self._free = deque(range(slots))
        self._returned: deque[tuple[int, Fence]] = deque()
        self._lent: dict[int, weakref.ref[Images]] = {}
        self._fence = fence
        self._process = os.getpid()

    @property
    def lent(self) -> int:
        return len(self._lent)

    def take(self) -> int | None:
        """A free slot, the one used last first (its memory is warm); None when all are in use."""
        for _ in range(len(self._returned)):
            slot, fence = self._returned.popleft()
            if all(event.query() for event in fence):
                self._free.append(slot)
            else:
                self._returned.append((slot, fence))
        return self._free.pop() if self._free else None

    def wait(self) -> None:
        """Until a slot whose fence has not passed is free: for when there is nothing else to wait for."""
        if self._returned:
            slot, fence = self._returned.popleft()
            for event in fence:
                event.synchronize()
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
