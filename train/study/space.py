"""The space of a sweep: a TOML file with a table for each hyper-parameter. That may be any setting of `train` that
changes what is learned.

    [lr]                        [batch_size]             [model]
    low = 1e-3                  low = 16                 choices = ["small_cnn", "resnet18"]
    high = 1.0                  high = 64
    log = true
"""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import read_bounded, refused_as
from feedline.train.config import FREE_TO_CHANGE, TrainConfig

MOST_BYTES = 1 << 20
KEYS = ({"low", "high", "log"}, {"choices"})


@dataclass(frozen=True, kw_only=True)
class Range:
    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whole numbers only."""

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class Choices:
    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them: which one is the outermost is not known."""
        return self.values


Space = Mapping[str, Range | Choices]
"""By the names of TrainConfig's fields."""


def read_space(path: Path, config: TrainConfig) -> Space:
    """Checked against `config`, which holds all that is not searched.

    Raises UsageError, with the line, for what is no TOML, names no setting, or has an impossible range.
    """
    with refused_as(UsageError, f"--space {path} cannot be read"):
        data = read_bounded(path, MOST_BYTES)
    try:
        text = data.decode()
        tables = tomllib.loads(text)
    except ValueError as error:  # tomllib's says the line
        raise UsageError(f"--space {path} is no TOML: {error}") from error
    space: dict[str, Range | Choices] = {}
    for name, table in tables.items():
        try:
            space[name.replace("-", "_")] = _distribution(name.replace("-", "_"), table, config)
        except (UsageError, ValueError) as error:
            raise UsageError(f"{path} line {_line(text, name)}: [{name}] {error}") from error
    if "batch_size" in space and (config.global_batch or "global_batch" in space):
        raise UsageError(f"{path}: [batch_size] changes nothing where there is a global batch: leave one of them out")
    if isinstance(space.get("global_batch"), Range):
        raise UsageError(f"{path}: [global_batch] must be a multiple of the ranks: give choices, not a range")
    if not space:
        raise UsageError(
            f"--space {path} is empty: write a table for each hyper-parameter, as [lr] with low and high"
        )
    return space


def _line(text: str, name: str) -> int:
    """Where a table begins; 1 where it is written in a way that we do not look for."""
    header = re.compile(rf"""\s*\[?\s*["']?{re.escape(name)}["']?\s*[\].=]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if header.match(line)), 1)


def _distribution(name: str, table: Any, config: TrainConfig) -> Range | Choices:
    """Raises ValueError or UsageError."""
    known = {field.name: field for field in fields(TrainConfig)}.keys() - FREE_TO_CHANGE
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        what = "changes nothing that is learned" if name in FREE_TO_CHANGE else "is no setting of `feedline train`"
        raise ValueError(f"{what}{f': is {close[0]} meant?' if close else ''}")
    default = next(field.default for field in fields(TrainConfig) if field.name == name)
    if (given := getattr(config, name)) != default:
        raise ValueError(f"is searched here and fixed by --{name.replace('_', '-')} {given}: leave one of them out")
    if not isinstance(table, dict) or set(table) not in [set(table) & keys for keys in KEYS]:
        raise ValueError("has low and high (and perhaps log = true), or choices; nothing else")
    hint = get_type_hints(TrainConfig)[name]
    found = _choices(hint, table["choices"]) if "choices" in table else _range(hint, table)
    for value in found.ends:
        replace(config, **{name: value})  # the limits of the setting itself
    return found


def _choices(hint: Any, values: Any) -> Choices:
    if not isinstance(values, list) or not values:
        raise ValueError("choices are a list, as choices = [32, 64]")
    made = tuple(as_setting(hint, value) for value in values)
    if len(set(made)) < len(made):
        raise ValueError("a choice stands there twice")
    return Choices(values=made)


def _range(hint: Any, table: Mapping[str, Any]) -> Range:
    kinds = set(_kinds(hint)) & {int, float}
    if not kinds:
        raise ValueError("is not a number: give choices")
    if not {"low", "high"} <= set(table):
        raise ValueError("needs both low and high")
    whole, log = kinds == {int}, table.get("log", False)
    low, high = (as_setting(hint, table[end]) for end in ("low", "high"))
    if not isinstance(log, bool) or not low < high:
        raise ValueError(f"low {low} must be below high {high}" if isinstance(log, bool) else "log is true or false")
    if log and low <= 0:
        raise ValueError("a logarithmic range begins above 0")
    return Range(low=low, high=high, log=log, whole=whole)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """What a field may be, None apart."""
    return (
        tuple(kind for kind in get_args(hint) if kind is not type(None)) if get_origin(hint) is UnionType else (hint,)
    )


def as_setting(hint: Any, value: Any) -> Any:
    """A value of the file as the field has it: lists as tuples, whole numbers as fractions. Raises ValueError."""
    for kind in _kinds(hint):
        if get_origin(kind) is tuple and isinstance(value, list):
            inner = get_args(kind)
            each = [inner[0]] * len(value) if Ellipsis in inner else list(inner)
            if len(each) == len(value):
                return tuple(as_setting(one, item) for one, item in zip(each, value, strict=True))
        elif get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
        elif (
            kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ):
            return float(value)
        elif kind is not float and type(value) is kind:
            return value
        elif kind is Path and isinstance(value, str):
            return Path(value)
    names = [str(get_args(kind) or kind.__name__) for kind in _kinds(hint)]
    raise ValueError(f"{value!r} is not of the kind of this setting: {' or '.join(names)}")


def as_json(space: Space) -> dict[str, Any]:
    """As `study.json` compares it."""
    return {name: asdict(one) for name, one in sorted(space.items())}
