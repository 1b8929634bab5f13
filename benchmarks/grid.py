"""A grid of settings: its axes, its cells, and which of them need shards of their own. Pure."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.codecs.table import CODECS

LOADER_AXES = ("num_workers", "prefetch_factor", "batch_size", "image_size", "pin_memory", "model", "devices")
SHARD_AXES = ("codec", "size", "quality", "shard_size", "shards")
WORDS = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "batch_size": "batch",
    "image_size": "px",
    "pin_memory": "pinned",
    "model": "model",
    "devices": "devices",
    "codec": "codec",
    "size": "shard px",
    "quality": "quality",
    "shard_size": "shard size",
    "shards": "shards",
}
"""How an axis is called in tables and sentences."""
LEAST = {"num_workers": 0, "prefetch_factor": 1, "batch_size": 1, "image_size": 1, "devices": 1, "size": 1,
         "quality": 1, "shards": 1}  # fmt: skip
"""Smaller values are refused before anything is measured."""
COST_ORDER = ("num_workers", "devices", "prefetch_factor", "batch_size")
"""Where cells tie, the one that takes least of these is named: workers cost memory, deep queues too."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination. `copy` tells equal settings given twice apart."""

    settings: Mapping[str, Any]
    copy: int = 0

    @property
    def key(self) -> str:
        """Stable name in the results file."""
        text = json.dumps(dict(self.settings), sort_keys=True)
        return f"{text}#{self.copy}" if self.copy else text

    def shards(self) -> dict[str, Any]:
        """The part of the settings that a prepared dataset is made with."""
        return {name: value for name, value in self.settings.items() if name in SHARD_AXES}


@dataclass(frozen=True, kw_only=True)
class Grid:
    axes: Mapping[str, Sequence[Any]]
    """Name to values; an axis with one value is a fixed setting."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.axes) - {*LOADER_AXES, *SHARD_AXES})
        if unknown:
            raise UsageError(f"cannot compare {unknown[0]!r}: known are {', '.join((*LOADER_AXES, *SHARD_AXES))}")
        empty = [name for name, values in self.axes.items() if not values]
        if empty:
            raise UsageError(f"no values given for {empty[0]}")
        for name, values in self.axes.items():
            check_values(name, values)
        if not self.varied:
            raise UsageError("nothing to compare: give an option several values, like --num-workers 0,1,2,4")

    @property
    def varied(self) -> list[str]:
        """Axes with more than one value, in the order given."""
        return [name for name, values in self.axes.items() if len(values) > 1]

    def cells(self) -> list[Cell]:
        seen: dict[str, int] = {}
        found: list[Cell] = []
        for values in itertools.product(*self.axes.values()):
            settings = dict(zip(self.axes, values, strict=True))
            name = Cell(settings=settings).key
            found.append(Cell(settings=settings, copy=seen.get(name, 0)))
            seen[name] = seen.get(name, 0) + 1
        return found

    def name(self, cell: Cell) -> str:
        """What tells the cell from the others: `4 workers, jpeg`."""
        words = [phrase(axis, cell.settings[axis]) for axis in self.varied]
        again = f" ({ordinal(cell.copy + 1)} time)" if cell.copy else ""
        return ", ".join(words) + again


def check_values(name: str, values: Sequence[Any]) -> None:
    """Raises UsageError."""
    option = f"--{name.replace('_', '-')}"
    for value in values:
        if name in LEAST and value < LEAST[name]:
            raise UsageError(f"{option} {value}: at least {LEAST[name]}")
        if name == "codec" and value not in CODECS:
            raise UsageError(f"{option} {value}: known are {', '.join(CODECS)}")


def phrase(axis: str, value: Any) -> str:
    """`4 workers`, `codec raw`, `batch 64`."""
    if axis in ("num_workers", "devices", "shards"):
        word = WORDS[axis]
        return f"{value} {word.removesuffix('s') if value == 1 else word}"
    if axis in ("codec", "model"):
        return str(value)
    if axis == "pin_memory":
        return "pinned" if value else "not pinned"
    if axis == "image_size":
        return f"{value} px"
    return f"{WORDS[axis]} {value}"


def ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def parse_values(text: str, kind: type = int) -> list[Any]:
    """`0,1,2,4` -> [0, 1, 2, 4]. Raises UsageError."""
    found: list[Any] = []
    for word in map(str.strip, text.split(",")):
        try:
            found.append(_parse(word, kind))
        except (KeyError, ValueError):
            raise UsageError(f"{word!r} in {text!r} is not {KINDS[kind]}") from None
    return found


KINDS = {int: "a whole number", bool: "true or false", str: "a word"}


def _parse(word: str, kind: type) -> Any:
    if kind is bool:
        return {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False,
                "0": False}[word.lower()]  # fmt: skip
    if not word:
        raise ValueError(word)
    return kind(word)


def cheaper(a: Cell, b: Cell) -> bool:
    """`a` takes less than `b`, the first difference in COST_ORDER deciding."""
    return _cost(a) < _cost(b)


def _cost(cell: Cell) -> list[float]:
    values = [cell.settings.get(name) for name in COST_ORDER]
    return [float(value) if isinstance(value, int | float) else 0.0 for value in values]
