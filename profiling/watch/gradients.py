"""Weights whose gradients are computed although no optimiser steps on them: of a teacher, or of a part of the model
that was not handed over. Nothing of the script's own is called."""

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
LOOKED_AT = {2, 8, 32, 128}  # optimiser steps at which gradients are looked at: an optimiser may step seldom
MOST_NAMES = 2


class Gradients:
    def __init__(self) -> None:
        self._looks = self._steps = 0
        self._models = dict[int, weakref.ref[Any]]()
        self._optimizers = dict[int, weakref.ref[Any]]()
        self._trained = dict[int, weakref.ref[Any]]()
        self._found = dict[int, weakref.ref[Any]]()  # weights that have a gradient as an optimiser steps

    def see_forward(self, frame: FrameType) -> None:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return
        outermost = next((one for one in reversed(list(frames(frame))) if has_weights(one)), None)
        model = UNKNOWN if outermost is None else variable("self", outermost, local=True)
        if model is not UNKNOWN:
            self._models.setdefault(id(model), weakref.ref(model))

    def stepping(self, optimizer: Any) -> None:
        """Called before each step of an optimiser, by the thread that asks for it."""
        self._steps += 1
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            self._see_trained(optimizer)
        if self._steps in LOOKED_AT:
            with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
                for model in _alive(self._models):
                    found = (one for one in _weights(model) if one.requires_grad and one.grad is not None)
                    self._found |= {id(one): weakref.ref(one) for one in found}

    def _see_trained(self, optimizer: Any) -> None:
        weights = (one for group in getattr(optimizer, "param_groups", []) for one in group.get("params", []))
        self._trained |= {id(one): weakref.ref(one) for one in weights}

    def told(self) -> dict[str, Any]:
        """Keys of `Compute`. Nothing where no optimiser steps on any weight of these models: it may have copies."""
        return quietly(self._unused) or {}

    def _unused(self) -> dict[str, Any]:
        for optimizer in _alive(self._optimizers):  # weights may have been added to it
            self._see_trained(optimizer)
        trained, found = (set(map(id, _alive(known))) for known in (self._trained, self._found))
        unused = [one for one in _alive(self._found) if id(one) not in trained]
        if not unused or not found & trained:
            return {}
        parts = dict[str, int]()
        for model in _alive(self._models):
            _name(model, type(model).__name__, found, trained, parts)
        largest = sorted(parts, key=lambda name: -parts[name])[:MOST_NAMES]
        return {"unused_gradients": sum(one.numel() for one in unused), "unused_in": largest}


def _alive(known: dict[int, "weakref.ref[Any]"]) -> list[Any]:
    return [one for ref in list(known.values()) if (one := ref()) is not None]


def _children(module: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(module)["_modules"].items() if one is not None}


def _weights(module: Any) -> Iterator[Any]:
    yield from (one for one in vars(module)["_parameters"].values() if one is not None)
    for child in _children(module).values():
        yield from _weights(child)


def _name(module: Any, path: str, found: set[int], trained: set[int], parts: dict[str, int]) -> None:
    """Of the largest parts of which nothing is trained, how many weights have gradients."""
    mine = {id(one): one.numel() for one in _weights(module) if id(one) in found}
    if mine.keys() - trained and not mine.keys() & trained:
        parts[path] = sum(mine.values())
    elif mine.keys() - trained:
        own = [one.numel() for one in vars(module)["_parameters"].values() if id(one) in found - trained]
        if own:
            parts[path] = sum(own)
        for name, child in _children(module).items():
            _name(child, f"{path}.{name}", found, trained, parts)
