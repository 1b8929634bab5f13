"""`@profile` for functions worth looking at line by line: `kernprof -l -v -m feedline.train.main …` fills it in.

Without kernprof the function is handed back untouched.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import line_profiler

F = TypeVar("F", bound=Callable[..., Any])


def profile(function: F) -> F:
    return line_profiler.profile(function)  # pyright: ignore[reportReturnType]
