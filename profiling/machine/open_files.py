"""Which data files processes hold open to read, seen from outside, as /proc tells.

Nothing of it runs in them. An audit hook would tell every file, but stays for the life of a process and hears each
`id()`, too: copy.deepcopy takes twice as long with one.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from statistics import median
from typing import Any

from feedline.pipeline.base.process import read_text
from feedline.profiling.record.journal import MOST_PATHS

CODE = (".py", ".pyc", ".so", ".pth", ".txt", ".toml", ".cfg", ".ini", ".typed", ".h", ".lock", ".part", ".jsonl")
NO_DATA = re.compile(
    r"/(proc|sys|dev|etc|usr/(lib\w*|share|bin)|lib(32|64|x32)?)/|.*/(site|dist)-packages/|.* \(deleted\)$"
)
ASKED_AGAIN = 50  # looks
RARE = 0.05  # of the looks that found a file open: those that found one which no other look did
NO_READING = os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY


class OpenFiles:
    """Seen in looks, one after the other."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}  # data files, in the order in which they were seen first, up to MOST_PATHS
        self._last: dict[int, set[str]] = {}  # by process: what was open when something was, lately
        self._seen, self._opened = Counter[str](), Counter[str]()
        """Of each file, the looks that found it open, and those of them behind one at that process without it."""
        self._dull, self._looks, self._newest = set[tuple[int, str]](), 0, 0
        """Pipes and the like, which live long; asked again now and then."""

    @property
    def told(self) -> dict[str, Any]:
        """For the journal's `files`."""
        shares = [self._opened[path] / count for path, count in self._seen.items()]
        once = sum(count == 1 for count in self._seen.values())
        known = len(self.paths) < MOST_PATHS and once <= RARE * self._seen.total()
        known = known and 2 * self._newest < self._looks  # else it may go through large files in turn
        return {"paths": [*self.paths], "changing": median(shares) if shares else None, "all": known}

    def look(self, pids: Iterable[int]) -> None:
        self._looks += 1
        if self._looks % ASKED_AGAIN == 0:
            self._dull.clear()
        for pid in pids:
            if paths := set(self._read_by(pid)):
                self._newest = self._looks if paths - self.paths.keys() else self._newest
                self.paths |= dict.fromkeys(islice(paths - self.paths.keys(), MOST_PATHS - len(self.paths)))
                self._seen.update(paths & self.paths.keys())
                self._opened.update(paths & self.paths.keys() - self._last.get(pid, paths))
                self._last[pid] = paths

    def _read_by(self, pid: int) -> Iterator[str]:
        with suppress(OSError):  # it has ended, or is another user's
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  cheap: many times a second
                if (pid, number) in self._dull:
                    continue
                with suppress(OSError, ValueError, IndexError):  # it has been closed meanwhile
                    path = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
                    if not path.startswith("/"):
                        self._dull.add((pid, number))
                    elif is_data(path) and not _flags(pid, number) & NO_READING:
                        yield path


def is_data(path: str) -> bool:
    return path.startswith("/") and not path.endswith(CODE) and not NO_DATA.match(path)


def _flags(pid: int, number: str) -> int:
    """Those that it was opened with. Raises where that cannot be told."""
    return int(read_text(f"/proc/{pid}/fdinfo/{number}").split("flags:")[1].split()[0], 8)
