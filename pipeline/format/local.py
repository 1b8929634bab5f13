"""A sample's bytes by (shard, offset, length), as a worker reads them.

`pread` and not a memory map: a shard that is cut short while it is being read is then an error with a name and not
a SIGBUS, and the copy costs 2 µs of a sample's 300.
"""

import hashlib
import os
import queue
import resource
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import open_regular
from feedline.pipeline.base.process import open_files_limit

T = TypeVar("T")
PIECE_BYTES = 128 << 10
"""The kernel cuts an announcement at the device's read-ahead window, which is as small as this in many places."""
BLOCK_BYTES = 512
"""Of getrusage's ru_inblock."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ASKED_AT_ONCE, MOST_ASKED_BYTES = 16, 64 << 20
"""Names that are looked up at a time; bytes of a file that are asked for ahead."""
MANIFEST = "manifest.json"
AGAIN = "copy it again, or run again what made the split (`feedline prepare`, `feedline index`)"
ANOTHER = "was prepared anew or taken away meanwhile: make a new Loader"
OPEN_FILES = 4096
"""Shards held open at once, at most, and of the descriptors allowed a half; the oldest gives way."""


def ask_ahead(paths: Iterable[Path], *, read: bool = False) -> None:
    """Has threads look the names up and, with `read`, the kernel begin to read the files; returns at once. On
    storage that answers late each would cost its latency, one after the other. What is wrong is said by who needs it.
    """
    due: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def ask() -> None:
        with suppress(queue.Empty):
            while True:
                with suppress(OSError, ValueError):
                    _begin(due.get_nowait(), read=read)

    for number, path in enumerate(paths):
        due.put(path)
        if number < ASKED_AT_ONCE:
            with suppress(RuntimeError):  # the process may have no more threads
                threading.Thread(target=ask, name="feedline-ask", daemon=True).start()


def _begin(path: Path, *, read: bool) -> None:
    held = Opened(open_regular(path))
    for start in range(0, min(os.fstat(held.number).st_size, MOST_ASKED_BYTES) if read else 0, PIECE_BYTES):
        os.posix_fadvise(held.number, start, PIECE_BYTES, os.POSIX_FADV_WILLNEED)


class Opened:
    """A descriptor, closed when nobody has it any more: another thread may be reading."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.number)


class LocalFiles:
    from_afar = False
    """What was read last came from elsewhere, where it may be another file by now."""

    def __init__(
        self, folder: Path, names: list[str], most_open: int | None = None, *, scattered: bool = False,
        identity: str = "",
    ) -> None:  # fmt: skip
        """`names` of the shards, by their number. `scattered`: reads are; the kernel shall take none for a part of a
        stream, of which it would read more. `identity`: the SHA-256 of the split's manifest; no shard is opened of
        what was prepared anew. Empty: nobody asks."""
        self._manifest, self._identity, self._seen = folder / MANIFEST, identity, None if identity else ()
        self._paths = [folder / name for name in names]
        self._most_open, self._scattered = most_open or min(OPEN_FILES, open_files_limit() // 2), scattered
        self._open: dict[int, Opened] = {}

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Raises DatasetError when there is no such data."""
        try:
            held = self.opened(shard)  # for as long as it is read
            data = os.pread(held.number, length, offset)
        except OSError as error:
            data = self._anew(shard, error, lambda number: os.pread(number, length, offset))
        if len(data) != length:
            raise self._cut_short(shard, offset + length)
        return data

    def read_afresh(self, shard: int, offset: int, length: int) -> bytes:
        """Again, for bytes that are not right: of a copy in a cache from where it came, and the copy is dropped."""
        return self.read(shard, offset, length)

    def read_into(self, shard: int, end: int, out: npt.NDArray[np.uint8]) -> None:
        """The bytes before `end`, as many as `out` holds, straight to their place. Raises DatasetError as `read`."""
        try:
            held = self.opened(shard)
            count = os.preadv(held.number, [out.data], end - out.nbytes)
        except OSError as error:
            count = self._anew(shard, error, lambda number: os.preadv(number, [out.data], end - out.nbytes))
        if count != out.nbytes:
            raise self._cut_short(shard, end)

    def announce(self, shard: int, offset: int, length: int) -> None:
        """Has the kernel begin to read; returns at once. What is wrong there is said when it is read."""
        with suppress(OSError, DatasetError):
            descriptor = self.opened(shard)
            # whole pages: the window counts those that are touched, and a piece that begins within one loses its last
            for start in range(offset - offset % PAGE_BYTES, offset + length, PIECE_BYTES):
                piece_bytes = min(PIECE_BYTES, offset + length - start)
                os.posix_fadvise(descriptor.number, start, piece_bytes, os.POSIX_FADV_WILLNEED)

    def _cut_short(self, shard: int, end: int) -> DatasetError:
        return DatasetError(f"{self._paths[shard]} is cut short: it ends before byte {end:,}; {AGAIN}")

    def _anew(self, shard: int, error: OSError, read: Callable[[int], T]) -> T:
        """Reads with the shard opened again, if it was open: a descriptor goes stale when its server is exchanged."""
        try:
            if self._open.pop(shard, None) is None:
                raise error
            held = self.opened(shard)
            return read(held.number)
        except OSError as error:
            remedy = ""
            if isinstance(error, FileNotFoundError):
                self._check_same()
                remedy = f"; {AGAIN}"
            raise DatasetError(f"{self._paths[shard]} cannot be read: {error.strerror}{remedy}") from error

    def _check_same(self) -> None:
        """Raises DatasetError where the split is another one by now, whose samples lie elsewhere."""
        if self._seen == ():
            return
        with suppress(OSError):  # a moment's trouble
            try:
                status = self._manifest.stat()
            except FileNotFoundError:
                raise DatasetError(f"{self._manifest.parent} {ANOTHER}") from None
            if (seen := (status.st_ino, status.st_mtime_ns, status.st_size)) == self._seen:
                return
            if hashlib.sha256(self._manifest.read_bytes()).hexdigest() != self._identity:
                raise DatasetError(f"{self._manifest.parent} {ANOTHER}")
            self._seen = seen

    def close(self) -> None:
        self._open.clear()

    def opened(self, shard: int) -> Opened:
        """The shard, opened if need be. Raises OSError."""
        if (known := self._open.get(shard)) is not None:
            return known
        opened = Opened(open_regular(self._paths[shard]))
        self._check_same()
        if len(self._open) >= self._most_open:
            with suppress(LookupError, RuntimeError, StopIteration):  # another thread has done so
                del self._open[next(iter(self._open))]
        self._open[shard] = opened
        if self._scattered:
            os.posix_fadvise(opened.number, 0, 0, os.POSIX_FADV_RANDOM)
        return opened


class NamedShard(Protocol):
    """`manifest.ShardInfo`, which comes with Arrow; a worker does without."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...


class WholeShards:
    """Shards that are announced as a whole, from front to back: for storage on which random requests are slow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self.storage_bytes = 0
        """What came from storage for it, by the kernel's account."""

    def ensure(self, shard: NamedShard) -> None:
        """Returns when the kernel has taken it in, or raises OSError."""
        descriptor, before = open_regular(self._folder / shard.name), _blocks_of_thread()
        try:
            for start in range(0, shard.bytes, PIECE_BYTES):
                os.posix_fadvise(descriptor, start, PIECE_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
            with self._turn:  # several threads fetch
                self.storage_bytes += BLOCK_BYTES * (_blocks_of_thread() - before)


def _blocks_of_thread() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
