"""Batches kept to be handed out again and again: what a training loop does when data is free."""

import copy
import operator
import sys
from dataclasses import dataclass, field
from typing import Any

from feedline.profiling.watch.batches import parts, sizes, tensors

KEPT_BATCHES = 4
KEPT_BYTES = 512 << 20


@dataclass
class Kept:
    batch: Any
    pristine: Any
    pinned: list[bool]  # its tensors as they came: copies are not

    def __post_init__(self) -> None:
        self._parts, self._tensors = parts(self.batch), tensors(self.batch)
        self._versions = list(map(_version, self._tensors))

    @property
    def untouched(self) -> bool:
        """The script has replaced none of its parts, nor changed a tensor in place."""
        now = parts(self.batch)
        same = len(now) == len(self._parts) and all(map(operator.is_, now, self._parts))
        return same and list(map(_version, self._tensors)) == self._versions

    def restored(self) -> "Kept":
        """As it came, of the very tensors that are as they came: to copy those would take the loop's time."""
        known = zip(tensors(self.pristine), self._tensors, self._versions, strict=True)
        left = {id(clean): own for clean, own, version in known if _version(own) == version}
        return Kept(_copied(self.pristine, self.pinned, left), self.pristine, self.pinned)


@dataclass
class Cache:
    kept: list[Kept] = field(default_factory=list)
    turn: int = 0

    def keep(self, batch: Any, *, lent: bool = False) -> None:
        """`lent`: its memory is the loader's, which has no more of it for others meanwhile."""
        size = sum(sizes(one.batch)[1] for one in self.kept) + sizes(batch)[1]
        if len(self.kept) < KEPT_BATCHES and size <= KEPT_BYTES:
            pinned = [_is_tensor(one) and one.device.type == "cpu" and one.is_pinned() for one in tensors(batch)]
            pristine = copy.deepcopy(batch)
            self.kept.append(Kept(_copied(pristine, pinned) if lent else batch, pristine, pinned))

    def next(self) -> Any:
        """The next kept batch; one that the script has changed is restored first."""
        self.turn = (self.turn + 1) % len(self.kept)
        if not self.kept[self.turn].untouched:
            self.kept[self.turn] = self.kept[self.turn].restored()
        return self.kept[self.turn].batch

    def laid_out(self, device: str | None = None) -> "Cache | None":
        """Copies with their images in channels_last, as feedline's loader hands them over (NHWC seen as NCHW), on
        `device` where one is given; None where no batch holds images."""
        other, changed = Cache(), False
        for kept in self.kept:
            twin = copy.deepcopy(kept.pristine)
            for tensor in tensors(twin):
                if _is_tensor(tensor) and tensor.ndim == 4 and 1 <= tensor.shape[1] <= 4:
                    tensor.data = tensor.contiguous(memory_format=sys.modules["torch"].channels_last)
                    changed = True
            pinned = kept.pinned
            if device is not None:
                moved = {id(tensor): tensor.to(device) for tensor in tensors(twin) if _is_tensor(tensor)}
                twin, pinned = copy.deepcopy(twin, moved), [False] * len(pinned)
            other.kept.append(Kept(_copied(twin, pinned), twin, pinned))
        return other if changed else None


def _version(tensor: Any) -> int:
    return getattr(tensor, "_version", 0)


def _is_tensor(one: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(one, torch.Tensor)


def _copied(pristine: Any, pinned: list[bool], left: dict[int, Any] | None = None) -> Any:
    """`left`: by the ids of its tensors, what stands for them and is not copied."""
    batch = copy.deepcopy(pristine, left)
    for tensor, was in zip(tensors(batch), pinned, strict=True):
        if was and not tensor.is_pinned():
            tensor.data = tensor.pin_memory()
    return batch
