"""The bytes of raw samples: range reads, local or through fsspec, ahead of the kernel.

Local files: `pread` through a few descriptors kept open, and the kernel told (`posix_fadvise`) what comes next, so
that a cold disk sees several requests at once. Remote: neighbours coalesced, a group fetched concurrently while the
one before is being worked on.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError

OPEN_FILES = 32
AHEAD = 16
GROUP_BYTES = 16 << 20
GROUP_SAMPLES = 128
COALESCE_GAP_BYTES = 64 << 10


class SourceChanged(FeedlineError):
    """The source is not what it was when the job was planned."""


@dataclass(frozen=True)
class Stat:
    """What a source file was when the plan was made."""

    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Where:
    """One sample's bytes."""

    path: str
    offset: int
    length: int


def read_all(samples: Sequence[Where], stats: Mapping[str, Stat], options: Mapping[str, Any]) -> Iterator[bytes]:
    """The samples' bytes, in order. Raises SourceChanged when a file is gone, shorter, or has another time."""
    if any("://" in sample.path for sample in samples):
        yield from read_remote(samples, options)
    else:
        yield from read_local(samples, stats)


# --- local --------------------------------------------------------------------------------------------


def read_local(samples: Sequence[Where], stats: Mapping[str, Stat]) -> Iterator[bytes]:
    files = OpenFiles(stats)
    try:
        for position, sample in enumerate(samples):
            if position % AHEAD == 0:
                for coming in samples[position + AHEAD : position + 2 * AHEAD]:
                    files.announce(coming)
            yield files.read(sample)
        files.check()
    finally:
        files.close()


class OpenFiles:
    """Descriptors of the files read last."""

    def __init__(self, stats: Mapping[str, Stat]) -> None:
        self._stats = stats
        self._open: dict[str, int] = {}

    def read(self, sample: Where) -> bytes:
        if not sample.length and sample.path not in self._stats:  # a link without bytes
            return b""
        descriptor = self._descriptor(sample.path)
        data = b""
        try:
            while len(data) < sample.length:  # a read may be cut short by a signal, or at 2 GiB
                more = os.pread(descriptor, sample.length - len(data), sample.offset + len(data))
                if not more:
                    raise SourceChanged(f"{sample.path} became shorter while it was read")
                data += more
        except OSError as error:
            raise FeedlineError(f"{sample.path} cannot be read: {error.strerror}") from error
        return data

    def announce(self, sample: Where) -> None:
        """Tells the system that this will be read soon. Only where a file is open already: opening may fail."""
        descriptor = self._open.get(sample.path)
        if descriptor is not None and sample.length > 0 and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, sample.offset, sample.length, os.POSIX_FADV_WILLNEED)

    def check(self) -> None:
        """Raises SourceChanged when an open file is not what it was when the plan was made."""
        for path, descriptor in self._open.items():
            self._check(path, descriptor)

    def _check(self, path: str, descriptor: int) -> None:
        planned, now = self._stats.get(path), os.fstat(descriptor)
        if planned is not None and (now.st_size, now.st_mtime_ns) != (planned.size, planned.mtime_ns):
            raise SourceChanged(f"{path} changed while it was read: run again when it stays still")

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, path: str) -> int:
        if path not in self._open:
            if len(self._open) >= OPEN_FILES:
                self.check()
                self.close()
            try:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise SourceChanged(f"{path} cannot be read any more: {error.strerror}") from error
            self._check(path, self._open[path])
        return self._open[path]


# --- remote -------------------------------------------------------------------------------------------


def read_remote(samples: Sequence[Where], options: Mapping[str, Any]) -> Iterator[bytes]:
    """One group is fetched while the one before is worked on."""
    with ThreadPoolExecutor(1, "feedline-read") as ahead:
        coming = None
        for group in grouped(samples):
            following = ahead.submit(fetch, group, options)
            if coming is not None:
                yield from coming.result()
            coming = following
        if coming is not None:
            yield from coming.result()


def grouped(samples: Sequence[Where]) -> Iterator[list[Where]]:
    group: list[Where] = []
    size = 0
    for sample in samples:
        if group and (len(group) >= GROUP_SAMPLES or size + sample.length > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(sample)
        size += sample.length
    if group:
        yield group


def fetch(group: Sequence[Where], options: Mapping[str, Any]) -> list[bytes]:
    """The group's bytes, in order; ranges closer than a gap are one request."""
    import fsspec
    from fsspec.utils import merge_offset_ranges

    filesystem = fsspec.filesystem(group[0].path.partition("://")[0], **options)
    ranges = {(one.path, one.offset, one.offset + one.length) for one in group if one.length}
    columns = [list(column) for column in zip(*sorted(ranges), strict=True)] or [[], [], []]
    paths, starts, ends = merge_offset_ranges(*columns, max_gap=COALESCE_GAP_BYTES)
    try:
        parts = filesystem.cat_ranges(paths, starts, ends, on_error="raise")
    except (OSError, ValueError) as error:
        raise SourceChanged(f"{group[0].path} cannot be read: {what_happened(error)}") from error
    for path, start, end, data in zip(paths, starts, ends, parts, strict=True):
        if end is not None and len(data) > end - start:
            raise FeedlineError(
                f"{path}: its server sends more than the range asked for (whole files, it seems): take one that "
                "answers range requests, like nginx, or download the files first"
            )
    spans = list(zip(paths, starts, parts, strict=True))
    return [cut(sample, spans) if sample.length else b"" for sample in group]


def cut(sample: Where, spans: Sequence[tuple[str, int, bytes]]) -> bytes:
    for path, start, data in spans:
        first, last = sample.offset - start, sample.offset - start + sample.length
        if path == sample.path and first >= 0 and last <= len(data):
            return data[first:last]
    raise SourceChanged(f"{sample.path} is shorter than when it was listed")


def open_remote(address: str, options: Mapping[str, Any], **how: Any) -> Any:
    """A file of a store to read from, to be closed by whoever asks. Raises UsageError."""
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(address, **options)
        return filesystem.open(path, "rb", **how)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{address} cannot be read: {what_happened(error)}") from error


def what_happened(error: BaseException) -> str:
    """One line. fsspec's own errors often say no more than the address; their cause says what the server did."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        return "connection refused"
    lines = str(getattr(cause, "strerror", None) or cause).strip().splitlines()
    return lines[0] if lines else type(error).__name__
