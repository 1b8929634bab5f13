"""`@profile` for the functions worth looking at line by line: `kernprof -l -v -m feedline.train.main …` fills it in.

Without kernprof the decorator hands the function back untouched; without line_profiler so does a stand-in.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

try:
    from line_profiler import profile as _installed

    _profile: Any = _installed
except ImportError:
    _profile = None


def profile(function: Callable[P, R]) -> Callable[P, R]:
    return function if _profile is None else _profile(function)
