"""`.lprof` files of line_profiler and kernprof, read without any way to call something.

Such a file is a pickle of line_profiler's LineStats. `pickle` runs what a file tells it to, and its unpickler in C
can be made to allocate gigabytes (a memo index) or to overflow the stack (tuples nested in tuples, hashed). This one
is the standard library's in Python, with only the instructions for plain values, tuples, lists and dictionaries;
those that call, set up or look up something are replaced, and know LineStats alone, for which a plain holder stands
in. line_profiler need not be installed. Source lines come from the Python files that are still there.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from feedline.pipeline.base.errors import RecordingError
from feedline.pipeline.base.files import read_bounded
from feedline.profiling.record.measurements import Line

MOST_BYTES = 64 << 20
MOST_SOURCE_BYTES = 16 << 20
ALLOWED = {
    (module, "LineStats")
    for module in ("line_profiler.line_profiler", "line_profiler._line_profiler", "line_profiler")
}
PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT",
    "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "PUT", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL",
)  # fmt: skip
"""Instructions that are done as the standard library does them: what they allocate is no longer than the file."""


class NotALineProfile(Exception):
    """The bytes are no line profile; says what they ask for instead. Nothing was run."""


@dataclass
class Stats:
    """Stands in for LineStats: keeps what it is given, unchecked."""

    timings: Any = None
    unit: Any = None


def load(data: bytes) -> Stats:
    """Raises NotALineProfile for everything but the pickle of one LineStats."""
    try:
        stats = _Reader(io.BytesIO(data)).load()
    except NotALineProfile:
        raise
    except Exception as error:  # whatever the standard library meets in damaged bytes
        raise NotALineProfile(f"damaged: {error}" if str(error) else "damaged") from error
    if not isinstance(stats, Stats):
        raise NotALineProfile("it holds no line_profiler results")
    return stats


class _Instructions(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> Any:
        raise NotALineProfile(f"it uses the instruction {bytes([code])!r}, which a line profile never does")


class _Reader(pickle._Unpickler):  # pyright: ignore
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: Any, name: Any) -> Any:
        if (module, name) not in ALLOWED:
            raise NotALineProfile(f"it asks for {module}.{name}, which a line profile never does")
        return Stats

    def _make(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind is not Stats or not isinstance(arguments, tuple) or len(arguments) > 2:
            raise NotALineProfile("it makes something that is no LineStats")
        self.stack.append(Stats(*arguments))

    def _set_up(self) -> None:
        state, stats = self.stack.pop(), self.stack[-1]
        held = state[0] if isinstance(state, tuple) and state else state
        if not isinstance(stats, Stats) or not isinstance(held, dict):
            raise NotALineProfile("it sets up something that is no LineStats")
        stats.timings, stats.unit = held.get("timings", stats.timings), held.get("unit", stats.unit)

    def _set_items(self, items: list[Any]) -> None:
        table = self.stack[-1]
        if not isinstance(table, dict):
            raise NotALineProfile("it fills something that is no table")
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[_key(key)] = value

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._set_items(items)

    dispatch = _Instructions(
        {code[0]: pickle._Unpickler.dispatch[code[0]] for code in (getattr(pickle, name) for name in PLAIN)}  # pyright: ignore
    )
    dispatch |= {
        pickle.NEWOBJ[0]: _make, pickle.REDUCE[0]: _make, pickle.BUILD[0]: _set_up, pickle.DICT[0]: _dict,
        pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: lambda self: self._set_items(self.pop_mark()),
    }  # fmt: skip


def _key(key: Any) -> Any:
    """Only names, and (file, line, function): a deep tuple must never be hashed."""
    if isinstance(key, str):
        return key
    if isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str | int) for part in key):
        return key
    raise NotALineProfile("its tables are not by file, line and function")


# --- lines ---------------------------------------------------------------------------------------------


def read_lprof(path: Path | str) -> list[Line]:
    """All lines, functions by their time, lines in order. Raises RecordingError, in one line, for anything that is
    not a line profile; nothing in the file is run."""
    path = Path(path)
    return _lines(_load(path), _Sources(path.parent), path)


def _load(path: Path) -> Stats:
    try:
        return load(read_bounded(path, MOST_BYTES))
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except NotALineProfile as error:
        what = f"{path} is not a line profile of kernprof ({_short(error)}): nothing in it was run"
        raise RecordingError(what) from error


def _short(error: Exception) -> str:
    words = "".join(char if char.isprintable() else "?" for char in str(error))
    return (words or type(error).__name__)[:200]


def _lines(stats: Stats, sources: "_Sources", where: Path) -> list[Line]:
    """Raises RecordingError where the numbers are not those of a line profile."""
    try:
        unit_s = float(stats.unit)
        timings = cast("dict[tuple[str, int, str], list[tuple[int, int, float]]]", stats.timings)
        functions = [_function(key, body, unit_s, sources) for key, body in timings.items()]
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordingError(f"{where} does not hold line_profiler's results: {_short(error)}") from error
    functions.sort(key=lambda lines: -sum(line.seconds for line in lines))
    return [line for lines in functions for line in lines]


def _function(
    key: tuple[str, int, str], body: list[tuple[int, int, float]], unit_s: float, sources: "_Sources"
) -> list[Line]:
    file, _, function = key
    if not isinstance(file, str) or not isinstance(function, str):
        raise TypeError("a function without a file and a name")
    total = sum(float(ticks) for _, _, ticks in body) or 1.0
    return [
        Line(
            file=file, function=function, line=int(line), hits=int(hits), seconds=float(ticks) * unit_s,
            fraction=float(ticks) / total, source=sources.line(file, int(line)),
        )
        for line, hits, ticks in sorted(body)
    ]  # fmt: skip


class _Sources:
    """Source lines where the files still are: Python files only, so that a profile cannot make us show others."""

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        self._texts: dict[str, list[str]] = {}

    def line(self, file: str, line: int) -> str:
        if file not in self._texts:
            self._texts[file] = self._read(file)
        text = self._texts[file]
        return text[line - 1] if 0 < line <= len(text) else ""

    def _read(self, file: str) -> list[str]:
        if not file.endswith(".py") or "\0" in file:
            return []
        for path in (Path(file), self._beside / file, self._beside / Path(file).name):
            try:
                if path.is_file() and path.stat().st_size <= MOST_SOURCE_BYTES:
                    return path.read_text(errors="replace").splitlines()
            except OSError:
                continue
        return []
