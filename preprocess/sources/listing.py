"""Which files a source's path means: one file, a folder, a pattern, or any of these at an address fsspec speaks."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.reading import what_happened

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
"""Folder name or beginning of a file name, in lower case -> split."""
FOLDER_DEPTH = 3
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
CHOICE = re.compile(r"\{([^{}]*)\}")
EXPANDED_MAX = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One file, and its name under the place that was asked for."""

    path: str
    under: str
    split: str = "train"


def is_pattern(path: str) -> bool:
    return any(sign in path for sign in "{*")


def split_of(file: Listed) -> str:
    """By a folder on the way, or by how the file name begins; train if nothing says otherwise."""
    path = PurePosixPath(file.under)
    for word in (*reversed(path.parent.parts), re.split(r"[^a-z]", path.name.lower())[0]):
        if word.lower() in SPLIT_NAMES:
            return SPLIT_NAMES[word.lower()]
    return "train"


def expand(path: str, endings: tuple[str, ...], options: dict[str, Any]) -> list[Listed]:
    """The files that end so: the path itself, or those in the folder (three levels deep), sorted."""
    found = [file for one in braces(path) for file in listed(one, endings, options)]
    return sorted(found, key=lambda file: file.path)


def listed(path: str, endings: tuple[str, ...], options: dict[str, Any]) -> Iterator[Listed]:
    remote = "://" in path
    names = remote_files(path, endings, options) if remote else local_files(path, endings)
    base = path.rstrip("/") + "/"
    for name in names:
        if not PurePosixPath(name).name.startswith("."):
            under = name.removeprefix(base) if name.startswith(base) else PurePosixPath(name).name
            yield Listed(path=name, under=under)


def local_files(path: str, endings: tuple[str, ...]) -> list[str]:
    if "*" in path:
        found = glob.glob(path)  # noqa: PTH207 - Path.glob takes no absolute pattern
        return [name for name in found if name.endswith(endings)]
    if not Path(path).exists():
        raise UsageError(f"{path} does not exist")
    if not Path(path).is_dir():
        return [path] if path.endswith(endings) else []
    found: list[str] = []
    for folder, folders, files in os.walk(path, followlinks=True):
        depth = len(Path(folder).relative_to(path).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth + 1 < FOLDER_DEPTH)
        found += [str(Path(folder) / name) for name in files if name.endswith(endings)]
    return found


def remote_files(address: str, endings: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    """Full addresses. Raises UsageError for an address that cannot be opened or listed."""
    if "*" not in address and address.endswith(endings):
        return [address]
    import fsspec

    try:
        filesystem, root = fsspec.core.url_to_fs(address, **options)
        names = filesystem.glob(root) if "*" in address else filesystem.find(root, maxdepth=FOLDER_DEPTH)
        if not names:  # also where nobody answers
            with suppress(FileNotFoundError):
                filesystem.ls(root)
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        raise UsageError(f"{address} cannot be listed: {what_happened(error)}") from error
    return [filesystem.unstrip_protocol(name) for name in names if name.endswith(endings)]


def braces(path: str) -> Iterator[str]:
    """`x-{000000..000146}.tar` and `{a,b}.tar`, as webdataset writes them. Raises UsageError."""
    found = RANGE.search(path) or CHOICE.search(path)
    if found is None:
        yield path
        return
    if found.re is RANGE:
        low, high = int(found[1]), int(found[2])
        if not 0 <= high - low < EXPANDED_MAX:
            raise UsageError(f"{path}: {found[0]} is not a range of file numbers")
        choices = [f"{number:0{len(found[1])}d}" for number in range(low, high + 1)]
    else:
        choices = found[1].split(",")
    for choice in choices:
        yield from braces(path[: found.start()] + choice + path[found.end() :])
