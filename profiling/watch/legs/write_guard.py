"""Keep a script's writes away from the user's files while it runs for us a second time.

A file opened for writing is diverted to a scratch folder, and read from there afterwards (`elsewhere`); removing,
renaming, truncating and changing modes act on diverted files only. Folders are really made (their emptiness harms
nobody and much code checks for them) and noted, so that the parent removes those that are still empty. Files created
exclusively under a random name in the system's temporary folder are left real: other processes of the run may look
for them.

What goes around Python cannot be held back: programs that the script starts, `posix` used by itself, and libraries
that open files in C or C++, except for those in `held_libraries`. Trackers are told by environment variables to stay
silent (`TRACKERS`).
"""

import builtins
import errno
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.legs.elsewhere import Elsewhere
from feedline.profiling.watch.legs.held_libraries import Libraries

TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "AIM_UI_TELEMETRY_ENABLED": "0",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SEEING = ("stat", "lstat", "access")
CHANGING = ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr")
NAMELESS = getattr(os, "O_TMPFILE", 0)
RAW = ("posix", "nt", "_io", "builtins")
"""Modules that keep the real functions: the interpreter imports with them."""


class Withhold:
    def __init__(self, scratch: Path, journal: Journal) -> None:
        self._files = Elsewhere(scratch, journal)
        self.libraries = Libraries(self._files)
        """What has to be patched as it is imported."""

    def install(self) -> None:
        opener = self._opener(builtins.open)
        made: list[tuple[Any, Any]] = [(builtins.open, opener), (io.FileIO, self._file_io(io.FileIO))]
        builtins.open = opener
        one_each: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(SEEING, self._seeing), **dict.fromkeys(CHANGING, self._changing),
            **dict.fromkeys(("remove", "unlink"), self._removing), **dict.fromkeys(("mkfifo", "mknod"), self._making),
            **dict.fromkeys(("rename", "replace"), self._renaming), "open": self._os_open, "mkdir": self._mkdir,
            "rmdir": self._rmdir, "truncate": self._truncating, "symlink": self._symlink, "link": self._link,
            "readlink": self._readlink,
        }  # fmt: skip
        made += [(real, make(real)) for name, make in one_each.items() if (real := getattr(os, name, None))]
        made.append((shutil.rmtree, self._rmtree(shutil.rmtree)))
        _replace_everywhere(made)

    # --- the patches --------------------------------------------------------------------------------------

    def _opener(self, original: Any) -> Any:
        @functools.wraps(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return original(self._for_mode(file, mode), mode, *args, **kwargs)

        return open

    def _for_mode(self, file: Any, mode: str) -> Any:
        if any(letter in mode for letter in "wax+"):
            return self._files.divert(file, keep="w" not in mode and "x" not in mode)
        return self._files.seen(file)

    def _file_io(self, original: type[io.FileIO]) -> Any:
        """A class again: programs ask whether a file is one."""
        where = self._for_mode

        class AsOriginal(type(io.FileIO)):
            def __instancecheck__(cls: Any, instance: object) -> bool:
                return isinstance(instance, original) if cls is FileIO else super().__instancecheck__(instance)

        class FileIO(io.FileIO, metaclass=AsOriginal):
            def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
                super().__init__(where(file, mode), mode, *args, **kwargs)

        return FileIO

    def _os_open(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            nameless = NAMELESS and flags & NAMELESS == NAMELESS
            key = files.key(path, dir_fd)
            if key is None or nameless:
                return original(path, flags, mode, dir_fd=dir_fd)
            if not flags & WRITING:
                return original(files.seen(path, dir_fd), flags, mode, dir_fd=dir_fd)
            if flags & os.O_EXCL and files.is_temporary(key):
                files.own.add(key)
                return original(path, flags, mode, dir_fd=dir_fd)
            if not flags & os.O_CREAT and not os.path.exists(key):  # noqa: PTH110
                return original(path, flags, mode, dir_fd=dir_fd)  # raises, as it would have
            target = files.divert(path, keep=not flags & (os.O_TRUNC | os.O_EXCL), dir_fd=dir_fd)
            return original(target, flags if target is path else flags | os.O_CREAT, mode, dir_fd=dir_fd)

        return open

    def _mkdir(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            key = files.key(path, dir_fd)
            try:
                original(path, mode, dir_fd=dir_fd)
            except FileExistsError:
                # The run before this one made it: the script expects to be the first.
                if key is None or key in files.made or not os.path.isdir(key):  # noqa: PTH112
                    raise
                return
            if key is not None:
                files.note_made(key)

        return mkdir

    def _seeing(self, original: Any) -> Any:
        @functools.wraps(original)
        def see(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            return original(self._files.seen(path, dir_fd), *args, dir_fd=dir_fd, **kwargs)

        return see

    def _changing(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def change(path: Any, *args: Any, **kwargs: Any) -> None:
            key = files.key(path, kwargs.get("dir_fd"))
            if key in files.diverted:
                original(files.diverted[key], *args, **kwargs)
            elif key is None or files.is_ours(key):
                original(path, *args, **kwargs)
            else:
                os.stat(key)  # noqa: PTH116  raises for what is not there, as it would have

        return change

    def _removing(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            if files.links.pop(files.absolute(path, dir_fd) or "", None) is not None:
                return
            key = files.key(path, dir_fd)
            if key in files.diverted:
                original(files.diverted.pop(key))
            elif key is None or files.is_ours(key):
                files.own.discard(key or "")
                original(path, dir_fd=dir_fd)

        return remove

    def _renaming(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            link, name = files.absolute(src, src_dir_fd), files.absolute(dst, dst_dir_fd)
            files.links.pop(name or "", None)
            if link in files.links and name is not None:
                files.links[name] = files.links.pop(link)
                return
            key = files.key(src, src_dir_fd)
            if key in files.diverted:
                original(
                    files.diverted.pop(key), files.divert(dst, keep=False, dir_fd=dst_dir_fd), dst_dir_fd=dst_dir_fd
                )
            elif key is not None and name is not None and os.path.isdir(key):  # noqa: PTH112
                files.links[name] = key
            elif key is None or key in files.own:
                target = files.divert(dst, keep=False, dir_fd=dst_dir_fd)
                original(src, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        return rename

    def _rmdir(self, original: Any) -> Any:
        @functools.wraps(original)
        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            if self._may_go(path, dir_fd):
                original(path, dir_fd=dir_fd)

        return rmdir

    def _rmtree(self, original: Any) -> Any:
        @functools.wraps(original)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            if self._may_go(path, kwargs.get("dir_fd")):
                self._files.forget_below(self._files.absolute(path, kwargs.get("dir_fd")) or "")
                original(path, *args, **kwargs)

        return rmtree

    def _may_go(self, path: Any, dir_fd: int | None) -> bool:
        key = self._files.key(path, dir_fd)
        return key is None or self._files.is_ours(key)

    def _truncating(self, original: Any) -> Any:
        @functools.wraps(original)
        def truncate(path: Any, length: int) -> None:
            return original(self._files.divert(path, keep=True), length)

        return truncate

    def _making(self, original: Any) -> Any:
        """Pipes and the like."""

        @functools.wraps(original)
        def make(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            return original(self._files.divert(path, keep=False, dir_fd=dir_fd), *args, dir_fd=dir_fd, **kwargs)

        return make

    def _symlink(self, original: Any) -> Any:
        files = self._files

        @functools.wraps(original)
        def symlink(src: Any, dst: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            name = files.absolute(dst, dir_fd)
            if name is None or files.key(dst, dir_fd) is None:
                return original(src, dst, *args, dir_fd=dir_fd, **kwargs)
            _refuse_taken(name, files)
            folder = os.path.dirname(name)  # noqa: PTH120
            files.links[name] = os.path.abspath(os.path.join(folder, os.fsdecode(src)))  # noqa: PTH100, PTH118
            return None

        return symlink

    def _readlink(self, original: Any) -> Any:
        @functools.wraps(original)
        def readlink(path: Any, *, dir_fd: int | None = None) -> Any:
            links = self._files.links
            found = links.get(self._files.absolute(path, dir_fd) or "") if links else None
            return original(path, dir_fd=dir_fd) if found is None else found

        return readlink

    def _link(self, original: Any) -> Any:
        """A copy: writing to the new name of the user's own file would change that."""
        files = self._files

        @functools.wraps(original)
        def link(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **kwargs: Any
        ) -> None:
            name, source = files.key(dst, dst_dir_fd), files.key(src, src_dir_fd)
            if name is None or source is None:
                return original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **kwargs)
            _refuse_taken(name, files)
            os.stat(source)  # noqa: PTH116  raises for what is not there, as it would have
            files.copy(files.seen(source), files.divert(name, keep=False))
            return None

        return link


def _refuse_taken(name: str, files: Elsewhere) -> None:
    """By this run; what an earlier one left is no hindrance: the script expects to be the first."""
    if name in files.links or name in files.diverted:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _replace_everywhere(made: list[tuple[Any, Any]]) -> None:
    """Also in modules that took the function by its name before us, as bz2 and tarfile take `open`."""
    by_identity = {id(original): patched for original, patched in made}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__ in RAW:
            continue
        for name, value in list(vars(module).items()):
            if id(value) in by_identity:
                setattr(module, name, by_identity[id(value)])
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        supported.update(patched for original, patched in made if original in supported)
