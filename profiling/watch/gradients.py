"""Weights whose gradients are computed although no optimiser has them: of a teacher, or of a part of the model that
was not handed over. Nothing of the script's own is called."""

import gc
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from feedline.profiling.watch.calls import UNKNOWN, variable
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.parts import has_weights
from feedline.profiling.watch.rules import frames

MOST_LOOKS = 200  # at the forward pass: by then its models are known
LOOKED_AT = {2, 8, 32, 128, 256, 512, 2048}
"""Steps of optimisers at which a look begins; the same one's next step ends it."""
MOST_NAMES = 2


class Gradients:
    def __init__(self) -> None:
        self._looks = self._steps = 0
        self._models = dict[int, weakref.ref[Any]]()
        self._by: int | None = None  # the optimiser at whose step a look has begun
        self._before = dict[int, tuple[int, weakref.ref[Any], int]]()
        """By weight: its version, its gradient and the version of that, as the look began."""
        self._told = dict[str, Any]()

    def see_forward(self, frame: FrameType) -> None:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return
        outermost = next((one for one in reversed(list(frames(frame))) if has_weights(one)), None)
        model = UNKNOWN if outermost is None else variable("self", outermost, local=True)
        if model is not UNKNOWN and self._models.get(id(model), lambda: None)() is not model:
            self._models[id(model)] = weakref.ref(model)

    def told(self) -> dict[str, Any]:
        """Keys of `Compute`."""
        return self._told

    def stepping(self, optimizer: Any) -> None:
        """Called before each step of an optimiser, by the thread that asks for it."""
        self._steps += 1
        if self._steps not in LOOKED_AT and id(optimizer) != self._by:
            return
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            if id(optimizer) == self._by:
                self._by, self._told = None, quietly(self._unused) or {}
            else:
                self._by = id(optimizer)
                self._before = {id(one): (one._version, weakref.ref(one.grad), one.grad._version)
                                for one in self._with_gradients()}  # fmt: skip

    def _with_gradients(self) -> list[Any]:
        weights = (one for model in self._alive() for one in _weights(model))
        return [one for one in weights if one.requires_grad and one.is_leaf and one.grad is not None]

    def _alive(self) -> list[Any]:
        return [one for ref in list(self._models.values()) if (one := ref()) is not None]

    def _unused(self) -> dict[str, Any]:
        """Of weights that have got another gradient meanwhile, and that nobody has changed: they may have copies that
        are trained, or be changed by hand."""
        changed = [one for one in self._with_gradients() if self._has_changed(one)]
        unused = {id(one): one for one in changed if one._version == self._before[id(one)][0]}
        if not unused or len(unused) == len(changed):
            return {}
        kind = sys.modules["torch"].optim.Optimizer
        for optimizer in (one for one in gc.get_objects() if issubclass(type(one), kind)):  # one may step seldom
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    unused.pop(id(weight), None)
        parts = dict[str, int]()
        for model in self._alive():
            _name(model, type(model).__name__, unused, parts)
        largest = sorted(parts, key=lambda name: -parts[name])[:MOST_NAMES]
        return (
            {"unused_gradients": sum(one.numel() for one in unused.values()), "unused_in": largest} if parts else {}
        )

    def _has_changed(self, weight: Any) -> bool:
        _, gradient, version = self._before.get(id(weight), (0, None, 0))
        return gradient is not None and (gradient() is not weight.grad or version != weight.grad._version)


def _children(module: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(module)["_modules"].items() if one is not None}


def _weights(module: Any) -> Iterator[Any]:
    yield from (one for one in vars(module)["_parameters"].values() if one is not None)
    for child in _children(module).values():
        yield from _weights(child)


def _name(module: Any, path: str, unused: dict[int, Any], parts: dict[str, int]) -> None:
    """The largest parts of which no weight is used, with how many these are."""
    mine = {id(one): one for one in _weights(module)}
    if mine and mine.keys() <= unused.keys():
        parts[path] = parts.get(path, 0) + sum(one.numel() for one in mine.values())
        return
    for name, weight in vars(module)["_parameters"].items():
        if id(weight) in unused:
            parts[f"{path}.{name}"] = weight.numel()
    for name, child in _children(module).items():
        _name(child, f"{path}.{name}", unused, parts)
