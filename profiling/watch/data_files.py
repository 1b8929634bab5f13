"""Which files a dataset lists: material for what-if trials, and what a cold leg drops from the page cache."""

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from feedline.pipeline.base.text import count_of
from feedline.profiling.watch.facts import held_by, innermost

DROP_S = 10.0
CHECKED = 64


def dataset_files(dataset: Any, most: int | None = None) -> list[str]:
    """Paths that a dataset lists itself, one for each sample: as texts or paths, alone or in entries, whole or in a
    folder that it holds; at most so many, by chance. Nothing of its own is called."""
    held = held_by(innermost(dataset))
    folders = ["", *(os.fspath(one) for one in held.values() if isinstance(one, str | os.PathLike))]
    lists = [one for one in held.values() if isinstance(one, list | tuple) and one]
    for listed in sorted(lists, key=len, reverse=True):
        for take in _ways_in(listed[0]):
            for folder in folders:
                with suppress(Exception):  # entries that differ, or are another's code
                    if os.path.isfile(path := os.path.join(folder, take(listed[0]))):  # noqa: PTH113, PTH118
                        some = listed if most is None else random.Random(0).sample(listed, min(most, len(listed)))
                        return [path if one is listed[0] else os.path.join(folder, take(one)) for one in some]  # noqa: PTH118
    return []


def _ways_in(entry: Any) -> Iterator[Callable[[Any], str]]:
    """To each path that an entry may hold."""
    if isinstance(entry, str | os.PathLike):
        yield os.fspath
    elif isinstance(entry, list | tuple | dict):
        keys = entry if isinstance(entry, dict) else range(len(entry))
        for key in keys:
            if isinstance(entry[key], str | os.PathLike):
                yield lambda one, key=key: os.fspath(one[key])


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
