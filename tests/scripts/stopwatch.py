"""A script's own stopwatch: one line for each lap, to the file named by the environment variable STOPWATCH.

Lines are `name pid end_s seconds`, times by time.monotonic(); they are appended by one write each, so that worker
processes may share the file and nothing is lost where a script is ended.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_path = os.environ.get("STOPWATCH")
_file = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if _path else None


@contextmanager
def lap(name: str) -> Iterator[None]:
    if _file is None:
        yield
        return
    began = time.monotonic()
    try:
        yield
    finally:
        ended = time.monotonic()
        os.write(_file, f"{name} {os.getpid()} {ended:.6f} {ended - began:.6f}\n".encode())


def timed(items: Iterable[T], name: str) -> Iterator[T]:
    """The items, each wait for the next one a lap."""
    iterator = iter(items)
    while True:
        with lap(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
