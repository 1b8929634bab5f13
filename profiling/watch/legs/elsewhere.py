"""Where paths lead while a script's writes are held back: what was written is in a scratch folder, the rest where it
was.

A path is known by its absolute text (`Path.resolve` would follow links through the very calls that ask here). A link
that the script makes is a name in a table, not a link: writing through a real one would reach the file it leads to.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feedline.profiling.record.journal import Journal

SPECIAL = ("/dev/", "/proc/", "/sys/")
MOST_LINKS = 40  # as the kernel follows them


class Elsewhere:
    def __init__(self, scratch: Path, journal: Journal) -> None:
        nowhere = scratch == Path()  # as given by options without one: not the script's own folder
        self._scratch = str(journal.folder / "held" if nowhere else scratch)
        self._exempt = (*SPECIAL, self._scratch + os.sep, str(journal.folder) + os.sep)
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        self._journal = journal
        self._real_open = open
        self._real_mkdir = os.mkdir
        self.diverted: dict[str, str] = {}
        """Files the script wrote -> where their bytes are."""
        self.links: dict[str, str] = {}
        """Symbolic links the script made -> what they lead to."""
        self.made: dict[str, None] = {}
        """Folders the script made; they are real."""
        self.own: set[str] = set()
        """Temporary files the script made; they are real."""

    def absolute(self, path: Any, dir_fd: int | None = None) -> str | None:
        """None for descriptors, what is no path, and a folder's descriptor that cannot be followed."""
        if isinstance(path, int):
            return None
        try:
            text = os.fsdecode(path)
            if dir_fd is not None and not os.path.isabs(text):  # noqa: PTH117
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)  # noqa: PTH115, PTH118
        except (TypeError, OSError):
            return None
        return os.path.abspath(text)  # noqa: PTH100

    def key(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The file's name here, links followed that the script made; None for what is not ours to divert."""
        found = self.absolute(path, dir_fd)
        if found is not None and self.links:
            found = self._followed(found)
        return None if found is None or found.startswith(self._exempt) else found

    def _followed(self, path: str) -> str:
        for _ in range(MOST_LINKS):
            link = next((one for one in _upwards(path) if one in self.links), None)
            if link is None:
                break
            path = self.links[link] + path[len(link) :]
        return path

    def divert(self, path: Any, *, keep: bool, dir_fd: int | None = None) -> Any:
        """Where a write to `path` goes; with `keep` it starts from what is there. Folders stay what they are."""
        key = self.key(path, dir_fd)
        if key is None or key in self.own:
            return path
        target = self.diverted.get(key)
        if target is None:
            if os.path.isdir(key):  # noqa: PTH112
                return path
            target = self._scratch + key
            _make_folders(os.path.dirname(target), self._real_mkdir)  # noqa: PTH120
            if keep and os.path.isfile(key):  # noqa: PTH113
                self.copy(key, target)
            self.diverted[key] = target
        return target

    def seen(self, path: Any, dir_fd: int | None = None) -> Any:
        """Where a read of `path` goes."""
        if not self.diverted and not self.links:
            return path
        key = self.key(path, dir_fd)
        if key is None:
            return path
        return self.diverted.get(key, key if self.links else path)

    def copy(self, source: str, target: str) -> None:
        with self._real_open(source, "rb") as reader, self._real_open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer)

    def is_ours(self, key: str) -> bool:
        """Really there, and since the script made it or its folder: it may do with it what it likes."""
        return key in self.own or (bool(self.made) and any(folder in self.made for folder in _upwards(key)))

    def is_temporary(self, key: str) -> bool:
        return os.path.realpath(key).startswith(self._temporary)

    def note_made(self, key: str) -> None:
        """A folder, for the parent to remove (`remove_empty_folders`)."""
        self.made[key] = None
        self._journal.write(f"made-{os.getpid()}", {"folders": list(self.made)})

    def forget_below(self, folder: str) -> None:
        for table in (self.diverted, self.links):
            for key in [one for one in table if one.startswith(folder + os.sep)]:
                del table[key]


def _upwards(path: str) -> Iterator[str]:
    """The path, its folder, and so on; the root is left out."""
    while path != os.sep and path:
        yield path
        path = os.path.dirname(path)  # noqa: PTH120


def _make_folders(folder: str, mkdir: Callable[..., None]) -> None:
    if os.path.isdir(folder):  # noqa: PTH112
        return
    _make_folders(os.path.dirname(folder), mkdir)  # noqa: PTH120
    try:
        mkdir(folder)
    except FileExistsError:
        pass


def remove_empty_folders(journal: Journal) -> None:
    """For the parent: folders a leg made and left empty. Others hold something of somebody's and stay."""
    made = {folder for said in journal.all("made-") for folder in said.get("folders", [])}
    for folder in sorted(made, key=len, reverse=True):
        try:
            Path(folder).rmdir()
        except OSError:
            continue
