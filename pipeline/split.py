"""One prepared split as a loader sees it: manifest, index in shared memory, names for messages, its bytes' place."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.memory import Columns, SharedMemory
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.format.cache import CacheSpec, Prefetcher, Shard, default_folder
from feedline.pipeline.format.manifest import Index, Manifest, manifest_hash, read_index, read_manifest
from feedline.pipeline.format.remote import fetch_metadata, is_remote, open_cache


class Split:
    def __init__(self, where: str | Path, storage_options: dict[str, Any], cache_dir: str | Path | None,
                 cache_bytes: int) -> None:  # fmt: skip
        """Raises DatasetError for what is no prepared split; of a remote one, fetches manifest and index."""
        self.address = str(where) if is_remote(str(where)) else ""
        """Empty for local splits."""
        self._options = storage_options
        self._cache = CacheSpec(folder=Path(cache_dir or default_folder()), most_bytes=cache_bytes)
        self.folder = Path(str(where).removeprefix("file://"))
        if self.address:
            self.folder = fetch_metadata(self.address, storage_options, self._cache)
        self.manifest: Manifest = read_manifest(self.folder)
        self.identity = manifest_hash(self.folder)
        index = read_index(self.folder, self.manifest)
        self.stored_px = _square_side(index) if self.manifest.codec == "raw" else 0
        """The side of raw images that are all square and equal; 0 where they are not."""
        self.memory, self.layout = _share(index)
        shared = Columns.unpack(self.memory.view, self.layout)
        self.labels_N: npt.NDArray[np.int32] = shared["label"]
        self.shards_N: npt.NDArray[np.int32] = shared["shard"]
        self._index: Index | None = None

    def key(self, sample: int) -> str:
        """Reads the key column when there is first something to say."""
        self._index = self._index or read_index(self.folder, self.manifest)
        return self._index.key(sample)

    def where(self, sample: int) -> str:
        shard = self.manifest.shards[int(self.shards_N[sample])].name
        return f"{self.folder / shard}: sample {self.key(sample)!r}"

    def prefetch(self, plan: EpochPlan, ahead: int) -> Prefetcher | None:
        """Fetches remote shards in the order in which the rest of the epoch reads them first; None for local ones."""
        if not (self.address and self._cache.most_bytes):
            return None
        cache = open_cache(self.address, self._options, self.folder, self._cache)
        numbers, needs = np.unique(self.shards_N[plan.order_N[plan.start :]], return_index=True)
        by_need = np.argsort(needs, kind="stable")
        infos = [self.manifest.shards[number] for number in numbers[by_need].tolist()]
        shards = [Shard(info.name, info.bytes, info.sha256) for info in infos]
        prefetcher = Prefetcher(cache, shards, (needs[by_need] + plan.start).tolist(), ahead)
        prefetcher.reached(plan.start)
        return prefetcher


def _share(index: Index) -> tuple[SharedMemory, dict[str, list[Any]]]:
    """The columns workers need, in memory they map; and a byte per sample that says its CRC was checked."""
    return Columns.pack(
        {
            "label": index.labels_N,
            "shard": index.shards_N,
            "offset": index.offsets_N,
            "length": index.lengths_N,
            "crc32": index.crc32_N,
            "checked": np.zeros(len(index), np.uint8),
        }
    )


def _square_side(index: Index) -> int:
    if not len(index):
        return 0
    px = int(index.widths_N[0])
    return px if bool((index.widths_N == px).all() and (index.heights_N == px).all()) else 0
