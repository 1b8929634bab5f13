"""A dataset that feedline prepared, as a source: descriptors from its index, classes from its manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest, read_index
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
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self) -> Part:
        manifest = open_manifest(self.path, self.options)
        with scratch_folder("index") as folder:
            (folder / INDEX).write_bytes(fetch(f"{self.path}/{INDEX}", self.options))
            try:
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
    kind = "prepared"

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
        if not CODECS[manifest.codec].image_file:
            raise UsageError(
                f"{folder} was prepared as {manifest.codec}, which is no image file: give the original source"
            )
    splits = [
        Listed(path=folder, under="", split=manifest.split)
        for folder, manifest in zip(folders, opened, strict=True)
        if options.wants(manifest.split)
    ]
    return PreparedSource(where=path, splits=splits, classes=classes_of(opened, path), options=storage)
