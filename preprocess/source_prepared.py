"""A dataset that feedline prepared, as a source: descriptors from its index, classes from its manifest."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.pipeline.errors import UsageError
from feedline.pipeline.shards import INDEX, MANIFEST, Manifest
from feedline.preprocess.places import Listed
from feedline.preprocess.sources import (
    Classes,
    Found,
    IndexTask,
    Part,
    Source,
    SourceError,
    SourceOptions,
    joined,
)


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """Reads one split's index."""

    split: str
    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self) -> Part:
        manifest = open_manifest(self.path, self.options)
        try:
            table = pq.read_table(io.BytesIO(fetch(f"{self.path}/{INDEX}", self.options)))
            labels_N, shards_N, offsets_N, lengths_N = (
                table[name].to_numpy() for name in ("label", "shard", "offset", "length")
            )
        except (pa.ArrowInvalid, KeyError) as error:
            raise SourceError(f"{self.path}/{INDEX} cannot be read: run `feedline verify` on it") from error
        return Part(
            split=self.split,
            names=[f"{key}.jpg" for key in table["key"].to_pylist()],
            labels_N=labels_N.astype(np.int32),
            paths=[f"{self.path}/{shard.name}" for shard in manifest.shards],
            path_N=shards_N.astype(np.int32),
            offsets_N=offsets_N.astype(np.int64),
            lengths_N=lengths_N.astype(np.int64),
        )


def open_manifest(folder: str, options: dict[str, Any]) -> Manifest:
    where = f"{folder}/{MANIFEST}"
    return Manifest.from_json(fetch(where, options).decode("utf-8", "replace"), where)


def fetch(address: str, options: dict[str, Any]) -> bytes:
    import fsspec

    try:
        opened: Any = fsspec.open(address, "rb", **(options if "://" in address else {}))
        with opened as file:
            return file.read()
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{address} cannot be read: {str(error).strip() or type(error).__name__}") from error


def classes_of(manifests: Sequence[Manifest], where: str) -> Classes:
    if any(manifest.classes != manifests[0].classes for manifest in manifests):
        raise SourceError(f"{where}: its splits have different classes")
    return list(manifests[0].classes)


@dataclass(kw_only=True)
class PreparedSource(Source):
    where: str
    splits: list[Listed]
    """Folders or addresses with a manifest."""
    classes: Classes
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    kind = "shards"

    def tasks(self) -> Sequence[IndexTask]:
        return [PreparedTask(split=split.split, path=split.path, options=self.options) for split in self.splits]

    def finish(self, parts: Sequence[Part]) -> Found:
        return Found(columns=joined(parts), classes=self.classes)


def recognise_prepared(path: str, manifests: Sequence[Listed], options: SourceOptions) -> Source:
    """Raises UsageError when the dataset has several forms, or one that is no image."""
    storage = options.storage_options
    folders = [manifest.path.removesuffix(f"/{MANIFEST}") for manifest in manifests]
    if len({folder.rpartition("/")[0] for folder in folders}) > 1:
        raise UsageError(
            f"{path} holds several prepared datasets: give one of them, like {folders[0].rpartition('/')[0]}"
        )
    opened = [open_manifest(folder, storage) for folder in folders]
    for folder, manifest in zip(folders, opened, strict=True):
        if manifest.codec in ("raw", "planes"):
            raise UsageError(
                f"{folder} was prepared as {manifest.codec}, which is no image file: give the original source"
            )
    splits = [
        Listed(path=folder, under="", split=manifest.split)
        for folder, manifest in zip(folders, opened, strict=True)
        if options.wants(manifest.split)
    ]
    return PreparedSource(where=path, splits=splits, classes=classes_of(opened, path), options=storage)
