"""Frozen dataclasses <-> plain JSON values, checked against their annotations. Knows no particular dataclass.

Not-a-number and infinities become null, as JSON has none. Numbers that are read are not negative: they are counts,
times and sizes. A class with `AS_COLUMNS = True` is kept column by column in lists, floats to the microsecond, for
there may be a hundred thousand of it. Keys that a class does not have are ignored; fields that are missing take their
defaults.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 1e15  # of numbers: sums and products of a few of them are finite
ROUNDING = 1e-6  # what is less than nothing by no more than this is nothing: a difference of sums


def to_plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    members = cast("list[Any]", value)
    if not (members and getattr(members[0], "AS_COLUMNS", False)):
        return [to_plain(item) for item in members]
    columns: dict[str, list[Any]] = {}
    for one in fields(members[0]):
        column = [getattr(member, one.name) for member in members]
        columns[one.name] = [round(item, 6) if isinstance(item, float) else item for item in column]
    return {"columns": columns}


_hints = cache(get_type_hints)


def build(kind: type[T], data: Any) -> T:
    """Raises KeyError, TypeError or ValueError for data that is no `kind`."""
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__} must be an object, not {type(data).__name__}")
    values: dict[str, Any] = {}
    for one in fields(cast("Any", kind)):
        if one.name in data:
            values[one.name] = _convert(_hints(kind)[one.name], data[one.name], f"{kind.__name__}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise KeyError(f"{kind.__name__}.{one.name} is missing")
    return kind(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as `hint` says. Ints stand for floats, as JSON writes them."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _convert(inner[0], value, where)
    if origin is list:
        members = _rows(value, where) if isinstance(value, dict) and "columns" in value else value
        if not isinstance(members, list):
            raise TypeError(f"{where} must be a list")
        return [_convert(inner[0], item, where) for item in cast("list[Any]", members)]
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{where} must be an object")
        return {key: _convert(inner[1], item, where) for key, item in cast("dict[str, Any]", value).items()}
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{where} is {value!r}, not one of {', '.join(map(str, inner))}")
        return value
    if is_dataclass(hint):
        return build(cast("type[Any]", hint), value)
    if not isinstance(value, (int, float) if hint is float else hint) or (
        isinstance(value, bool) and hint is not bool
    ):
        raise TypeError(f"{where} must be {hint.__name__}, not {type(value).__name__}")
    if hint not in (int, float):
        return value
    if not -ROUNDING <= value <= LARGEST:  # not-a-number is not either
        raise ValueError(f"{where} is {str(value)[:20]}: nothing measures that")
    return hint(max(0, value))


def _rows(value: dict[str, Any], where: str) -> list[dict[str, Any]]:
    columns = cast("dict[str, list[Any]]", value["columns"])
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        raise TypeError(f"{where}.columns must be an object of lists")
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError(f"{where} has columns of different lengths")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
