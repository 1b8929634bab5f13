"""Which data files a process opens: material for what-if trials, and what a cold leg drops from the page cache."""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from feedline.profiling.watch.facts import held_by, innermost

MOST_PATHS = 512
CODE = (".py", ".pyc", ".so", ".pth", ".txt", ".toml", ".cfg", ".ini", ".typed", ".h", ".lock", ".part", ".jsonl")
LISTS = ("samples", "imgs", "files", "paths", "image_paths", "img_paths", "filenames", "images", "urls")


class PathCollector:
    """Collects through an audit hook. Hooks cannot be removed, so there is one for the life of a process; once it is
    full it costs one comparison an event."""

    _one: ClassVar["PathCollector | None"] = None

    def __init__(self) -> None:
        self.found: list[str] = []
        self._seen: set[str] = set()
        self._open = False

    @classmethod
    def active(cls) -> "PathCollector":
        """The one collector of this process (a forked child inherits its parent's, hook and all)."""
        if cls._one is None:
            cls._one = cls()
            sys.addaudithook(cls._one._hear)
        return cls._one

    def start(self) -> None:
        self.found, self._seen, self._open = [], set(), True

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not self._open:
            return
        path, mode = args[0], args[1]
        if not isinstance(path, str) or (mode is not None and mode[:1] != "r") or path.endswith(CODE):
            return
        if path in self._seen or path.startswith(("/proc/", "/sys/", "/dev/")) or "/site-packages/" in path:
            return
        self._seen.add(path)
        self.found.append(os.path.abspath(path))  # noqa: PTH100  Path would open an audit event of its own
        self._open = len(self.found) < MOST_PATHS


def dataset_files(dataset: Any) -> list[str]:
    """Paths a dataset lists itself: torchvision's `samples`, and the usual names for a list of paths."""
    held = held_by(innermost(dataset))
    for members in (held.get(name) for name in LISTS):
        if isinstance(members, list | tuple):
            first = [one[0] if isinstance(one, list | tuple) and one else one for one in members]
            paths = [str(one) for one in first if isinstance(one, str | os.PathLike)]
            if paths and Path(paths[0]).is_file():
                return paths
    return []
