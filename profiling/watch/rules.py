"""Reading a stack by a table of rules: which of a table's names one frame stands for.

The first rule that matches a frame decides. Rules for libraries name a file and, where it matters, a function or the
text of the source line; rules for a user's own code look at the line ("np.load(" reads, "imdecode(" decodes) and then
at the function's name. Tables: `worker_rules`, `trainer_rules`.

Cost: one dictionary look-up per frame once a place has been seen.
"""

import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

DEPTH = 80  # frames looked at; deeper stacks are cut at the outside
HERE = __file__.replace("\\", "/").rpartition("/watch/")[0] + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Rule:
    stage: str
    file: str
    """Part of the file's path, with / on both sides of folders."""
    function: str = ""
    """Regular expression the whole function name matches; empty for any."""
    line: str = ""
    """Regular expression found in the source line; empty for any."""

    def fits(self, file: str, function: str, text: str) -> bool:
        return (
            self.file in file
            and (not self.function or re.fullmatch(self.function, function) is not None)
            and (not self.line or re.search(self.line, text) is not None)
        )


@dataclass(frozen=True)
class Place:
    """What a stack was doing."""

    stage: str
    where: str
    """file:function of the frame that decided, or of the innermost frame of the user's own."""
    transform: str | None = None
    """Class or function name, for stage transform."""


class Rules:
    """A table: rules for libraries, and (name, regular expression) for lines and functions of the user's own code."""

    def __init__(
        self,
        library: Sequence[Rule],
        lines: Sequence[tuple[str, str]],
        functions: Sequence[tuple[str, str]],
        otherwise: str | None = None,
    ) -> None:
        """`otherwise`: what the user's own code is that no rule knows."""
        self._library = library
        self._lines = [(stage, re.compile(pattern)) for stage, pattern in lines]
        self._functions = [(stage, re.compile(pattern)) for stage, pattern in functions]
        self._otherwise = otherwise
        self.stage_of = lru_cache(maxsize=16384)(self._stage_of)
        """(code, line number) -> the name of one frame by itself; None when no rule knows it."""

    def _stage_of(self, code: CodeType, line_number: int | None) -> str | None:
        file, function = code.co_filename.replace("\\", "/"), code.co_name
        text = source_line(code.co_filename, line_number)
        if is_library(file):
            return next((rule.stage for rule in self._library if rule.fits(file, function, text)), None)
        for stage, pattern in self._lines:
            if pattern.search(text):
                return stage
        named = (stage for stage, pattern in self._functions if pattern.search(function.lower()))
        return next(named, self._otherwise)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Innermost first."""
    for _ in range(DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=1024)
def _source(file: str) -> list[str]:
    # Not linecache: other threads use it meanwhile, and libraries put their own entries there.
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  cheap: inside the script
            return lines.readlines()
    except OSError:
        return []


def source_line(file: str, number: int | None) -> str:
    """Empty where there is no source. A frame between two lines has no number."""
    lines = _source(file)
    return lines[number - 1] if number and 0 < number <= len(lines) else ""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Installed packages and the standard library: everything else is the user's own code."""
    return file.startswith((*_LIBRARIES, "<frozen")) or "/site-packages/" in file or "/dist-packages/" in file


def place_name(code: CodeType) -> str:
    return f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{code.co_name}"


def is_ours(file: str) -> bool:
    """Frames of the probe itself stand between the script and what it called."""
    return file.startswith(HERE)


def own_place(frame: FrameType) -> str:
    """file:line of the script's own code that a stack came from: a `print(loss)` synchronises deep inside torch."""
    for one in frames(frame):
        file = one.f_code.co_filename
        if not is_library(file) and not is_ours(file):
            return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{one.f_lineno}"
    return "a library"
