"""`.lprof` files of line_profiler and kernprof, read without any way to call something.

Such a file is a pickle of line_profiler's LineStats. `pickle` runs what a file tells it to, and its unpickler in C
can be made to allocate gigabytes (a memo index). This one is the standard library's in Python, which makes nothing
larger than the file as long as it has only the instructions below; the one thing it can look up is LineStats, for
which a plain holder stands in. line_profiler need not be installed.
"""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import RecordingError
from feedline.pipeline.base.files import read_bounded
from feedline.profiling.record.measurements import Line

MOST_BYTES = 64 << 20
MOST_SOURCE_BYTES = 16 << 20
MODULES = ("line_profiler.line_profiler", "line_profiler._line_profiler", "line_profiler")
INSTRUCTIONS = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT",
    "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD",
)  # fmt: skip


@dataclass
class _Stats:
    """Stands in for LineStats: keeps what it is given, unchecked."""

    timings: Any = None
    unit: Any = None

    def __setstate__(self, state: Any) -> None:
        held = state[0] if isinstance(state, tuple) else state
        self.timings, self.unit = held.get("timings", self.timings), held.get("unit", self.unit)


class _Table(dict[Any, Any]):
    """Only under names, and (file, line, function): to hash tuples nested in tuples overflows the stack."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        parts = key if isinstance(key, tuple) and len(key) == 3 else (key,)
        if not all(isinstance(part, str | int) for part in parts):
            raise ValueError("its tables are not by file, line and function")
        super().__setitem__(key, value)


class _Reader(pickle._Unpickler):  # pyright: ignore
    dispatch = {
        code: pickle._Unpickler.dispatch[code]  # pyright: ignore
        for code in (getattr(pickle, name)[0] for name in INSTRUCTIONS)
    } | {pickle.EMPTY_DICT[0]: lambda self: self.append(_Table())}

    def find_class(self, module: Any, name: Any) -> Any:
        if name != "LineStats" or module not in MODULES:
            raise ValueError(f"it asks for {module}.{name}, which a line profile never does")
        return _Stats


def read_lprof(path: Path | str) -> list[Line]:
    """All lines, functions by their time, lines in order. Raises RecordingError, in one line, for anything that is
    not a line profile; nothing in the file is run."""
    path = Path(path)
    try:
        stats = _Reader(io.BytesIO(read_bounded(path, MOST_BYTES))).load()
        if not isinstance(stats, _Stats):
            raise ValueError("it holds no line_profiler results")
        unit_s, sources = float(stats.unit), dict[str, list[str]]()
        functions = [_lines(key, body, unit_s, sources, path.parent) for key, body in stats.timings.items()]
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # whatever the standard library meets in damaged bytes; KeyError: no INSTRUCTIONS
        why = "it has instructions that a line profile never has" if isinstance(error, KeyError) else _short(error)
        what = f"{path} is not a line profile of kernprof ({why}): nothing in it was run"
        raise RecordingError(what) from error
    functions.sort(key=lambda lines: -sum(line.seconds for line in lines))
    return [line for lines in functions for line in lines]


def _short(error: Exception) -> str:
    words = "".join(char if char.isprintable() else "?" for char in str(error))
    return (words or type(error).__name__)[:200]


def _lines(key: Any, body: Any, unit_s: float, sources: dict[str, list[str]], beside: Path) -> list[Line]:
    file, _, function = key
    if not isinstance(file, str) or not isinstance(function, str):
        raise TypeError("a function without a file and a name")
    if file not in sources:
        sources[file] = _source(file, beside)
    text = sources[file]
    total = sum(float(ticks) for _, _, ticks in body) or 1.0
    return [
        Line(
            file=file, function=function, line=int(line), hits=int(hits), seconds=float(ticks) * unit_s,
            fraction=float(ticks) / total, source=text[int(line) - 1] if 0 < int(line) <= len(text) else "",
        )
        for line, hits, ticks in sorted(body)
    ]  # fmt: skip


def _source(file: str, beside: Path) -> list[str]:
    """Lines of the file where it still is: of Python files only, so that a profile cannot make us show others."""
    if not file.endswith(".py") or "\0" in file:
        return []
    for path in (Path(file), beside / file, beside / Path(file).name):
        try:
            if path.is_file() and path.stat().st_size <= MOST_SOURCE_BYTES:
                return path.read_text(errors="replace").splitlines()
        except OSError:
            continue
    return []
