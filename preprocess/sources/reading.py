"""The bytes of raw samples: range reads, local or through fsspec, ahead of the kernel.

Local files: `pread` through a few descriptors kept open, and the kernel told (`posix_fadvise`) what comes next, so
that a cold disk sees several requests at once. Remote: neighbours coalesced, a group fetched concurrently while the
one before is being worked on.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, SourceError, UsageError
from feedline.pipeline.base.files import refused_as
from feedline.pipeline.format.remote import stubbornly

OPEN_FILES = 32
AHEAD = 16
GROUP_BYTES = 16 << 20
GROUP_SAMPLES = 128
COALESCE_GAP_BYTES = 64 << 10

Stat = tuple[int, int]
"""Size and time (ns) of a source file when the plan was made."""


@dataclass(frozen=True)
class Where:
    """One sample's bytes."""

    path: str
    offset: int
    length: int
    key: str = ""
    """For people, where reading fails."""


def read_all(samples: Sequence[Where], stats: Mapping[str, Stat], options: Mapping[str, Any]) -> Iterator[bytes]:
    """The samples' bytes, in order. Raises SourceError when a file is gone, shorter, or has another time."""
    if any("://" in sample.path for sample in samples):
        yield from read_remote(samples, options)
    else:
        yield from read_local(samples, stats)


# --- local --------------------------------------------------------------------------------------------


def read_local(samples: Sequence[Where], stats: Mapping[str, Stat]) -> Iterator[bytes]:
    open_files: dict[str, int] = {}
    try:
        for position, sample in enumerate(samples):
            if position % AHEAD == 0:
                announce(samples[position + AHEAD : position + 2 * AHEAD], open_files)
            if not sample.length and sample.path not in stats:  # a link without bytes
                yield b""
                continue
            if sample.path not in open_files:
                if len(open_files) >= OPEN_FILES:
                    oldest = next(iter(open_files))
                    check_unchanged(oldest, open_files[oldest], stats)
                    os.close(open_files.pop(oldest))
                with refused_as(SourceError, f"{sample.path} cannot be read any more"):
                    open_files[sample.path] = os.open(sample.path, os.O_RDONLY | os.O_CLOEXEC)
                check_unchanged(sample.path, open_files[sample.path], stats)
            yield read_range(sample, open_files[sample.path])
        for path, descriptor in open_files.items():
            check_unchanged(path, descriptor, stats)
    finally:
        for descriptor in open_files.values():
            os.close(descriptor)


def announce(samples: Sequence[Where], open_files: Mapping[str, int]) -> None:
    """Tells the system what will be read soon. Only where a file is open already: opening may fail."""
    for sample in samples:
        if sample.path in open_files and sample.length and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(open_files[sample.path], sample.offset, sample.length, os.POSIX_FADV_WILLNEED)


def check_unchanged(path: str, descriptor: int, stats: Mapping[str, Stat]) -> None:
    planned, now = stats.get(path), os.fstat(descriptor)
    if planned is not None and (now.st_size, now.st_mtime_ns) != planned:
        raise SourceError(f"{path} changed while it was read: run again when it stays still")


def read_range(sample: Where, descriptor: int) -> bytes:
    data = b""
    try:
        while len(data) < sample.length:  # a read may be cut short by a signal, or at 2 GiB
            more = os.pread(descriptor, sample.length - len(data), sample.offset + len(data))
            if not more:
                raise SourceError(f"{sample.path} became shorter while it was read")
            data += more
    except OSError as error:
        where = f"at byte {sample.offset + len(data)}" + f", sample {sample.key!r}" * bool(sample.key)
        raise FeedlineError(f"{sample.path} cannot be read ({where}): {error.strerror}") from error
    return data


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
    from fsspec.utils import merge_offset_ranges

    filesystem, _ = reached(group[0].path, options)
    ranges = {(sample.path, sample.offset, sample.offset + sample.length) for sample in group if sample.length}
    columns = [list(column) for column in zip(*sorted(ranges), strict=True)] or [[], [], []]
    paths, starts, ends = merge_offset_ranges(*columns, max_gap=COALESCE_GAP_BYTES)
    try:
        parts = stubbornly(lambda: filesystem.cat_ranges(paths, starts, ends, on_error="raise"))
    except Exception as error:  # every transport has its own kinds
        raise SourceError(f"{group[0].path} cannot be read: {what_happened(error)}") from error
    for path, start, end, data in zip(paths, starts, ends, parts, strict=True):
        if end is not None and len(data) > end - start:
            raise FeedlineError(
                f"{path}: its server sends more than the range asked for (whole files, it seems): take one that "
                "answers range requests, like nginx, or download the files first"
            )
    return [cut(sample, zip(paths, starts, parts, strict=True)) if sample.length else b"" for sample in group]


def cut(sample: Where, spans: Iterable[tuple[str, int, bytes]]) -> bytes:
    for path, start, data in spans:
        first = sample.offset - start
        if path == sample.path and first >= 0 and first + sample.length <= len(data):
            return data[first : first + sample.length]
    raise SourceError(f"{sample.path} is shorter than when it was listed")


def reached(address: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path. Raises ImportError or ValueError where there is none."""
    import fsspec

    return fsspec.core.url_to_fs(address, **options)


def open_remote(address: str, options: Mapping[str, Any], **how: Any) -> Any:
    """A file of a store to read from, to be closed by whoever asks. Raises UsageError."""
    try:
        filesystem, path = reached(address, options)
        return stubbornly(lambda: filesystem.open(path, "rb", **how))
    except Exception as error:  # every transport has its own kinds
        raise UsageError(f"{address} cannot be read: {what_happened(error)}") from error


def about_remote(address: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the store says of a file. Raises UsageError."""
    try:
        filesystem, path = reached(address, options)
        return stubbornly(lambda: filesystem.info(path))
    except Exception as error:  # every transport has its own kinds
        raise UsageError(f"{address} cannot be read: {what_happened(error)}") from error


def what_happened(error: BaseException) -> str:
    """One line. fsspec's own errors often say no more than the address; their cause says what the server did."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        return "connection refused"
    lines = str(getattr(cause, "strerror", None) or cause).strip().splitlines()
    return lines[0] if lines else type(error).__name__
