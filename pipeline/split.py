"""One prepared split as a loader sees it: manifest, index in shared memory, names for messages, its bytes' place."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.draw.order import EpochPlan, Labels, Samples, drawn_classes, part_labels
from feedline.pipeline.format.local import ANOTHER, MANIFEST, WholeShards, ask_ahead
from feedline.pipeline.format.manifest import (
    INDEX,
    MANIFEST_BYTES,
    Index,
    Manifest,
    identified,
    most_index_bytes,
    read_index,
)
from feedline.pipeline.format.remote import Prefetcher, Remote, ShardCache, default_cache, is_remote, is_whole
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.workers.memory import share_columns, shared_columns

MOST_ASKED = 256
"""Shards whose names are looked up before a worker opens them; of more, its first batches need a few."""


class PreparedSplit:
    def __init__(self, where: str | Path, config: LoaderConfig) -> None:
        """Raises DatasetError for what is no prepared split; of a remote one, fetches manifest and index."""
        self.address = str(where) if is_remote(str(where)) else ""
        """Empty for local splits."""
        self.folder = Path(str(where).removeprefix("file://"))
        if not self.address and ":/" in str(where) and not self.folder.exists():  # Path leaves one slash of two
            raise DatasetError(f"{where} is no path: give the address as text, with both slashes")
        self.whole_shards = WholeShards(self.folder.absolute())
        self._cache: ShardCache | None = None
        self._remote = Remote(self.address, config.storage_options) if self.address else None
        if self._remote is not None:
            self.folder = fetch_metadata(self._remote, Path(config.cache_dir or default_cache()))
            if config.cache_bytes:
                self._cache = ShardCache(self.folder, config.cache_bytes, self._remote.download)
        ask_ahead([self.folder / MANIFEST, self.folder / INDEX], read=True)
        self.manifest, self.identity = identified(self.folder)
        if not self.address:
            ask_ahead([self.folder / name for name in self.manifest.shard_names[:MOST_ASKED]])
        index = read_index(self.folder, self.manifest)
        self.stored_px = int(index.widths_N[0]) if self.manifest.codec == "raw" and len(index) else 0
        """The side of raw images that are all square and equal; 0 where they are not."""
        if (index.widths_N != self.stored_px).any() or (index.heights_N != self.stored_px).any():
            self.stored_px = 0
        # what workers need; and a byte per sample that says its CRC was checked
        columns = {"label": labels_in_use(self.manifest, index, config), "shard": index.shards_N,
                   "offset": index.offsets_N, "length": index.lengths_N, "crc32": index.crc32_N,
                   "checked": np.zeros(len(index), np.uint8)}  # fmt: skip
        self.memory, self.layout = share_columns(columns)
        shared = shared_columns(self.memory.view, self.layout)
        self.labels_N: Labels = shared["label"]
        """As they are handed over: PADDING for samples that the part leaves out."""
        whole = config.part is None
        self.stored_labels_N: Labels = self.labels_N if whole else index.labels_N
        self.part_N: Samples | None = None if whole else np.flatnonzero(self.labels_N >= 0)
        """The samples in use; None: all."""
        self.shards_N: npt.NDArray[np.int32] = shared["shard"]
        self.lengths_N: npt.NDArray[Any] = shared["length"]
        self.folder = self.folder.absolute()  # wherever the process goes
        self._index: Index | None = None

    def check_same(self) -> None:
        """Raises DatasetError for a split that has been prepared anew: the index is that of other shards."""
        shards = self.manifest.shards
        if self._remote is not None and self._cache and all(is_whole(self.folder / one.name, one) for one in shards):
            return
        try:
            data = self._remote.glance(MANIFEST) if self._remote else (self.folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError:  # a moment's trouble: if it lasts, the shards' own reads say so
            return
        if data is None or hashlib.sha256(data).hexdigest() == self.identity:
            return
        where = self.address or self.folder
        raise DatasetError(f"{where} {ANOTHER}")

    def key(self, sample: int) -> str:
        """Reads the key column when there is first something to say; its number where that is gone."""
        try:
            self._index = self._index or read_index(self.folder, self.manifest)
        except DatasetError:
            return f"number {sample}"
        return self._index.key(sample)

    def where(self, sample: int) -> str:
        shard = self.manifest.shards[int(self.shards_N[sample])].name
        return f"{self.folder / shard}: sample {self.key(sample)!r}"

    def told(self, sample: int, reason: str) -> str:
        """What is wrong with it and where it lies, which the reason may say too."""
        where = self.where(sample)
        return f"{where}: {reason.removeprefix(where.partition(': sample ')[0]).lstrip()}"

    def prefetch(self, plan: EpochPlan, ahead: int) -> Prefetcher | None:
        """Fetches shards in the order in which the rest of the epoch reads them first: remote ones to the cache, and
        local ones to memory where the order is by windows. None where neither is so."""
        if self._cache is None and (self.address or not (plan.window_shards and plan.shuffle)):
            return None
        cache = self._cache or self.whole_shards
        numbers, needs = np.unique(self.shards_N[plan.order_N[plan.start :] % len(self.shards_N)], return_index=True)
        by_need = np.argsort(needs, kind="stable")
        shards = [self.manifest.shards[number] for number in numbers[by_need].tolist()]
        prefetcher = Prefetcher(cache, shards, (needs[by_need] + plan.start).tolist(), ahead)
        prefetcher.reached(plan.start)
        return prefetcher


def classes_in_use(manifest: Manifest, config: LoaderConfig) -> list[int]:
    """The classes, by their new labels: what is each one's label in the shards. Raises UsageError for too many."""
    part = config.part or {}
    known, count, seed = len(manifest.classes), part.get("classes"), part.get("seed") or 0
    return list(range(known)) if count is None else drawn_classes(known, count, seed).tolist()


