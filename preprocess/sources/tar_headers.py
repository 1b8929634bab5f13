"""Where the members of an uncompressed tar lie, from its headers alone: 512 bytes are read per member, no data.

A tar inside a tar is a range of the outer file, so the same walk gives absolute offsets at any depth. `tarfile`
parses headers, at about 20 µs each (40 with PAX headers); but it takes damage for the end, and here a tar must end
with its end-of-archive mark. What has no bytes of its own (links, devices) is a member in trouble; what cannot be
read as it lies (sparse files) is refused.
"""

import os
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.pipeline.format.remote import stubbornly
from feedline.pipeline.format.shard_tar import BLOCK_BYTES
from feedline.preprocess.sources.reading import open_remote, what_happened

AHEAD_BYTES = 8 << 20
EXTENSION_MAX_BYTES = 1 << 20
PADDING_MAX_BYTES = 4 << 20
"""Behind the end-of-archive mark, up to a whole record: tar's is 10 KiB unless it is told otherwise (-b)."""
COPY_AGAIN = "copy or download it again"
WITHOUT_BYTES = {
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}
BROKEN_LINK = "broken link"
NO_BYTES = (BROKEN_LINK, *WITHOUT_BYTES.values())
"""Troubles of samples that lack nothing but bytes."""

Read = Callable[[int, int], bytes]
"""(absolute offset, length) -> bytes, fewer only at the end of the file."""


class Member(NamedTuple):
    name: str
    offset: int
    """Of its bytes, absolute."""
    length: int
    trouble: str = ""
    """What it is if it has no bytes."""


class FileRange:
    """The part of a file that `tarfile` reads headers from, at absolute positions."""

    def __init__(self, read: Read, start: int, end: int, where: str) -> None:
        self._read, self._position, self._end, self._where = read, start, end, where

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, length: int) -> bytes:
        if length > EXTENSION_MAX_BYTES:
            raise SourceError(
                f"{self._where}: an extended header of {length} bytes at byte {self._position}: damaged"
            )
        data = self._read(self._position, length) if self._position + length <= self._end else b""
        if len(data) < length:
            raise SourceError(
                f"{self._where} is cut short at byte {self._end}, before its end-of-archive mark: {COPY_AGAIN}"
            )
        self._position += length
        return data


def walk(read: Read, start: int, end: int, where: str) -> Iterator[Member]:
    """The files of the tar at [start, end), in order; folders are passed over. `where` names it in errors.

    Raises SourceError.
    """
    file: Any = FileRange(read, start, end, where)
    # opened for reading, it would look for a first member, and take none for an empty tar
    tar = tarfile.TarFile(fileobj=file, mode="w", encoding="utf-8", errors="surrogateescape")
    while True:
        file.seek(tar.offset)
        if file.read(BLOCK_BYTES) == bytes(BLOCK_BYTES):
            check_padding(read, file.tell(), end, where)
            return
        file.seek(tar.offset)
        info = parsed(tar, where)
        end_of_data = info.offset_data + info.size
        if info.type in WITHOUT_BYTES:
            yield Member(info.name, info.offset_data, 0, WITHOUT_BYTES[info.type])
        elif info.issparse() or any(key.startswith("GNU.sparse") for key in info.pax_headers):
            raise SourceError(f"{where}: {info.name!r} is a sparse file: pack it without --sparse")
        elif info.isreg():
            if end_of_data > end:
                raise SourceError(
                    f"{where} is cut short: {info.name!r} ends at byte {end_of_data}, the tar at {end}: {COPY_AGAIN}"
                )
            yield Member(info.name, info.offset_data, info.size)
        elif not info.isdir():
            raise SourceError(
                f"{where}: {info.name!r} is a member of unknown type {info.type!r}: pack the files themselves"
            )


def check_padding(read: Read, position: int, end: int, where: str) -> None:
    """Raises SourceError where more follows the end-of-archive mark: a stretch of zeroes looks like one."""
    left = end - position
    if left > PADDING_MAX_BYTES or read(position, left).strip(b"\0"):
        raise SourceError(
            f"{where} ends at byte {position}, {left:,} bytes before its end: damaged ({COPY_AGAIN}), or several "
            "tars in one"
        )


def parsed(tar: tarfile.TarFile, where: str) -> tarfile.TarInfo:
    """The next header; `tar.offset` is then at the one after it."""
    position = tar.offset
    try:
        info = tarfile.TarInfo.fromtarfile(tar)
        if info.size < 0:
            raise ValueError(info.size)
    except SourceError:
        raise
    except Exception as error:  # tarfile raises anything at all on a damaged header
        raise SourceError(
            f"{where}: no valid tar header at byte {position}: damaged, or a member's size is wrong before it"
        ) from error
    return info


@contextmanager
def reader(
    path: str, options: Mapping[str, Any], window_bytes: int = BLOCK_BYTES, ahead_bytes: int = AHEAD_BYTES
) -> Generator[tuple[Read, int]]:
    """(read, size of the file).

    Of a local file `window_bytes` are read at once: more save system calls where members are small. Headers of an
    object are too close together for a request each, so it streams past once, `ahead_bytes` at a time.
    """
    remote = "://" in path
    try:
        with (
            open_remote(path, options, block_size=ahead_bytes, cache_type="readahead")
            if remote
            else Path(path).open("rb", window_bytes)
        ) as file:
            if not remote and hasattr(os, "posix_fadvise"):  # reading ahead would read everything
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size = file.seek(0, os.SEEK_END)

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            def read_stubbornly(offset: int, length: int) -> bytes:
                try:
                    return stubbornly(lambda: read(offset, length))
                except Exception as error:  # every transport has its own kinds
                    raise UsageError(f"{path} cannot be read: {what_happened(error)}") from error

            yield read_stubbornly if remote else read, size
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {what_happened(error)}") from error
