"""Which data files a process opens: material for what-if trials, and what a cold leg drops from the page cache."""

import errno
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from feedline.pipeline.base.text import count_of
from feedline.profiling.watch.facts import held_by, innermost

MOST_PATHS = 512
DROP_S = 10.0
CHECKED = 64
CODE = (".py", ".pyc", ".so", ".pth", ".txt", ".toml", ".cfg", ".ini", ".typed", ".h", ".lock", ".part", ".jsonl")
WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
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
    path, flags = args[0], args[2]
    if not isinstance(path, str) or (flags or 0) & WRITING or path.endswith(CODE):
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


class Dropped(NamedTuple):
    share: float | None
    """Of the files, out of memory now; None where that cannot be told."""
    note: str
    """What came of it, in words."""


def drop(paths: Sequence[str]) -> Dropped:
    """Ask the kernel to forget these files' pages, without root, and check whether that worked."""
    if not paths:
        return Dropped(0.0, "the dataset's files are not known: the page cache was left alone")
    deadline = time.monotonic() + DROP_S
    dropped: list[str] = []
    for path in paths:
        if time.monotonic() > deadline:
            break
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(handle)  # pages that are not on the disk yet cannot be dropped
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
            dropped.append(path)
    checked = random.Random(0).sample(dropped, min(CHECKED, len(dropped)))
    known = [cached for path in checked if (cached := is_cached(path)) is not None]
    share = f"{len(dropped):,} of {count_of(len(paths), 'file')}"
    if not known:
        note = f"dropping {share} from the page cache was asked for; whether it worked cannot be told here"
        return Dropped(None, note)
    if warm := sum(known):
        note = f"dropping the page cache did not work: {warm} of {len(known)} files checked are still in memory"
        return Dropped(0.0, note)
    return Dropped(len(dropped) / len(paths), f"{share} dropped from the page cache (checked {len(known)})")


def is_cached(path: str) -> bool | None:
    """Whether a file's first page is in memory; None where it has none, or the system cannot tell without reading."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # else asking for a page has its neighbours read
        return os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT) > 0 or None
    except (AttributeError, OSError) as error:  # AttributeError: no Linux
        return False if getattr(error, "errno", None) == errno.EAGAIN else None
    finally:
        os.close(handle)
