"""Prepared splits that are not on a local disk: http(s), S3 and whatever else fsspec speaks.

A worker reads a sample by a range request until its shard is in the host's cache, and from then on like any local
file; so the first batch waits for kilobytes and not for a shard. What fails is tried again, a little later each time;
what still fails is one line with the address. Samples have a CRC, shards a SHA-256.

    CACHE/IDENTITY/train-000017.tar         a whole, checked shard: renamed into place, so it is whole or not there
    CACHE/IDENTITY/.train-000017.tar.lock   held (flock) by whoever fetches it; the kernel lets go for a dead process
    CACHE/IDENTITY/.train-000017.tar.part   what is being fetched; only the lock's holder touches it
    CACHE/.lock                             held while room is made

The cache is shared by all processes of a host. Room is made before a shard is fetched, by removing those used longest
ago (their modification time is set when they are needed), so that the bound holds at every moment. Who has an evicted
shard open keeps reading it.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from feedline.pipeline.base.errors import DatasetError, first_line
from feedline.pipeline.base.files import refused_as
from feedline.pipeline.format.local import LocalFiles, WholeShards

if TYPE_CHECKING:
    from feedline.pipeline.format.manifest import ShardInfo  # with Arrow, which a worker does without

TRIES = 4
FIRST_PAUSE_S = 0.2  # doubled each time: 1.4 s in all before giving up
GLANCE_S = 5.0
SILENCE_S = 20.0
"""A connection that says nothing for so long counts as failed."""
FEW_OPEN = 16
"""Cached shards held open: an evicted one's space is free only when the last descriptor is."""
LEFT_BYTES = 1 << 30
"""Of the disk for other programs, or a twentieth of it where that is less."""
CACHED = re.compile(r"[0-9a-f]{20}")
"""Folders of cached splits: their IDENTITY (`split.fetch_metadata`)."""
FETCHING = 2
"""Shards that one process fetches at once."""

Result = TypeVar("Result")


def is_remote(split: str) -> bool:
    return "://" in split and not split.startswith("file://")


class Remote:
    """One remote folder, read in ranges."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        """Raises DatasetError for an address without a folder, or one that no file system speaks."""
        if not address.partition("://")[2].strip("/"):
            raise DatasetError(f"{address} names no folder: SCHEME://HOST/FOLDER")
        self.address = address.rstrip("/")
        import fsspec  # here: a worker that reads local shards starts without it

        if address.startswith(("http://", "https://")) and "client_kwargs" not in options:
            import aiohttp  # whose default would wait five minutes for a server that has stopped talking

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
            options = options | {"client_kwargs": {"timeout": timeout}}
        try:
            self._system, self._root = fsspec.core.url_to_fs(self.address, **options)
        except (ImportError, ValueError) as error:
            raise DatasetError(f"{address} cannot be opened: {error}") from error

    def read_all(self, name: str, most_bytes: int) -> bytes:
        """All of a file. Raises DatasetError after the last try, and for one that is larger."""
        path = f"{self._root}/{name}"
        data: bytes = self._stubbornly(name, lambda: self._system.cat_file(path, start=0, end=most_bytes + 1))
        if len(data) > most_bytes:
            what = f"{self.address}/{name} is larger than {most_bytes / 2**20:,.0f} MiB, as none is"
            raise DatasetError(f"{what}: give another address, or prepare it again")
        return data

    def glance(self, name: str) -> bytes | None:
        """All of a file as it is now; None where that is not to be had within GLANCE_S."""
        told: list[bytes] = []

        def ask() -> None:
            with suppress(Exception):  # every transport has its own kinds
                self._system.invalidate_cache()
                told.append(self._system.cat_file(f"{self._root}/{name}"))

        thread = threading.Thread(target=ask, name="feedline-glance", daemon=True)
        with suppress(RuntimeError):  # the process may have no more threads
            thread.start()
            thread.join(GLANCE_S)
        return told[0] if told else None

    def read(self, name: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file. Raises DatasetError after the last try."""

        def attempt() -> bytes:
            data: Any = self._system.cat_file(f"{self._root}/{name}", start=start, end=end)
            if len(data) < end - start:
                raise EOFError(f"{len(data):,} of {end - start:,} bytes came")
            return data if len(data) == end - start else data[start:end]  # a server that knows no ranges sends all

        return self._stubbornly(name, attempt)

    def download(self, shard: "ShardInfo", path: Path) -> None:
        """The whole shard to `path`, checked. Raises DatasetError after the last try."""

        def attempt() -> None:
            self._system.get_file(f"{self._root}/{shard.name}", str(path))
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if path.stat().st_size != shard.bytes or sha256 != shard.sha256:
                raise EOFError(f"its {path.stat().st_size:,} bytes are not the {shard.bytes:,} that were written")

        self._stubbornly(shard.name, attempt)

    def _stubbornly(self, name: str, action: Callable[[], Result]) -> Result:
        try:
            return stubbornly(action)
        except (FileNotFoundError, PermissionError) as error:
            what = f"{self.address}/{name} is not there or may not be read"
            raise DatasetError(f"{what}: look at the address, or copy it there again") from error
        except Exception as error:  # every transport has its own kinds
            if has_no_room(error):
                raise DatasetError(f"{name} finds no room here: {first_line(error)}") from error
            what = f"{self.address}/{name} failed {TRIES} times, at last: {first_line(error)}"
            raise DatasetError(what) from error


