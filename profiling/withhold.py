"""Keep a script's writes away from the user's files while it runs for us a second time.

A file opened for writing is diverted to a scratch folder, and read from there afterwards; removing, renaming and
truncating act on diverted files only. Folders are really made (their emptiness harms nobody and much code checks for
them) and noted, so that the parent removes those that are still empty. Files created exclusively under a random name
in the system's temporary folder are left real: other processes of the run may look for them.

What goes around Python (a C library that opens files itself, a shell command) cannot be held back here, except for
torch.save, TensorBoard's writer, OpenCV and sqlite3, which are patched where they come in. Trackers are told by
environment variables to stay silent (`TRACKERS`).
"""

import builtins
import functools
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline.profiling.journal import Journal

if TYPE_CHECKING:
    from feedline.profiling.hooks import Hooks

TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "AIM_UI_TELEMETRY_ENABLED": "0",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SPECIAL = ("/dev/", "/proc/", "/sys/")


class Withhold:
    def __init__(self, scratch: Path, journal: Journal) -> None:
        nowhere = scratch == Path()  # as given by options without one: not the script's own folder
        self._scratch = str(journal.folder / "held" if nowhere else scratch)
        self._exempt = (*SPECIAL, self._scratch + os.sep, str(journal.folder) + os.sep)
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        self._journal = journal
        self._diverted: dict[str, str] = {}
        self._made: list[str] = []
        self._own: set[str] = set()
        self._real_open = builtins.open
        self._real_os_open = os.open
        self._real_mkdir = os.mkdir
        self._real_replace = os.replace
        self._real_remove = os.remove
        self._real_rmtree = shutil.rmtree

    def install(self) -> None:
        opener = self._opener(self._real_open)
        builtins.open = opener
        io.open = opener
        os.open = self._os_open(os.open)  # type: ignore[assignment]
        os.mkdir = self._mkdir(os.mkdir)
        os.stat = self._seeing(os.stat)  # type: ignore[assignment]
        os.remove = self._removing(os.remove)
        os.unlink = self._removing(os.unlink)
        os.rmdir = self._rmdir(os.rmdir)
        os.rename = self._renaming(os.rename)
        os.replace = self._renaming(os.replace)
        os.truncate = self._truncating(os.truncate)
        shutil.rmtree = self._rmtree(shutil.rmtree)  # type: ignore[assignment]

    # --- where a path leads -------------------------------------------------------------------------------

    def _key(self, path: Any) -> str | None:
        """Absolute path of a file that is ours to divert; None for descriptors and what is exempt."""
        if isinstance(path, int):
            return None
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None
        absolute = os.path.abspath(text)  # noqa: PTH100  Path.resolve would follow links through our own stat
        return None if absolute.startswith(self._exempt) else absolute

    def divert(self, path: Any, *, keep: bool) -> Any:
        """Where a write to `path` goes; with `keep` it starts from what is there."""
        key = self._key(path)
        if key is None or key in self._own:
            return path
        target = self._diverted.get(key)
        if target is None:
            target = self._scratch + key
            _make_folders(os.path.dirname(target), self._real_mkdir)  # noqa: PTH120
            if keep and os.path.isfile(key):  # noqa: PTH113
                with self._real_open(key, "rb") as source, self._real_open(target, "wb") as copy:
                    shutil.copyfileobj(source, copy)
            self._diverted[key] = target
        return target

    def seen(self, path: Any) -> Any:
        """Where a read of `path` goes."""
        if not self._diverted:
            return path
        key = self._key(path)
        return self._diverted.get(key, path) if key is not None else path

    # --- the patches --------------------------------------------------------------------------------------

    def _opener(self, original: Any) -> Any:
        @functools.wraps(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "w" in mode or "a" in mode or "x" in mode or "+" in mode:
                return original(self.divert(file, keep="w" not in mode), mode.replace("x", "w"), *args, **kwargs)
            return original(self.seen(file), mode, *args, **kwargs)

        return open

    def _os_open(self, original: Any) -> Any:
        @functools.wraps(original)
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None:
                return original(path, flags, mode, dir_fd=dir_fd)
            if not flags & WRITING:
                return original(self.seen(path), flags, mode)
            key = self._key(path)
            if key is not None and flags & os.O_EXCL and os.path.realpath(key).startswith(self._temporary):
                self._own.add(key)
                return original(path, flags, mode)
            if not flags & os.O_CREAT and not os.path.exists(path):  # noqa: PTH110
                return original(path, flags, mode)  # raises, as it would have
            return original(self.divert(path, keep=not flags & os.O_TRUNC), flags & ~os.O_EXCL | os.O_CREAT, mode)

        return open

    def _mkdir(self, original: Any) -> Any:
        @functools.wraps(original)
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                return original(path, mode, dir_fd=dir_fd)
            try:
                original(path, mode)
            except FileExistsError:
                # The run before this one made it: the script expects to be the first.
                key = self._key(path)
                if key is None or key in self._made or not os.path.isdir(key):  # noqa: PTH112
                    raise
                return None
            key = self._key(path)
            if key is not None:
                self._made.append(key)
                self._journal.write(f"made-{os.getpid()}", {"folders": self._made})
            return None

        return mkdir

    def _seeing(self, original: Any) -> Any:
        @functools.wraps(original)
        def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self.seen(path) if not kwargs.get("dir_fd") else path, *args, **kwargs)

        return stat

    def _removing(self, original: Any) -> Any:
        @functools.wraps(original)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            key = None if dir_fd is not None else self._key(path)
            if key is None or key in self._own:
                self._own.discard(key or "")
                return original(path, dir_fd=dir_fd) if dir_fd is not None else original(path)
            target = self._diverted.pop(key, None)
            return original(target) if target is not None else None

        return remove

    def _renaming(self, original: Any) -> Any:
        @functools.wraps(original)
        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            if kwargs:
                return original(src, dst, **kwargs)
            key = self._key(src)
            if key is None or key in self._own:
                return original(src, self.divert(dst, keep=False))
            target = self._diverted.pop(key, None)
            return original(target, self.divert(dst, keep=False)) if target is not None else None

        return rename

    def _rmdir(self, original: Any) -> Any:
        @functools.wraps(original)
        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                return original(path, dir_fd=dir_fd)
            return original(path) if self._is_made(path) else None

        return rmdir

    def _truncating(self, original: Any) -> Any:
        @functools.wraps(original)
        def truncate(path: Any, length: int) -> None:
            return original(self.divert(path, keep=True), length)

        return truncate

    def _rmtree(self, original: Any) -> Any:
        @functools.wraps(original)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            return original(path, *args, **kwargs) if self._is_made(path) else None

        return rmtree

    def _is_made(self, path: Any) -> bool:
        key = self._key(path)
        return key is None or key in self._made

    # --- what goes around Python's open -------------------------------------------------------------------

    def hook(self, hooks: "Hooks") -> None:
        """Modules that open files by themselves, patched as they are imported."""
        hooks.targets["torch.utils.tensorboard.writer"] = lambda module: hooks.replace(
            module.FileWriter, "__init__", self._log_folder
        )
        hooks.targets["cv2"] = lambda module: hooks.replace(module, "imwrite", self._first_diverted)
        hooks.targets["sqlite3"] = lambda module: hooks.replace(module, "connect", self._database)

    def torch_save(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(
                obj, self.divert(f, keep=False) if isinstance(f, str | os.PathLike) else f, *args, **kwargs
            )

        return save

    def _log_folder(self, original: Callable[..., None]) -> Any:
        @functools.wraps(original)
        def __init__(writer: Any, log_dir: Any, *args: Any, **kwargs: Any) -> None:
            target = str(self.divert(os.path.join(log_dir, "events"), keep=False))  # noqa: PTH118
            original(writer, os.path.dirname(target), *args, **kwargs)  # noqa: PTH120

        return __init__

    def _first_diverted(self, original: Any) -> Any:
        return lambda path, *args, **kwargs: original(self.divert(path, keep=False), *args, **kwargs)

    def _database(self, original: Any) -> Any:
        @functools.wraps(original)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            memory = isinstance(database, str) and (database == ":memory:" or database.startswith("file:"))
            return original(database if memory else self.divert(database, keep=True), *args, **kwargs)

        return connect


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
