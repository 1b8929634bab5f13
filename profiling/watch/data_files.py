"""Which files a dataset lists: material for what-if trials, and what a cold leg drops from the page cache."""

import errno
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from feedline.pipeline.base.text import count_of
from feedline.profiling.watch.facts import held_by, innermost

DROP_S = 10.0
CHECKED = 64
MOST_WAYS = 16  # members of an entry, and folders, among which a path is looked for


def dataset_files(dataset: Any, most: int | None = None) -> list[str]:
    """Paths that a dataset lists itself, one for each sample: as texts or paths, alone or in entries, whole or in a
    folder that it holds; at most so many, by chance. Nothing of its own is called: a path of its own kind may be
    something to download."""
    held = dict(held_by(innermost(dataset)))
    folders = ["", *islice((str(one) for one in held.values() if isinstance(one, str | PurePath)), MOST_WAYS)]
    lists = [one for value in held.values() for one in _lists(value) if one.length]
    for listed in sorted(lists, key=lambda one: one.length, reverse=True):
        (first,) = listed.take([0])
        for take in _ways_in(first):
            for folder in folders:
                with suppress(Exception):  # entries that differ, or are another's code
                    if Path(folder, take(first)).is_file():
                        numbers = range(listed.length)
                        chosen = random.Random(0).sample(numbers, min(most or len(numbers), len(numbers)))
                        some = listed.take(numbers if most is None else chosen)
                        here = os.path.abspath(folder)  # noqa: PTH100  Path is slow for a million
                        return [os.path.join(here, take(one)) for one in some]  # noqa: PTH118
    return []


class Listed(NamedTuple):
    length: int
    take: Callable[[Sequence[int]], list[Any]]  # those at these places


def _lists(value: Any) -> Iterable[Listed]:
    """Itself, where it is a list or an array of texts or objects; such columns of a table."""
    kind, module = type(value), str(type(value).__module__)
    if kind in (list, tuple) or (module == "numpy" and getattr(value, "ndim", 0) == 1 and value.dtype.kind in "OU"):
        yield Listed(len(value), lambda numbers: [value[number] for number in numbers])
    elif module.startswith("pandas.") and kind.__name__ in ("DataFrame", "Series"):
        table = value.to_frame() if kind.__name__ == "Series" else value
        for column in (table.iloc[:, number] for number in range(min(MOST_WAYS, table.shape[1]))):
            if column.dtype.kind == "O":
                yield Listed(len(column), lambda numbers, column=column: column.iloc[[*numbers]].tolist())


def _ways_in(entry: Any) -> Iterator[Callable[[Any], str]]:
    """To each path that an entry may hold."""
    if isinstance(entry, str | PurePath):
        yield str
    elif type(entry) in (list, tuple, dict):
        keys = entry if type(entry) is dict else range(len(entry))
        for key in islice(keys, MOST_WAYS):
            if isinstance(entry[key], str | PurePath):
                yield lambda one, key=key: str(one[key])


class Dropped(NamedTuple):
    share: float | None  # of the files, out of memory now; None where that cannot be told
    note: str  # what came of it, in words


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
