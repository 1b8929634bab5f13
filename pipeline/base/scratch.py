"""Temporary folders that do not outlive their process for long: the next job clears what a killed one left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PREFIX = "feedline-scratch-"


@contextmanager
def scratch_folder(what: str) -> Generator[Path]:
    """A fresh folder in the system's temporary folder, held by a lock that dies with this process."""
    clear_abandoned()
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


def clear_abandoned() -> None:
    """Removes scratch folders whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_spark_of(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def end_spark_of(folder: Path) -> None:
    """Ends a JVM that was started with files of this folder, or the script that is about to start it. A JVM ends with
    its driver, but for one that had not come up: it fails for want of the folder, and its threads keep it alive."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = "\0".join(process.cmdline())
            if str(folder) in line and ("org.apache.spark" in line or "spark-submit" in line):
                process.kill()
