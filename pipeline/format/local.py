"""A sample's bytes by (shard, offset, length), as a worker reads them; and whole batches out of mapped raw shards.

`pread` and not a memory map: a shard that is cut short while it is being read is then an error with a name and not
a SIGBUS, and the copy costs 2 µs of a sample's 300.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import open_regular

OPEN_FILES = 512
"""Shards held open at once; the oldest gives way. Below every usual limit (1,024)."""


def open_shard(path: Path) -> int:
    """As `open_regular`, for DatasetError."""
    try:
        return open_regular(path)
    except OSError as error:
        raise DatasetError(f"shard {path} cannot be read: {error.strerror}") from error


class LocalFiles:
    def __init__(self, folder: Path, names: list[str], most_open: int = OPEN_FILES) -> None:
        """`names` of the shards, by their number."""
        self._paths = [folder / name for name in names]
        self._most_open = most_open
        self._descriptors: dict[int, int] = {}

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Raises DatasetError when there is no such data."""
        descriptor = self._descriptors.get(shard)
        try:
            data = os.pread(self._open(shard) if descriptor is None else descriptor, length, offset)
        except OSError as error:
            raise DatasetError(f"{self._paths[shard]} cannot be read: {error.strerror}") from error
        if len(data) != length:
            raise DatasetError(f"{self._paths[shard]} is cut short: it ends before byte {offset + length:,}")
        return data

    def close(self) -> None:
        while self._descriptors:
            with suppress(OSError):
                os.close(self._descriptors.popitem()[1])

    def _open(self, shard: int) -> int:
        if len(self._descriptors) >= self._most_open:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))
        descriptor = self._descriptors[shard] = open_shard(self._paths[shard])
        return descriptor


class RawBatches:
    """Raw images of one size: a batch is a copy out of mapped files; nothing is parsed, nothing is read twice.

    Every sample is found by its offset, since a long key's PAX header breaks a shard's strides; it costs the same, as
    a random batch touches as many shards as samples. Only samples whose bytes were checked once come this way.
    """

    def __init__(self, folder: Path, names: list[str], columns: dict[str, npt.NDArray[Any]], px: int) -> None:
        self._paths, self._px = [folder / name for name in names], px
        self._shards, self._checked = columns["shard"], columns["checked"]
        # the pixels are the end of a .npy member, whatever its header's length
        self._ends = columns["offset"], columns["length"]
        self._maps: dict[int, memoryview] = {}

    def takes(self, samples_N: npt.NDArray[np.int64], px: int) -> bool:
        """Whether this batch can come this way: the stored size, no padding, every sample checked before."""
        return px == self._px and bool(self._checked[samples_N].all()) and int(samples_N.min(initial=0)) >= 0

    def into(self, images_NHWC: npt.NDArray[np.uint8], samples_N: npt.NDArray[np.int64]) -> None:
        """Raises DatasetError for a shard that is gone or too short."""
        size, place = self._px * self._px * 3, 0
        flat = images_NHWC.reshape(-1).data  # memoryviews cut and copy in half the time arrays take
        ends = (self._ends[0][samples_N] + self._ends[1][samples_N]).tolist()
        for shard, end in zip(self._shards[samples_N].tolist(), ends, strict=True):
            mapped = self._maps.get(shard) or self._map(shard)
            flat[place : place + size] = mapped[end - size : end]
            place += size

    def _map(self, shard: int) -> memoryview:
        path, last = self._paths[shard], int((self._ends[0] + self._ends[1])[self._shards == shard].max())
        descriptor = open_shard(path)
        try:
            if os.fstat(descriptor).st_size < last:
                raise DatasetError(f"{path} is cut short: it ends before byte {last:,}")
            self._maps[shard] = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)
        return self._maps[shard]
