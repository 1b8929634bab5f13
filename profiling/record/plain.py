"""Frozen dataclasses <-> plain JSON values, checked against their annotations. Knows no particular dataclass.

Not-a-number and infinities become null, as JSON has none. Numbers that are read are not negative: they are counts,
times and sizes. A class with `AS_COLUMNS = True` is kept column by column
in lists, for there may be a hundred thousand of it. Keys that a class does not have are ignored; fields that are
missing take their defaults.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 1e15
"""Of numbers: sums and products of a few of them are finite."""
ROUNDING = 1e-6
"""What is less than nothing by no more than this is nothing: a difference of sums."""


def to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain_field(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    return value


def _plain_field(value: Any) -> Any:
    """A list of members that want it becomes {"columns": {field: [values]}}, floats kept to the microsecond."""
    if isinstance(value, list) and value and getattr(cast("list[Any]", value)[0], "AS_COLUMNS", False):
        members = cast("list[Any]", value)
        names = [one.name for one in fields(members[0])]
        return {"columns": {name: [_microsecond(getattr(one, name)) for one in members] for name in names}}
    return to_plain(value)


def _microsecond(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def build(kind: type[T], data: Any) -> T:
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__} must be an object, not {type(data).__name__}")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for one in fields(cast("Any", kind)):
        if one.name in data:
            values[one.name] = _convert(hints[one.name], data[one.name], f"{kind.__name__}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise KeyError(f"{kind.__name__}.{one.name} is missing")
    return kind(**values)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as `hint` says, or TypeError. Ints stand for floats, as JSON writes them."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _convert(next(one for one in inner if one is not type(None)), value, where)
    if origin is list:
        return _convert_list(inner[0], value, where)
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
    return _convert_scalar(hint, value, where)


def _convert_list(item_hint: Any, value: Any, where: str) -> list[Any]:
    if isinstance(value, dict) and "columns" in value:
        columns = cast("dict[str, list[Any]]", value["columns"])
        if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
            raise TypeError(f"{where}.columns must be an object of lists")
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError(f"{where} has columns of different lengths")
        rows = zip(*columns.values(), strict=True)
        return [build(item_hint, dict(zip(columns, row, strict=True))) for row in rows]
    if not isinstance(value, list):
        raise TypeError(f"{where} must be a list")
    return [_convert(item_hint, item, where) for item in cast("list[Any]", value)]


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    wanted = (int, float) if hint is float else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{where} must be {hint.__name__}, not {type(value).__name__}")
    if hint not in (int, float):
        return value
    if not -ROUNDING <= value <= LARGEST:  # not-a-number is not either
        raise ValueError(f"{where} is {str(value)[:20]}: nothing measures that")
    return hint(max(0, value))
