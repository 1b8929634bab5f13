"""Shards on local disk, shared by all processes of a host, bounded, safe under kill -9.

    CACHE/IDENTITY/train-000017.tar     a whole, checked shard: renamed into place, so it is all there or not at all
    CACHE/IDENTITY/.train-000017.lock   held (flock) by whoever fetches it; the kernel lets go for a dead process
    CACHE/IDENTITY/.train-000017.part   what is being fetched; only the lock's holder touches it
    CACHE/.lock                         held while room is made

Room is made before a shard is fetched, by removing those used longest ago (their modification time is set when they
are needed), so that the bound holds at every moment. Who has an evicted shard open keeps reading it.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from feedline.pipeline.base.errors import DatasetError

Fetch = Callable[[str, Path, int, str], None]
"""(name, to, size_bytes, sha256): raises DatasetError."""


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    folder: Path
    most_bytes: int
    """Of all shards of all datasets in the folder together."""


def default_folder() -> Path:
    root = os.environ.get("FEEDLINE_CACHE") or Path.home() / ".cache" / "feedline"
    return Path(root) / "shards"


class Shard(NamedTuple):
    name: str
    bytes: int
    sha256: str


class ShardCache:
    def __init__(self, folder: Path, spec: CacheSpec, fetch: Fetch) -> None:
        self._folder, self._spec, self._fetch = folder, spec, fetch

    def ensure(self, shard: Shard) -> bool:
        """Fetches the shard unless it is there or somebody else is at it; False when it cannot be kept here.

        Raises DatasetError when it cannot be fetched.
        """
        path = self._folder / shard.name
        if path.exists():
            with suppress(OSError):
                os.utime(path)  # needed now: last to go
            return True
        if shard.bytes > self._spec.most_bytes:
            return False
        try:
            with locked(self._folder / f".{shard.name}.lock", wait=False) as mine:
                if mine and not path.exists():
                    self._into_place(shard, path)
        except OSError as error:
            raise DatasetError(f"{path} cannot be cached: {error.strerror or error}") from error
        return True

    def _into_place(self, shard: Shard, path: Path) -> None:
        part = self._folder / f".{shard.name}.part"
        part.unlink(missing_ok=True)  # of a holder that died
        reservation = self._folder / f".{shard.name}.lock"
        self._make_room(shard.bytes, reservation)
        try:
            self._fetch(shard.name, part, shard.bytes, shard.sha256)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
            reservation.write_text("")

    def _make_room(self, size_bytes: int, reservation: Path) -> None:
        """Removes what was used longest ago until `size_bytes` fit, and notes them as taken in the lock's file."""
        with locked(self._spec.folder / ".lock"):
            files = [(path, status) for path in self._spec.folder.glob("*/*.tar") if (status := _status(path))]
            used = sum(status.st_size for _, status in files) + self._being_fetched()
            for path, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
                if used + size_bytes <= self._spec.most_bytes:
                    break
                path.unlink(missing_ok=True)
                used -= status.st_size
            reservation.write_text(str(size_bytes))

    def _being_fetched(self) -> int:
        """Bytes promised to shards under way. A lock without a holder was a dead process's: its part is removed."""
        promised = 0
        for lock in self._spec.folder.glob("*/.*.lock"):
            size = lock.read_text()
            if not size:
                continue
            with locked(lock, wait=False) as dead:
                if dead:
                    lock.with_suffix(".part").unlink(missing_ok=True)
                    lock.write_text("")
                else:
                    promised += int(size)
        return promised


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


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

    A shard that fails is left to the workers' range requests, which say what is wrong with which sample.
    """

    def __init__(self, cache: ShardCache, shards: Sequence[Shard], first_need: Sequence[int], ahead: int) -> None:
        """`first_need[i]`: the position in the epoch at which `shards[i]` is first read; ascending."""
        self._cache, self._shards, self._needs, self._ahead = cache, shards, first_need, ahead
        self._next = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="feedline-prefetch")

    def reached(self, position: int) -> None:
        """The epoch has got so far: whatever is needed soon is fetched from now on. Returns at once."""
        with self._lock:
            due = sum(1 for need in self._needs[self._next :] if need <= position) + self._next + self._ahead
            for shard in self._shards[self._next : due]:
                self._threads.submit(self._get, shard)
            self._next = max(self._next, min(due, len(self._shards)))

    def _get(self, shard: Shard) -> None:
        with suppress(DatasetError, OSError):
            self._cache.ensure(shard)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
