"""Drop files from the page cache, without root, and check whether that worked."""

import errno
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

BUDGET_S = 10.0
CHECKED = 64


class Dropped(NamedTuple):
    share: float | None
    """Of the files, out of memory now; None where that cannot be told."""
    note: str
    """What came of it, in words."""


def drop(paths: Sequence[str]) -> Dropped:
    """Ask the kernel to forget these files' pages."""
    if not paths:
        return Dropped(0.0, "the dataset's files are not known: the page cache was left alone")
    deadline = time.monotonic() + BUDGET_S
    dropped: list[str] = []
    for path in paths:
        if time.monotonic() > deadline:
            break
        with suppress(OSError):
            forget(path)
            dropped.append(path)
    checked = random.Random(0).sample(dropped, min(CHECKED, len(dropped)))
    known = [cached for path in checked if (cached := is_cached(path)) is not None]
    share = f"{len(dropped):,} of {len(paths):,} files"
    if not known:
        note = f"dropping {share} from the page cache was asked for; whether it worked cannot be told here"
        return Dropped(None, note)
    if warm := sum(known):
        note = f"dropping the page cache did not work: {warm} of {len(known)} files checked are still in memory"
        return Dropped(0.0, note)
    return Dropped(len(dropped) / len(paths), f"{share} dropped from the page cache (checked {len(known)})")


def forget(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(handle)  # pages that are not on the disk yet cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def is_cached(path: str) -> bool | None:
    """Whether a file's first page is in memory; None where the system cannot tell without reading it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT)
        return True
    except (AttributeError, OSError) as error:  # AttributeError: no Linux
        return False if getattr(error, "errno", None) == errno.EAGAIN else None
    finally:
        os.close(handle)
