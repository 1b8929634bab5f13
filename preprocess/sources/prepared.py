"""A dataset that feedline prepared, as a source: descriptors from its index, classes from its manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.cache import CacheSpec
from feedline.pipeline.format.manifest import MANIFEST, Manifest, read_index, read_manifest
from feedline.pipeline.format.remote import Remote, fetch_metadata
from feedline.preprocess.sources.base import (
    Classes,
    Found,
    IndexTask,
    Part,
    Source,
    SourceError,
    SourceOptions,
    joined,
)
from feedline.preprocess.sources.listing import Listed


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """Reads one split's index."""

    split: str
    path: str
    options: dict[str, Any]
    """For fsspec."""

    def run(self) -> Part:
        with scratch_folder("index") as scratch:
            folder = Path(self.path)
            if "://" in self.path:
                folder = fetch_metadata(self.path, self.options, CacheSpec(folder=scratch, most_bytes=0))
            try:
                manifest = read_manifest(folder)
                index = read_index(folder, manifest)
                keys = index.keys
            except DatasetError as error:
                what = str(error).replace(str(folder), self.path)
                raise SourceError(f"{what}: run `feedline verify` on {self.path}") from error
        return Part(
            split=self.split,
            names=[f"{key}.jpg" for key in keys],
            labels_N=index.labels_N,
            paths=[f"{self.path}/{shard.name}" for shard in manifest.shards],
            path_N=index.shards_N,
            offsets_N=index.offsets_N,
            lengths_N=index.lengths_N,
            crc32_N=index.crc32_N,
        )


@dataclass(kw_only=True)
class PreparedSource(Source):
    splits: list[PreparedTask]
    classes: Classes
    kind = "prepared"

    def tasks(self) -> Sequence[IndexTask]:
        return self.splits

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
    opened = {folder: open_manifest(folder, storage) for folder in folders}
    classes = opened[folders[0]].classes
    for folder, manifest in opened.items():
        if not CODECS[manifest.codec].image_file:
            raise UsageError(
                f"{folder} was prepared as {manifest.codec}, which is no image file: give the original source"
            )
        if manifest.classes != classes:
            raise SourceError(f"{path}: its splits have different classes")
    splits = [
        PreparedTask(split=manifest.split, path=folder, options=storage)
        for folder, manifest in opened.items()
        if options.wants(manifest.split)
    ]
    return PreparedSource(splits=splits, classes=classes)


def open_manifest(folder: str, options: dict[str, Any]) -> Manifest:
    if "://" not in folder:
        return read_manifest(Path(folder))
    text = Remote(folder, options).read(MANIFEST).decode("utf-8", "replace")
    return Manifest.from_json(text, f"{folder}/{MANIFEST}")
