"""Which files a source's path means (a file, a folder, a pattern, here or at an address fsspec speaks), of which
split they are, and which of them are images.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.codecs.pillow import EXTENSIONS, START
from feedline.pipeline.format.manifest import INDEX
from feedline.preprocess.sources.reading import reached, what_happened

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
"""Folder name, or a word of a file name, in lower case -> split."""
FOLDER_DEPTH = 3
RANGE_OR_CHOICE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*)\}")
EXPANDED_MAX = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One file, its name under the place that was asked for, and its split."""

    path: str
    under: str
    split: str = "train"


def is_pattern(path: str) -> bool:
    return any(sign in path for sign in "{*")


def expand(path: str, endings: tuple[str, ...], options: dict[str, Any]) -> list[Listed]:
    """The files that end so: the path itself, or those in the folder (three levels deep), sorted; hidden ones are
    none, and one that has several names in a split counts once. Raises UsageError for what is not there or cannot be
    listed.
    """
    files: list[Listed] = []
    base = re.split(r"[{*]", path)[0].rpartition("/")[0] if is_pattern(path) else path
    for place in braces(path):
        for name in (remote_files if "://" in place else local_files)(place, endings, options):
            if name.endswith(endings) and not PurePosixPath(name).name.startswith("."):
                under = name_under(base, name)
                files.append(Listed(path=name, under=under, split=split_of(under)))
    return distinct(files)


def distinct(files: Iterable[Listed]) -> list[Listed]:
    """Sorted, each file of a split once, by its own name rather than by that of a link."""
    found: dict[tuple[str, str], Listed] = {}
    for file in sorted(files, key=lambda file: (Path(file.path).is_symlink(), file.path)):
        real = file.path if "://" in file.path else os.path.realpath(file.path)
        found.setdefault((file.split, real), file)
    return sorted(found.values(), key=lambda file: file.path)


def name_under(base: str, name: str) -> str:
    """A file's name under the place that it was listed for, which may be written in another way (`./x` as `x`,
    `az://x` as `abfs://x`); in doubt with the folders that such a listing goes into."""
    top, path = (PurePosixPath(re.sub(r"^[\w+.-]+://+", "", text)) for text in (base, name))
    if path == top:
        return path.name
    if not top.parts:  # a pattern in the current folder
        return str(path)
    for gone in range(len(top.parts)):  # a host, or what names one, may be missing or stand in other words
        rest = top.parts[gone:]
        for first in (0, 1):
            if path.parts[first : first + len(rest)] == rest:
                return "/".join(path.parts[first + len(rest) :]) or path.name
    return "/".join(path.parts[-FOLDER_DEPTH:])


def split_of(under: str) -> str:
    """By a folder on the way, or by a word of the file's name (imagenet1k-validation-00.tar); train if nothing says
    otherwise. Raises UsageError for a name with words of two splits."""
    path = PurePosixPath(under)
    folders = [SPLIT_NAMES[name.lower()] for name in path.parent.parts if name.lower() in SPLIT_NAMES]
    named = {SPLIT_NAMES[word] for word in re.split(r"[^a-z]+", path.stem.lower()) if word in SPLIT_NAMES}
    if not folders and len(named) > 1:
        raise UsageError(f"{under} may be of {' or '.join(sorted(named))}: put each split into a folder of its name")
    return next(iter([*reversed(folders), *named]), "train")


def local_files(path: str, endings: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    if "*" in path:
        return glob.glob(path)  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not Path(path).exists():
        raise UsageError(f"{path} does not exist")
    if not Path(path).is_dir():
        return [path]
    paths, deeper = list[str](), list[str]()
    for folder, folders, files in os.walk(path, followlinks=True, onerror=not_listed):
        depth = len(Path(folder).relative_to(path).parts)
        folders[:] = [name for name in folders if not name.startswith(".") and depth < FOLDER_DEPTH]
        found = [str(Path(folder) / name) for name in files if name.endswith(endings)]
        if depth < FOLDER_DEPTH:
            paths += found
        else:  # but for what nobody takes for data
            deeper += [file for file in found if not Path(file).name.startswith(".") and Path(file).name != INDEX]
    known = {os.path.realpath(file) for file in paths}  # folders may be linked to one above
    lost = next((file for file in deeper if os.path.realpath(file) not in known), None)
    if known and lost is not None and endings[0].startswith("."):  # a manifest may be of anything
        raise UsageError(f"{path}: {lost} lies deeper than {FOLDER_DEPTH} levels: give the folders one by one")
    return paths


def not_listed(error: OSError) -> None:
    if Path(error.filename).name == "lost+found":  # of a disk's own, whose owner is root
        return
    raise UsageError(f"{error.filename} cannot be listed: {error.strerror}") from error


def remote_files(address: str, endings: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    if "*" not in address and address.endswith(endings):
        return [address]
    try:
        filesystem, root = reached(address, options)
        names = filesystem.glob(root) if "*" in address else filesystem.find(root, maxdepth=FOLDER_DEPTH)
        if not names:  # also where nobody answers
            with suppress(FileNotFoundError):
                filesystem.ls(root)
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        raise UsageError(f"{address} cannot be listed: {what_happened(error)}") from error
    return [filesystem.unstrip_protocol(name) for name in names]


def braces(path: str) -> Iterator[str]:
    """`x-{000000..000146}.tar` and `{a,b}.tar`, as webdataset writes them. Raises UsageError."""
    match = RANGE_OR_CHOICE.search(path)
    if match is None:
        yield path
        return
    low, high, choice = match.groups()
    if choice is not None:
        choices = choice.split(",")
    elif 0 <= int(high) - int(low) < EXPANDED_MAX:
        choices = [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    else:
        raise UsageError(f"{path}: {match[0]} is not a range of file numbers")
    for word in choices:
        yield from braces(path[: match.start()] + word + path[match.end() :])


def is_image(name: str) -> bool:
    """By its extension."""
    stem, _, extension = name.rpartition("/")[2].rpartition(".")
    return f".{extension.lower()}" in EXTENSIONS and not stem.startswith(".") and stem != ""


def is_image_file(path: str) -> bool:
    """By its extension, or by its first bytes: many image files have another extension or none."""
    if is_image(path):
        return True
    try:
        with Path(path).open("rb") as file:
            return START.match(file.read(16)) is not None
    except OSError:
        return False
