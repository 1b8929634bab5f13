"""Temporary folders that do not outlive their process for long: the next job clears what a killed one left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "feedline-scratch-"
End = Callable[[Path], None]
"""Ends what a process that is gone may have left at work in its folder."""


@contextmanager
def scratch_folder(what: str, end: End | None = None) -> Generator[Path]:
    """A fresh folder in the system's temporary folder, held by a lock that dies with this process. Abandoned ones of
    its kind are cleared first."""
    clear_abandoned(what, end)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-"))
        with suppress(FileNotFoundError):  # another job that starts may clear it before it is locked: again
            held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_SH)
            if folder.exists():
                break
            os.close(held)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def clear_abandoned(what: str = "*", end: End | None = None) -> None:
    """Removes scratch folders whose process is gone, of that kind or of all."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{what}-*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if end is not None:
                    end(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
