"""Raw shards of one size: a batch is a copy out of mapped files; nothing is parsed, nothing is read twice.

Members of equal length make a shard one strided array with the tar's headers in its strides; where a long key brought
a PAX header the strides break, so every sample is found by its offset, which costs the same: a random batch touches
as many shards as samples. Only samples whose bytes were checked once come this way.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.local import open_shard

Images = npt.NDArray[np.uint8]


class Gather:
    """Copies whole images of `px` × `px` from shards into a slot."""

    def __init__(self, folder: Path, names: list[str], columns: dict[str, npt.NDArray[Any]], px: int) -> None:
        self._folder, self._names, self._px = folder, names, px
        self._shards, self._checked = columns["shard"], columns["checked"]
        # the pixels are the end of a .npy member, whatever its header's length
        self._ends = columns["offset"], columns["length"]
        self._maps: dict[int, memoryview] = {}

    def takes(self, samples_N: npt.NDArray[np.int64], px: int) -> bool:
        """Whether this batch can come this way: the stored size, no padding, every sample checked before."""
        return px == self._px and bool(self._checked[samples_N].all()) and int(samples_N.min(initial=0)) >= 0

    def into(self, images_NHWC: Images, samples_N: npt.NDArray[np.int64]) -> None:
        """Raises DatasetError for a shard that is gone or too short."""
        size = self._px * self._px * 3
        offsets, lengths = self._ends
        starts = (offsets[samples_N] + lengths[samples_N] - size).tolist()
        flat = images_NHWC.reshape(-1).data  # memoryviews cut and copy in half the time arrays take
        maps, place = self._maps, 0
        for shard, start in zip(self._shards[samples_N].tolist(), starts, strict=True):
            mapped = maps.get(shard) or self._map(shard)
            flat[place : place + size] = mapped[start : start + size]
            place += size

    def _map(self, shard: int) -> memoryview:
        path = self._folder / self._names[shard]
        descriptor = open_shard(path)
        try:
            size = os.fstat(descriptor).st_size
            last = int((self._ends[0] + self._ends[1])[self._shards == shard].max())
            if size < last:
                raise DatasetError(f"{path} is cut short: it ends before byte {last:,}")
            self._maps[shard] = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)
        return self._maps[shard]
