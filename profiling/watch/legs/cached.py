"""Batches kept to be handed out again and again: what a training loop does when data is free."""

import copy
import sys
from dataclasses import dataclass, field
from typing import Any

from feedline.profiling.watch.batches import batch_bytes, tensors

KEPT_BATCHES = 4
KEPT_BYTES = 512 << 20


@dataclass
class Cache:
    batches: list[Any] = field(default_factory=list)
    pristine: list[Any] = field(default_factory=list)
    pinned: list[list[bool]] = field(default_factory=list)
    """Of each batch's tensors as they came: copies are not."""
    versions: list[list[int]] = field(default_factory=list)
    turn: int = 0

    def keep(self, batch: Any) -> None:
        size = sum(map(batch_bytes, self.batches))
        if len(self.batches) < KEPT_BATCHES and size + batch_bytes(batch) <= KEPT_BYTES:
            self._add(batch, copy.deepcopy(batch), [_is_pinned(tensor) for tensor in tensors(batch)])

    def _add(self, batch: Any, pristine: Any, pinned: list[bool]) -> None:
        self.batches.append(batch)
        self.pristine.append(pristine)
        self.pinned.append(pinned)
        self.versions.append(_versions(batch))

    def next(self) -> Any:
        """The next kept batch; one that the script has changed in place is restored first."""
        self.turn = turn = (self.turn + 1) % len(self.batches)
        batch = self.batches[turn]
        if _versions(batch) != self.versions[turn]:
            batch = self.batches[turn] = _copied(self.pristine[turn], self.pinned[turn])
            self.versions[turn] = _versions(batch)
        return batch

    def laid_out(self) -> "Cache | None":
        """Copies with their images in channels_last, as feedline's loader hands them over (NHWC seen as NCHW); None
        where no batch holds images."""
        other = Cache()
        changed = False
        for pristine, pinned in zip(self.pristine, self.pinned, strict=True):
            twin = copy.deepcopy(pristine)
            changed |= sum(map(_lay_out, tensors(twin))) > 0
            other._add(_copied(twin, pinned), twin, pinned)
        return other if changed else None


def _versions(batch: Any) -> list[int]:
    return [getattr(tensor, "_version", 0) for tensor in tensors(batch)]


def _is_pinned(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    on_cpu = torch is not None and isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
    return on_cpu and tensor.is_pinned()


def _copied(pristine: Any, pinned: list[bool]) -> Any:
    batch = copy.deepcopy(pristine)
    for tensor, was in zip(tensors(batch), pinned, strict=True):
        if was:
            tensor.data = tensor.pin_memory()
    return batch


def _lay_out(tensor: Any) -> bool:
    """Changes the layout of a batch of images in place."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor) or tensor.ndim != 4 or not 1 <= tensor.shape[1] <= 4:
        return False
    tensor.data = tensor.contiguous(memory_format=torch.channels_last)
    return True