def stubbornly(action: Callable[[], Result]) -> Result:
    """What fails is tried again, a little later each time. Raises what it failed with at last; at once what no
    waiting mends."""
    for attempt in range(TRIES):
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:
            if attempt == TRIES - 1 or has_no_room(error):
                raise
        time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError


def has_no_room(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class RemoteFiles(LocalFiles):
    """What a worker reads from: the cache where the shard is there, range requests where it is not yet."""

    def __init__(self, folder: Path, names: list[str], address: str, options: dict[str, Any]) -> None:
        super().__init__(folder, names, FEW_OPEN)
        self._remote = Remote(address, options)

    def read(self, shard: int, offset: int, length: int) -> bytes:
        self.from_afar = False
        with suppress(DatasetError):  # not there yet, or evicted since
            return super().read(shard, offset, length)
        self.from_afar = True
        return self._remote.read(self._paths[shard].name, offset, offset + length)

    def read_afresh(self, shard: int, offset: int, length: int) -> bytes:
        path, held = self._paths[shard], self._open.pop(shard, None)
        if not self.from_afar and held is not None:
            with suppress(OSError):  # it is gone, or somebody else's; another process may have put a good one there
                if os.fstat(held.number).st_ino == path.stat().st_ino:
                    path.unlink()
        self.from_afar = True
        return self._remote.read(path.name, offset, offset + length)


# --- the cache ----------------------------------------------------------------------------------------


def default_cache() -> Path:
    root = os.environ.get("FEEDLINE_CACHE") or Path.home() / ".cache" / "feedline"
    return Path(root) / "shards"


class ShardCache:
    """One split's folder in the cache; the bound is that of all splits together."""

    def __init__(self, folder: Path, most_bytes: int, fetch: "Callable[[ShardInfo, Path], None]") -> None:
        """`fetch(shard, to)` raises DatasetError."""
        self._folder, self._most_bytes, self._fetch = folder, most_bytes, fetch

    def ensure(self, shard: "ShardInfo") -> None:
        """Fetches the shard unless it is there whole, somebody else is at it, or there can be no room for it now.

        Raises DatasetError when it cannot be fetched.
        """
        path = self._folder / shard.name
        if is_whole(path, shard):
            with suppress(OSError):
                os.utime(path)  # needed now: last to go
            return
        lock = self._folder / f".{shard.name}.lock"
        with refused_as(DatasetError, f"{path} cannot be cached"), locked(lock, wait=False) as mine:
            if mine and not is_whole(path, shard):
                self._into_place(shard, path, lock)

    def _into_place(self, shard: "ShardInfo", path: Path, lock: Path) -> None:
        part = lock.with_suffix(".part")
        part.unlink(missing_ok=True)  # of a holder that died, as is what the lock promises
        lock.write_text("")
        if not self._make_room(shard.bytes, lock):
            return
        try:
            self._fetch(shard, part)
            with part.open("rb") as file:
                os.fsync(file.fileno())  # a power cut would leave the name without the bytes
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
            lock.write_text("")

    def _make_room(self, size_bytes: int, lock: Path) -> bool:
        """Removes what was used longest ago until `size_bytes` fit, and notes them as taken in the lock's file. False
        where they would not fit beside what is being fetched: nothing is removed then. Raises DatasetError where the
        disk is too full for any."""
        with locked(self._folder.parent / ".lock"):
            promised = self._being_fetched()
            shards: list[tuple[int, int, Path]] = []
            for path in self._cached("*.tar"):
                with suppress(FileNotFoundError):
                    shards.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            cached, disk = sum(size for _, size, _ in shards), shutil.disk_usage(self._folder)
            most_bytes = min(self._most_bytes, cached + disk.free - min(LEFT_BYTES, disk.total // 20))
            if most_bytes < min(size_bytes, self._most_bytes):
                free = f"{disk.free / 1e9:.1f} GB free"
                raise DatasetError(f"no room in {self._folder.parent} ({free}): set cache_dir or FEEDLINE_CACHE")
            if promised + size_bytes > most_bytes:
                return False
            used = promised + cached
            for _, size, path in sorted(shards):
                if used + size_bytes <= most_bytes:
                    break
                path.unlink(missing_ok=True)
                used -= size
            lock.write_text(str(size_bytes))
        return True

    def _cached(self, pattern: str) -> Iterator[Path]:
        """Files of all cached splits, and of nothing else that lies there: tars of others are theirs."""
        for folder in self._folder.parent.iterdir():
            if folder == self._folder or CACHED.fullmatch(folder.name):
                yield from folder.glob(pattern)

    def _being_fetched(self) -> int:
        """Bytes promised to shards under way. A lock without a holder was a dead process's: its part is removed."""
        promised = 0
        for lock in self._cached(".*.lock"):
            if not (size := lock.read_text()):
                continue
            with locked(lock, wait=False) as dead:
                if dead:
                    lock.with_suffix(".part").unlink(missing_ok=True)
                    lock.write_text("")
                else:
                    promised += int(size)
        return promised


def is_whole(path: Path, shard: "ShardInfo") -> bool:
    """As far as its size tells."""
    try:
        return path.stat().st_size == shard.bytes
    except OSError:
        return False


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Generator[bool]:
    """Holds the file's lock, or gives False at once when another process has it and `wait` is not set."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


class Prefetcher:
    """Fetches an epoch's shards in the order they will be needed, a few ahead of where the epoch is, in threads.

    A shard that fails is left to the workers' range requests, which say what is wrong with which sample. The threads
    end when nothing is due, and with the interpreter, which waits for no download.
    """

    def __init__(
        self, cache: ShardCache | WholeShards, shards: "Sequence[ShardInfo]", first_need: Sequence[int], ahead: int
    ) -> None:
        """`first_need[i]`: the position in the epoch at which `shards[i]` is first read; ascending."""
        self._cache, self._shards, self._needs, self._ahead = cache, shards, first_need, ahead
        self._next = self._threads = 0
        self.trouble = ""
        """The last that a shard failed with, for people."""
        self._due: deque[ShardInfo] = deque()
        self._turn = threading.Lock()

    def reached(self, position: int) -> None:
        """The epoch has got so far: whatever is needed soon is fetched from now on. Returns at once."""
        due = bisect_right(self._needs, position) + self._ahead
        with self._turn:
            self._due.extend(self._shards[self._next : due])
            self._next = max(due, self._next)
            more = min(len(self._due), FETCHING - self._threads)
            self._threads += more
        for _ in range(more):
            try:
                threading.Thread(target=self._fetch, name="feedline-prefetch", daemon=True).start()
            except RuntimeError:  # the process may have no more now
                with self._turn:
                    self._threads -= 1

    def _fetch(self) -> None:
        while True:
            with self._turn:
                if not self._due:
                    self._threads -= 1
                    return
                shard = self._due.popleft()
            try:
                self._cache.ensure(shard)
            except Exception as error:
                self.trouble = f"not fetched ahead: {first_line(error)}"

    def close(self) -> None:
        """Begins no more of them."""
        with self._turn:
            self._due.clear()