def labels_in_use(manifest: Manifest, index: Index, config: LoaderConfig) -> Labels:
    """Every sample's label as it is handed over, PADDING where the sample is left out. Raises UsageError for a part
    that is larger than the whole."""
    if (part := config.part) is None:
        return index.labels_N
    classes_C = None if part["classes"] is None else np.array(classes_in_use(manifest, config), np.int64)
    return part_labels(index.labels_N, classes_C, part["samples"], part["seed"] or 0)


def _kept(path: Path, sha256: str) -> bool:
    """A file is there, and what was written: damaged in the cache, it is fetched again. 30 MB take 20 ms. A cache may
    be somebody else's, which can be read and not written."""
    try:
        with path.open("rb") as file:
            return not sha256 or hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def fetch_metadata(remote: Remote, cache: Path) -> Path:
    """A folder in the cache with the split's manifest and index; shards will join them. Raises DatasetError."""
    manifest = remote.read_all(MANIFEST, MANIFEST_BYTES)
    folder = cache / hashlib.sha256(f"{remote.address}\n".encode() + manifest).hexdigest()[:20]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        where = f"{remote.address}/{MANIFEST}"
        named = Manifest.from_json(manifest.decode("utf-8", "replace"), where)
        wanted = named.index_sha256
        if not _kept(folder / INDEX, wanted):
            index = remote.read_all(INDEX, most_index_bytes(named))
            if wanted and hashlib.sha256(index).hexdigest() != wanted:  # it would stay here for good
                raise DatasetError(f"{remote.address}/{INDEX} is not the index that {where} names: try again, or run "
                                   "`feedline verify` on it")  # fmt: skip
            write_atomically(folder / INDEX, index)
        if not _kept(folder / MANIFEST, hashlib.sha256(manifest).hexdigest()):
            write_atomically(folder / MANIFEST, manifest)
    except OSError as error:
        what = f"the cache {cache} cannot be written ({error.strerror or error})"
        raise DatasetError(
            f"{what}: make room there, or set FEEDLINE_CACHE or cache_dir to another folder"
        ) from error
    return folder
