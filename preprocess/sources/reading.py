"""The bytes of raw samples: range reads, local or through fsspec, ahead of the kernel.

Local files: `pread` through a few descriptors kept open, and the kernel told (`posix_fadvise`) what comes next, so
that a cold disk sees several requests at once. Remote: neighbours coalesced, a group fetched concurrently while the
one before is being worked on.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import FeedlineError

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
    """One sample's bytes. `length` -1 is the whole file."""

    path: str
    offset: int
    length: int


def read_all(samples: Sequence[Where], stats: Mapping[str, Stat], options: Mapping[str, Any]) -> Iterator[bytes]:
    """The samples' bytes, in order. Raises SourceChanged when a file is gone, shorter, or has another time."""
    if any("://" in sample.path for sample in samples):
        yield from read_remote(samples, stats, options)
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
        files.check_unchanged()
    finally:
        files.close()


class OpenFiles:
    """Descriptors of the files read last."""

    def __init__(self, stats: Mapping[str, Stat]) -> None:
        self._stats = stats
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, sample: Where) -> bytes:
        if not sample.length and sample.path not in self._stats:  # a link without bytes
            return b""
        descriptor = self._descriptor(sample.path)
        length = sample.length if sample.length >= 0 else os.fstat(descriptor).st_size - sample.offset
        try:
            data = os.pread(descriptor, length, sample.offset)
            while len(data) < length:  # a read may be cut short by a signal, or at 2 GiB
                more = os.pread(descriptor, length - len(data), sample.offset + len(data))
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

    def check_unchanged(self) -> None:
        for path, descriptor in self._open.items():
            self._check(path, descriptor)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        if len(self._open) >= OPEN_FILES:
            oldest, descriptor = self._open.popitem(last=False)
            try:
                self._check(oldest, descriptor)
            finally:
                os.close(descriptor)
        try:
            self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceChanged(f"{path} cannot be read any more: {error.strerror}") from error
        self._check(path, self._open[path])
        return self._open[path]

    def _check(self, path: str, descriptor: int) -> None:
        planned = self._stats.get(path)
        if planned is not None:
            now = os.fstat(descriptor)
            if (now.st_size, now.st_mtime_ns) != (planned.size, planned.mtime_ns):
                raise SourceChanged(f"{path} changed while it was read: run again when it stays still")


# --- remote -------------------------------------------------------------------------------------------


def read_remote(samples: Sequence[Where], stats: Mapping[str, Stat], options: Mapping[str, Any]) -> Iterator[bytes]:
    """One group is fetched while the one before is worked on."""
    groups = list(grouped(samples))
    with ThreadPoolExecutor(1, "feedline-read") as ahead:
        coming = ahead.submit(fetch, groups[0], stats, options) if groups else None
        for following in [*groups[1:], None]:
            assert coming is not None
            arrived = coming.result()
            coming = ahead.submit(fetch, following, stats, options) if following is not None else None
            yield from arrived


def grouped(samples: Sequence[Where]) -> Iterator[list[Where]]:
    group: list[Where] = []
    size = 0
    for sample in samples:
        if group and (len(group) >= GROUP_SAMPLES or size + sample.length > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(sample)
        size += max(sample.length, 0)
    if group:
        yield group


def fetch(group: Sequence[Where], stats: Mapping[str, Stat], options: Mapping[str, Any]) -> list[bytes]:
    """The group's bytes, in order; ranges closer than a gap are one request."""
    import fsspec

    scheme = group[0].path.partition("://")[0]
    filesystem = fsspec.filesystem(scheme, **options)
    spans = [span for span in coalesced(group) if span.length]  # none is no range: HTTP counts to the last byte
    try:
        parts = filesystem.cat_ranges(
            [span.path for span in spans],
            [span.offset for span in spans],
            [None if span.length < 0 else span.offset + span.length for span in spans],
            on_error="raise",
        )
    except (OSError, ValueError) as error:
        raise SourceChanged(f"{group[0].path} cannot be read: {what_happened(error)}") from error
    for span, data in zip(spans, parts, strict=True):
        if len(data) > span.length >= 0:
            raise FeedlineError(
                f"{span.path}: its server sends more than the range asked for (whole files, it seems): take one that "
                "answers range requests, like nginx, or download the files first"
            )
    held = {(span.path, span.offset, span.length): data for span, data in zip(spans, parts, strict=True)}
    return [cut(sample, spans, held) if sample.length else b"" for sample in group]


def what_happened(error: BaseException) -> str:
    """One line. fsspec's own errors often say no more than the address; their cause says what the server did."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        return "connection refused"
    said = str(cause).strip().splitlines()
    return said[0] if said else type(error).__name__


def coalesced(group: Sequence[Where]) -> list[Where]:
    spans: list[Where] = []
    for sample in sorted(set(group), key=lambda sample: (sample.path, sample.offset, sample.length)):
        last = spans[-1] if spans else None
        joins = (
            last is not None
            and last.path == sample.path
            and min(last.length, sample.length) >= 0
            and sample.offset <= last.offset + last.length + COALESCE_GAP_BYTES
        )
        if joins and last is not None:
            end = max(last.offset + last.length, sample.offset + sample.length)
            spans[-1] = Where(last.path, last.offset, end - last.offset)
        else:
            spans.append(sample)
    return spans


def cut(sample: Where, spans: Sequence[Where], held: Mapping[tuple[str, int, int], bytes]) -> bytes:
    for span in spans:
        inside = span.path == sample.path and span.offset <= sample.offset
        if inside and (
            span.length == sample.length or 0 <= sample.length <= span.offset + span.length - sample.offset
        ):
            data = held[span.path, span.offset, span.length]
            if sample.length < 0:
                return data
            start = sample.offset - span.offset
            found = data[start : start + sample.length]
            if len(found) == sample.length:
                return found
    raise SourceChanged(f"{sample.path} is shorter than when it was listed")
