"""A grid of settings: its axes, its cells, and which of them need shards of their own. Pure."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import BATCH_SIZE, IMAGE_SIZE
from feedline.pipeline.base.text import count_of


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One setting that a comparison may vary. Its name is that of its option, and of the loader's or prepare's."""

    help: str
    word: str
    """In tables."""
    form: str = ""
    """A value in sentences, as `{} px`; empty: after the word."""
    noun: str = ""
    """Its values are so many of these."""
    default: int | None = None
    """Where it is not named; None: then there is no such axis."""
    kind: type = int
    least: int = 1
    """Smaller values are refused before anything is measured."""
    of_shards: bool = False
    """Shards are prepared with it."""


AXES = {
    "num_workers": Axis(word="workers", noun="worker", help="Loader processes, as 0,1,2,4.", default=2, least=0),
    "prefetch_factor": Axis(word="prefetch", help="Batches under way per worker."),
    "batch_size": Axis(word="batch", help="Samples per batch.", default=BATCH_SIZE),
    "image_size": Axis(word="px", form="{} px", help="Side of the images handed over, px.", default=IMAGE_SIZE),
    "pin_memory": Axis(word="pinned", kind=bool, help="true,false"),
    "codec": Axis(word="codec", form="{}", help="Shards: {codecs}.", kind=str, of_shards=True),
    "size": Axis(word="shard px", help="Shards: short side in px.", of_shards=True),
    "quality": Axis(word="quality", help="Shards: quality of a lossy codec.", of_shards=True),
    "shard_size": Axis(word="shard size", help="Shards: size of one, as 16MiB,64MiB.", kind=str, of_shards=True),
    "shards": Axis(word="shards", noun="shard", help="Shards: how many per split.", of_shards=True),
    "model": Axis(word="model", form="{}", kind=str,
                  help="Also train: small_cnn,mobilenet_v2; else the loader alone."),
    "devices": Axis(word="devices", noun="device",
                    help="With --model: GPUs that train together, as 1,2,4; processes on a CPU."),
}  # fmt: skip
COST_ORDER = ("num_workers", "devices", "prefetch_factor", "batch_size")
"""Where cells tie, the one that takes least of these is named: workers cost memory, deep queues too."""
KINDS = {int: "a whole number", bool: "true or false", str: "a word"}


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
        from feedline.pipeline.codecs.table import CODECS

        for name, values in self.axes.items():
            if name not in AXES:
                raise UsageError(f"cannot compare {name!r}: known are {', '.join(AXES)}")
            if not values:
                raise UsageError(f"no values given for {name}")
            if AXES[name].kind is int and min(values) < AXES[name].least:
                raise UsageError(f"{flag(name)} {min(values)}: at least {AXES[name].least}")
        if unknown := [codec for codec in self.axes.get("codec", ()) if codec not in CODECS]:
            raise UsageError(f"--codec {unknown[0]}: known are {', '.join(CODECS)}")
        if not self.varied:
            raise UsageError("nothing to compare: give an option several values, like --num-workers 0,1,2,4")

    @classmethod
    def of(cls, axes: Mapping[str, Any]) -> "Grid":
        """One value or several by axis; the usual ones for axes that are not named. Raises UsageError."""
        usual = {name: [axis.default] for name, axis in AXES.items() if axis.default is not None and name not in axes}
        given = {name: [*values] if isinstance(values, list | tuple | range) else [values]
                 for name, values in axes.items()}  # fmt: skip
        for name, values in given.items():
            if name in AXES and (wrong := [value for value in values if type(value) is not AXES[name].kind]):
                raise UsageError(f"{wrong[0]!r} of {name} is not {KINDS[AXES[name].kind]}")
        return cls(axes={**usual, **given})

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
        words = phrases({name: cell.settings[name] for name in self.varied})
        return f"{words} ({ordinal} time)" if cell.copy else words


def flag(name: str) -> str:
    """`shard_size` -> `--shard-size`."""
    return f"--{name.replace('_', '-')}"


def phrase(name: str, value: Any) -> str:
    """`4 workers`, `raw`, `batch 64`, `not pinned`."""
    axis = AXES[name]
    if axis.noun:
        return count_of(value, axis.noun)
    if axis.kind is bool:
        return axis.word if value else f"not {axis.word}"
    return axis.form.format(value) if axis.form else f"{axis.word} {value}"


def phrases(settings: Mapping[str, Any]) -> str:
    """Of all that are axes."""
    return ", ".join(phrase(name, value) for name, value in settings.items() if name in AXES)
