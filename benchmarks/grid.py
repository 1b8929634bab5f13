"""A grid of settings: its axes, its cells, and which of them need shards of their own. Pure."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.codecs.table import CODECS
from feedline.profiling.record import units


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One setting that a comparison may vary; its option is its name."""

    word: str
    """In tables."""
    phrase: Callable[[Any], str] | None = None
    """A value in sentences; None: after the word."""
    kind: type = int
    least: int = 1
    """Smaller values are refused before anything is measured."""
    of_shards: bool = False
    """Shards are prepared with it."""
    counts: bool = False
    """Its values are of things in the plural, but for 1."""


def counted(noun: str, least: int = 1, of_shards: bool = False) -> Axis:
    def phrase(value: int) -> str:
        return units.count(value, noun)

    return Axis(word=f"{noun}s", phrase=phrase, least=least, of_shards=of_shards, counts=True)


AXES = {
    "num_workers": counted("worker", least=0),
    "prefetch_factor": Axis(word="prefetch"),
    "batch_size": Axis(word="batch"),
    "image_size": Axis(word="px", phrase=lambda value: f"{value} px"),
    "pin_memory": Axis(word="pinned", kind=bool, phrase=lambda value: "pinned" if value else "not pinned"),
    "model": Axis(word="model", kind=str, phrase=str),
    "devices": counted("device"),
    "codec": Axis(word="codec", kind=str, phrase=str, of_shards=True),
    "size": Axis(word="shard px", of_shards=True),
    "quality": Axis(word="quality", of_shards=True),
    "shard_size": Axis(word="shard size", kind=str, of_shards=True),
    "shards": counted("shard", of_shards=True),
}
COST_ORDER = ("num_workers", "devices", "prefetch_factor", "batch_size")
"""Where cells tie, the one that takes least of these is named: workers cost memory, deep queues too."""
KINDS = {int: "a whole number", bool: "true or false", str: "a word"}
SWITCH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


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

    @property
    def cost(self) -> list[float]:
        """What it takes: the first difference decides."""
        return [float(self.settings.get(name) or 0) for name in COST_ORDER]

    @property
    def shards(self) -> dict[str, Any]:
        """The part of the settings that a prepared dataset is made with."""
        return {name: value for name, value in self.settings.items() if AXES[name].of_shards}


@dataclass(frozen=True, kw_only=True)
class Grid:
    axes: Mapping[str, Sequence[Any]]
    """Name to values; an axis with one value is a fixed setting."""

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name not in AXES:
                raise UsageError(f"cannot compare {name!r}: known are {', '.join(AXES)}")
            if not values:
                raise UsageError(f"no values given for {name}")
            option, axis = f"--{name.replace('_', '-')}", AXES[name]
            for value in values:
                if axis.kind is int and value < axis.least:
                    raise UsageError(f"{option} {value}: at least {axis.least}")
                if name == "codec" and value not in CODECS:
                    raise UsageError(f"{option} {value}: known are {', '.join(CODECS)}")
        if not self.varied:
            raise UsageError("nothing to compare: give an option several values, like --num-workers 0,1,2,4")

    @classmethod
    def parse(cls, texts: Mapping[str, str | None]) -> "Grid":
        """Of comma-separated words by axis; None: not given. Raises UsageError."""
        return cls(
            axes={name: parse_values(text, AXES[name].kind) for name, text in texts.items() if text is not None}
        )

    @property
    def varied(self) -> list[str]:
        """Axes with more than one value, in the order given."""
        return [name for name, values in self.axes.items() if len(values) > 1]

    def cells(self) -> list[Cell]:
        seen: Counter[str] = Counter()
        cells: list[Cell] = []
        for values in itertools.product(*self.axes.values()):
            cell = Cell(settings=dict(zip(self.axes, values, strict=True)))
            cells.append(Cell(settings=cell.settings, copy=seen[cell.key]))
            seen[cell.key] += 1
        return cells

    def name(self, cell: Cell) -> str:
        """What tells the cell from the others: `4 workers, jpeg`."""
        ordinal = {1: "second", 2: "third"}.get(cell.copy, f"{cell.copy + 1}th")
        words = ", ".join(phrase(axis, cell.settings[axis]) for axis in self.varied)
        return f"{words} ({ordinal} time)" if cell.copy else words


def phrase(name: str, value: Any) -> str:
    """`4 workers`, `raw`, `batch 64`."""
    axis = AXES[name]
    return axis.phrase(value) if axis.phrase else f"{axis.word} {value}"


def parse_values(text: str, kind: type = int) -> list[Any]:
    """`0,1,2,4` -> [0, 1, 2, 4]. Raises UsageError."""
    values: list[Any] = []
    for word in map(str.strip, text.split(",")):
        try:
            if not word:
                raise ValueError
            values.append(SWITCH[word.lower()] if kind is bool else kind(word))
        except (KeyError, ValueError):
            raise UsageError(f"{word!r} in {text!r} is not {KINDS[kind]}") from None
    return values
