"""Which data files a process opens: material for what-if trials, and what a cold leg drops from the page cache."""

import os
import sys
from pathlib import Path
from typing import Any

from feedline.profiling.watch.facts import held_by, innermost

MOST_PATHS = 512
CODE = (".py", ".pyc", ".so", ".pth", ".txt", ".toml", ".cfg", ".ini", ".typed", ".h", ".lock", ".part", ".jsonl")
LISTS = ("samples", "imgs", "files", "paths", "image_paths", "img_paths", "filenames", "images", "urls")

opened: list[str] = []
"""Files that this process has opened to read since `collect_paths`."""
_seen: set[str] = set()
_hooked = False


def collect_paths() -> None:
    """From here on. An audit hook cannot be removed, so there is one for the life of a process (a forked child
    inherits it); once the list is full it costs one comparison an event."""
    global _hooked
    opened.clear()
    _seen.clear()
    if not _hooked:
        sys.addaudithook(_hear)
    _hooked = True


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or len(opened) >= MOST_PATHS:
        return
    path, mode = args[0], args[1]
    if not isinstance(path, str) or (mode is not None and mode[:1] != "r") or path.endswith(CODE):
        return
    if path not in _seen and not path.startswith(("/proc/", "/sys/", "/dev/")) and "/site-packages/" not in path:
        _seen.add(path)
        opened.append(os.path.abspath(path))  # noqa: PTH100  Path would open an audit event of its own


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
