"""Files of users: written whole or not at all, also after a power cut; read with an end in sight."""

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from feedline.pipeline.base.errors import BusyError, FeedlineError, UsageError
from feedline.pipeline.base.process import is_alive

TEMPORARY = re.compile(r"\.(.+?)(?:\.[0-9a-f]{8})?\.(\d+)\.tmp")
"""What `write_atomically` leaves in a folder when its process, the number, is killed."""


def write_atomically(path: Path, data: bytes) -> None:
    """`path` holds all of `data` or what it held before, also after a power cut."""
    with written_beside(path, data) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)


@contextmanager
def written_beside(path: Path, data: bytes) -> Generator[Path]:
    """A file of all of `data`, safe from a power cut, that is to get the name `path`; gone again where it did not."""
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Containers that share a folder have the same process IDs.
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.{os.getpid()}.tmp")


def try_place(path: Path) -> None:
    """Raises OSError where `write_as_asked` would, and leaves nothing there."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if path.is_file() or path.is_dir() or not path.exists():
        temporary = temporary_beside(path.resolve())
        temporary.touch(exist_ok=False)
        temporary.unlink()


def write_as_asked(path: Path, data: bytes) -> None:
    """For a file that a user named: a link is followed, and what is no file (a pipe, a terminal) is written to and
    not replaced. Otherwise as `write_atomically`; what killed processes left of this very file goes."""
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            file.write(data)
    else:
        whole = path.resolve()
        write_atomically(whole, data)
        sweep(whole.parent, whole.name)


AT_FDCWD, RENAME_EXCHANGE = -100, 2


def exchange(new: Path, old: Path) -> None:
    """`new` gets the place of `old`, which need not be there, and `old` that of `new`: in one step, so that a reader
    always finds one of the two. Where the file system cannot, there is neither for an instant."""
    old.parent.mkdir(parents=True, exist_ok=True)
    if old.exists():
        rename = getattr(ctypes.CDLL(None), "renameat2", None)
        paths = os.fsencode(new), os.fsencode(old)
        if rename and rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0:
            sync_folder(old.parent)
            return
        old.replace(new.with_name(f"{new.name}.replaced"))
    new.replace(old)
    sync_folder(old.parent)


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes the temporaries that killed processes of this host left in `folder`, of the file `name` or of any. For
    whoever owns them, when it starts: another host's process may be writing where a folder is shared."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            temporary = TEMPORARY.fullmatch(path.name)
            if temporary and name in (None, temporary[1]) and not is_alive(int(temporary[2])):
                path.unlink(missing_ok=True)


@contextmanager
def sole_use(folder: Path, otherwise: str) -> Generator[None]:
    """An advisory lock on the folder itself, which leaves no file and dies with its process. Raises BusyError, with
    the words `otherwise`, while another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(otherwise) from None
        except OSError:
            pass  # a network file system that cannot lock folders
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


RECORDING_BYTES = 256 << 20
"""A recording of a day's steps has a tenth of it."""


def open_regular(path: Path) -> int:
    """A descriptor to read from. Raises OSError, and waits for nobody: opening a pipe without its flag would."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a file that somebody names. Raises OSError for what may have no end or is larger."""
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20:,} MiB", str(path))
        return file.read()


@contextmanager
def refused_as(kind: type[FeedlineError], what: str) -> Generator[None]:
    """What the file system refuses inside, in one line: `what`, and its own words."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


def write_error(error: OSError, doing: str, instead: str = "") -> FeedlineError:
    """One line for what a file system refused; `instead`: what to do where it is not full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FeedlineError(f"no space left while {doing}: free some, then run the same command again to resume")
    return UsageError(f"{doing} failed: {error.strerror or error}{instead}")
