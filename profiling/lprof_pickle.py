"""The pickle of a line profile, read by a small machine of our own that has no way to call anything.

A `.lprof` file is a pickle of line_profiler's LineStats. `pickle` runs what a file tells it to, and even a
restricted Unpickler can be made to allocate gigabytes (a memo index) or to overflow the C stack (tuples nested in
tuples, hashed). This machine knows plain values, tuples, lists, dictionaries, and LineStats itself, for which a plain
holder stands in; any other instruction ends the reading. `pickletools` (the standard library's disassembler) cuts the
bytes into instructions and runs none of them.
"""

import io
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ALLOWED = frozenset(
    {
        ("line_profiler.line_profiler", "LineStats"),
        ("line_profiler._line_profiler", "LineStats"),
        ("line_profiler", "LineStats"),
    }
)
CONSTANTS = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
        "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING",
    }
)  # fmt: skip
FIXED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict,
}  # fmt: skip
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class NotALineProfile(Exception):
    """The bytes are no line profile; says what they ask for instead. Nothing was run."""


@dataclass
class Stats:
    """Stands in for LineStats: keeps what it is given, unchecked."""

    timings: Any = None
    unit: Any = None


class _Mark:
    """Where a group of items begins on the stack."""


_MARK, _CLASS = _Mark(), object()


def load(data: bytes) -> Stats:
    """Raises NotALineProfile for everything but the pickle of one LineStats."""
    machine = _Machine()
    try:
        with warnings.catch_warnings(action="error", category=DeprecationWarning):  # of escapes that are none
            for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
                machine.step(opcode.name, argument)
    except NotALineProfile:
        raise
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        RecursionError,
        UnicodeError,
        MemoryError,
        DeprecationWarning,
    ) as error:
        raise NotALineProfile(f"damaged: {error}" if str(error) else "damaged") from error
    return machine.result()


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Stats:
        found = self._stack[-1] if self._stack else None
        if not isinstance(found, Stats):
            raise NotALineProfile("it holds no line_profiler results")
        return found

    def step(self, name: str, argument: Any) -> None:
        """One instruction. Raises NotALineProfile for one that a line profile has no use for."""
        if name in CONSTANTS:
            self._stack.append(argument)
        elif name in FIXED:
            self._stack.append(FIXED[name]())
        elif name in TUPLES:
            self._stack.append(tuple(self._take(TUPLES[name])))
        elif name in ("PROTO", "FRAME", "STOP"):
            return
        else:
            action = getattr(self, f"_{name.lower()}", None)
            if action is None:
                raise NotALineProfile(f"it uses the instruction {name}, which a line profile never does")
            action(argument)

    def _take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        items = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return items

    def _take_to_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                items = self._stack[at + 1 :]
                del self._stack[at:]
                return items
        raise IndexError("no mark on the stack")

    # --- groups

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._take_to_mark()))

    def _list(self, _: Any) -> None:
        self._stack.append(self._take_to_mark())

    def _dict(self, _: Any) -> None:
        items = self._take_to_mark()
        self._stack.append({})
        self._fill(items)

    def _append(self, _: Any) -> None:
        item = self._take(1)[0]
        self._top(list).append(item)

    def _appends(self, _: Any) -> None:
        items = self._take_to_mark()
        self._top(list).extend(items)

    def _setitem(self, _: Any) -> None:
        self._fill(self._take(2))

    def _setitems(self, _: Any) -> None:
        self._fill(self._take_to_mark())

    def _fill(self, items: list[Any]) -> None:
        table = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[_key(key)] = value

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise TypeError(f"no {kind.__name__} to add to")
        return self._stack[-1]

    # --- the memo

    def _put(self, index: Any) -> None:
        self._memo[int(index)] = self._stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, index: Any) -> None:
        self._stack.append(self._memo[int(index)])

    _binget = _long_binget = _get

    # --- the one class

    def _global(self, argument: Any) -> None:
        self._stack.append(_only_line_stats(*str(argument).split(" ", 1)))

    def _stack_global(self, _: Any) -> None:
        self._stack.append(_only_line_stats(*self._take(2)))

    def _newobj(self, _: Any) -> None:
        kind, arguments = self._take(2)
        if kind is not _CLASS or not isinstance(arguments, tuple) or len(arguments) > 2:
            raise NotALineProfile("it makes something that is no LineStats")
        self._stack.append(Stats(*arguments))

    _reduce = _newobj

    def _build(self, _: Any) -> None:
        stats, state = self._take(2)
        held = state[0] if isinstance(state, tuple) and state else state
        if not isinstance(stats, Stats) or not isinstance(held, dict):
            raise NotALineProfile("it sets up something that is no LineStats")
        stats.timings, stats.unit = held.get("timings", stats.timings), held.get("unit", stats.unit)
        self._stack.append(stats)


def _only_line_stats(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in ALLOWED:
        raise NotALineProfile(f"it asks for {module}.{name}, which a line profile never does")
    return _CLASS


def _key(key: Any) -> Any:
    """Only names, and (file, line, function): a deep tuple must never be hashed."""
    if isinstance(key, str):
        return key
    if isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str | int) for part in key):
        return key
    raise NotALineProfile("its tables are not by file, line and function")
