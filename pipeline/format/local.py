"""A sample's bytes by (shard, offset, length), as a worker reads them: one `pread`, no tar header, no pyarrow.

`pread` and not a memory map: a shard that is cut short while it is being read is then an error with a name and not
a SIGBUS, and the copy costs 2 µs of a sample's 300.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from feedline.pipeline.base.errors import DatasetError

OPEN_FILES = 512
"""Shards held open at once; the oldest gives way. Below every usual limit (1,024)."""


def open_regular(path: Path) -> int:
    """A descriptor to read from. Raises OSError, and waits for nobody: opening a pipe without its flag would."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return descriptor


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a file that somebody hands over by its path. Raises OSError for what may have no end or is larger."""
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20:,} MiB", str(path))
        return file.read()


def open_shard(path: Path) -> int:
    """As `open_regular`, for DatasetError."""
    try:
        return open_regular(path)
    except OSError as error:
        raise DatasetError(f"shard {path} cannot be read: {error.strerror}") from error


class Files(Protocol):
    """Where shards come from. `read` raises DatasetError when there is no such data."""

    def read(self, shard: int, offset: int, length: int) -> bytes: ...
    def expect(self, shard: int, offset: int, length: int) -> None:
        """The data will be read soon: storage may start to fetch it."""
        ...

    def close(self) -> None: ...


class LocalFiles:
    def __init__(self, folder: Path, names: list[str], most_open: int = OPEN_FILES) -> None:
        self._folder = folder
        self._names = names
        self._most_open = most_open
        self._descriptors: dict[int, int] = {}

    def read(self, shard: int, offset: int, length: int) -> bytes:
        descriptor = self._descriptors.get(shard)
        if descriptor is None:
            descriptor = self._open(shard)
        try:
            data = os.pread(descriptor, length, offset)
        except OSError as error:
            raise DatasetError(f"{self.path(shard)} cannot be read: {error.strerror}") from error
        if len(data) != length:
            raise DatasetError(f"{self.path(shard)} is cut short: it ends before byte {offset + length:,}")
        return data

    def expect(self, shard: int, offset: int, length: int) -> None:
        with suppress(DatasetError, OSError):  # reading will say it
            descriptor = self._descriptors.get(shard)
            os.posix_fadvise(
                self._open(shard) if descriptor is None else descriptor, offset, length, os.POSIX_FADV_WILLNEED
            )

    def path(self, shard: int) -> Path:
        return self._folder / self._names[shard]

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            with suppress(OSError):
                os.close(descriptor)
        self._descriptors.clear()

    def _open(self, shard: int) -> int:
        if len(self._descriptors) >= self._most_open:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))
        descriptor = self._descriptors[shard] = open_shard(self.path(shard))
        return descriptor
