"""Prepared splits that are not on a local disk: http(s), S3 and whatever else fsspec speaks.

A worker reads a sample by a range request until its shard is in the host's cache (`pipeline.format.cache`), and from
then
on like any local file; so the first batch waits for kilobytes and not for a shard. What fails is tried again, a
little later each time; what still fails is one line with the address. Samples have a CRC, shards a SHA-256.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.cache import CacheSpec, ShardCache
from feedline.pipeline.format.local import LocalFiles

TRIES = 4
FIRST_PAUSE_S = 0.2  # doubled each time: 1.4 s in all before giving up
SILENCE_S = 20.0
"""A connection that says nothing for so long counts as failed."""
FEW_OPEN = 16
"""Cached shards held open: an evicted one's space is free only when the last descriptor is."""

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
        try:
            import fsspec
        except ImportError as error:
            raise DatasetError(f"{address} needs fsspec: pip install fsspec[http]") from error
        try:
            self._system, self._root = fsspec.core.url_to_fs(self.address, **_with_timeout(self.address, options))
        except (ImportError, ValueError) as error:
            raise DatasetError(f"{address} cannot be opened: {error}") from error

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes [start, end) of a file, or all of it. Raises DatasetError after the last try."""
        return self._stubbornly(name, lambda: self._range(name, start, end))

    def download(self, name: str, path: Path, size_bytes: int, sha256: str) -> None:
        """The whole file to `path`, checked. Raises DatasetError after the last try."""
        self._stubbornly(name, lambda: self._download(name, path, size_bytes, sha256))

    def _range(self, name: str, start: int | None, end: int | None) -> bytes:
        data: Any = self._system.cat_file(f"{self._root}/{name}", start=start, end=end)
        if end is not None and start is not None and len(data) > end - start:
            data = data[start:end]  # a server that knows no ranges sends everything
        if end is not None and start is not None and len(data) < end - start:
            raise EOFError(f"{len(data):,} of {end - start:,} bytes came")
        return data

    def _download(self, name: str, path: Path, size_bytes: int, sha256: str) -> None:
        self._system.get_file(f"{self._root}/{name}", str(path))
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        if path.stat().st_size != size_bytes or digest.hexdigest() != sha256:
            raise EOFError(f"its {path.stat().st_size:,} bytes are not the {size_bytes:,} that were written")

    def _stubbornly(self, name: str, action: Callable[[], Result]) -> Result:
        for attempt in range(TRIES):
            try:
                return action()
            except (FileNotFoundError, PermissionError) as error:
                raise DatasetError(f"{self.address}/{name} is not there or may not be read") from error
            except Exception as error:  # every transport has its own kinds
                if attempt == TRIES - 1:
                    what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                    raise DatasetError(f"{self.address}/{name} failed {TRIES} times, at last: {what}") from error
                time.sleep(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError


def _with_timeout(address: str, options: dict[str, Any]) -> dict[str, Any]:
    """fsspec's http client would wait five minutes for a server that has stopped talking."""
    if not address.startswith(("http://", "https://")) or "client_kwargs" in options:
        return options
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    return options | {"client_kwargs": {"timeout": timeout}}


def fetch_metadata(address: str, options: dict[str, Any], cache: CacheSpec) -> Path:
    """A local folder with the split's manifest and index; shards will join them. Raises DatasetError."""
    from feedline.pipeline.base.files import sweep, write_atomically
    from feedline.pipeline.format.manifest import INDEX, MANIFEST

    remote = Remote(address, options)
    manifest = remote.read(MANIFEST)
    identity = hashlib.sha256(f"{remote.address}\n".encode() + manifest).hexdigest()[:20]
    folder = cache.folder / identity
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        if not (folder / INDEX).exists():
            write_atomically(folder / INDEX, remote.read(INDEX))
        write_atomically(folder / MANIFEST, manifest)
    except OSError as error:
        what = f"the cache {cache.folder} cannot be written ({error.strerror or error})"
        raise DatasetError(
            f"{what}: make room there, or set FEEDLINE_CACHE or cache_dir to another folder"
        ) from error
    return folder


class RemoteFiles:
    """What a worker reads from: the cache where the shard is there, range requests where it is not yet."""

    def __init__(self, folder: Path, names: list[str], address: str, options: dict[str, Any]) -> None:
        self._folder, self._names = folder, names
        self._local = LocalFiles(folder, names, FEW_OPEN)
        self._remote = Remote(address, options)
        self._cached: set[int] = set()

    def read(self, shard: int, offset: int, length: int) -> bytes:
        if shard in self._cached or (self._folder / self._names[shard]).exists():
            try:
                data = self._local.read(shard, offset, length)
            except DatasetError:
                self._cached.discard(shard)  # evicted since: it is still where it came from
            else:
                self._cached.add(shard)
                return data
        return self._remote.read(self._names[shard], offset, offset + length)

    def expect(self, shard: int, offset: int, length: int) -> None:
        """The trainer's prefetcher knows better what comes."""

    def close(self) -> None:
        self._local.close()


def open_cache(address: str, options: dict[str, Any], folder: Path, cache: CacheSpec) -> ShardCache:
    """The host's cache of this split's shards, filled from `address`."""
    remote = Remote(address, options)
    return ShardCache(folder, cache, remote.download)
