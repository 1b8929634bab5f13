"""Batches kept to be handed out again and again: what a training loop does when data is free."""

import copy
from dataclasses import dataclass, field
from typing import Any

from feedline.profiling.batches import batch_bytes, tensors

KEPT_BATCHES = 4
KEPT_BYTES = 512 << 20


@dataclass
class Cache:
    batches: list[Any] = field(default_factory=list)
    pristine: list[Any] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    turn: int = 0

    def keep(self, batch: Any) -> None:
        size = sum(map(batch_bytes, self.batches))
        if len(self.batches) < KEPT_BATCHES and size + batch_bytes(batch) <= KEPT_BYTES:
            self.batches.append(batch)
            self.pristine.append(copy.deepcopy(batch))
            self.versions.append(_versions(batch))

    def next(self) -> Any:
        """The next kept batch; one that the script has changed in place is restored first."""
        self.turn = (self.turn + 1) % len(self.batches)
        batch = self.batches[self.turn]
        if _versions(batch) != self.versions[self.turn]:
            batch = self.batches[self.turn] = copy.deepcopy(self.pristine[self.turn])
            self.versions[self.turn] = _versions(batch)
        return batch

    def laid_out(self) -> "Cache | None":
        """Copies with their images in channels_last, as feedline's loader hands them over (NHWC seen as NCHW); None
        where no batch holds images."""
        other = Cache()
        changed = False
        for kept, batch in zip(self.batches, self.pristine, strict=True):
            twin = copy.deepcopy(batch)
            pairs = zip(tensors(twin), tensors(kept), strict=True)
            changed |= sum(_lay_out(tensor, original) for tensor, original in pairs) > 0
            other.keep(twin)
        return other if changed else None


def _versions(batch: Any) -> list[int]:
    return [getattr(tensor, "_version", 0) for tensor in tensors(batch)]


def _lay_out(tensor: Any, original: Any) -> bool:
    """Changes the layout of a batch of images in place, and pins it where the original is pinned (a copy is not)."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 4 or not 1 <= tensor.shape[1] <= 4:
        return False
    pinned = original.device.type == "cpu" and original.is_pinned()
    laid_out = tensor.contiguous(memory_format=torch.channels_last)
    tensor.data = laid_out.pin_memory() if pinned else laid_out
    return True
