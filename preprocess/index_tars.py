"""Manifest and index for WebDataset shards that feedline did not write, beside them and without touching them.

One pass over the tars: headers for where the images are, the images' bytes for CRC-32 and size. Codec `keep`.
"""

import hashlib
import io
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedline.pipeline.base.errors import DatasetError, SourceError, UsageError
from feedline.pipeline.base.files import sweep, try_place, write_atomically, write_error
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.codecs.pillow import NAMES
from feedline.pipeline.format.manifest import (
    INDEX,
    MANIFEST,
    Manifest,
    ShardInfo,
    index_table_bytes,
    read_manifest,
    refuse_address,
)
from feedline.preprocess.fingerprint import versions
from feedline.preprocess.plan import checked, with_safe_names
from feedline.preprocess.receipts import ROW, Rows, index_table
from feedline.preprocess.sources.base import Classes, Columns, SourceOptions, check_used, parse_options
from feedline.preprocess.sources.listing import SPLIT_NAMES, Listed, distinct, split_of
from feedline.preprocess.sources.reading import Where, read_local
from feedline.preprocess.sources.webdataset import DOTTED, ShardsSource, refuse_compressed

OnProgress = Callable[[int, int], None]
MAX_NAMED = 20


def index_shards(
    folder: Path,
    *,
    overwrite: bool = False,
    source_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, dict[str, Any]]:
    """Writes index and manifest in every folder with shards at or right below `folder`; returns counts by folder.

    Samples that cannot be used are left out, named and counted. Raises UsageError when there is nothing to index, a
    manifest is there already, or one folder holds several splits. `source_options` say which members are meant, and
    what labels.
    """
    options = parse_options(dict(source_options or {}))
    check_used(options, ShardsSource.kind, str(folder))
    if not folder.is_dir():
        refuse_address(folder)
        raise UsageError(f"{folder} is not a folder: give the one that holds the shards")
    places = {place: tars for place in (folder, *sorted(folder.iterdir())) if (tars := tars_in(place, options))}
    if not places:
        raise UsageError(f"{folder} holds no .tar files: give the folder of the shards")
    for place in places:
        if (place / MANIFEST).exists():
            check_replaceable(place, overwrite)
    try:
        for place in places:
            try_place(place / INDEX)
        every = [tar for tars in places.values() for tar in tars]
        source = ShardsSource(where=str(folder), tars=every, options=options)
        parts = [task() for task in source.tasks()]
        dotted = {part.paths[0]: part.passed_over[DOTTED] for part in parts if DOTTED in part.passed_over}
        found = source.finish(parts)  # one numbering of classes for all
        columns, classes = checked(found.columns, len(found.classes)), with_safe_names(found.classes)
        labelled = {Path(path).parent for path in columns.paths}
        if unlabelled := next((place for place in places if place not in labelled), None):
            raise SourceError(f"{unlabelled}: {source.if_unlabelled}")
        told = on_progress or (lambda *_: None)
        return {
            str(place): index_folder(place, tars[0].split, columns, classes, dotted, told)
            for place, tars in places.items()
        }
    except OSError as error:
        raise write_error(error, f"indexing {folder}") from error


def check_replaceable(place: Path, overwrite: bool) -> None:
    """Raises UsageError where the manifest was not asked to be replaced, or says more than `index` could find out."""
    if not overwrite:
        raise UsageError(f"{place} has a manifest already: --overwrite replaces it and its index")
    try:
        prepared = not read_manifest(place).settings.get("foreign", False)
    except DatasetError:
        return
    if prepared:
        raise UsageError(f"{place} was written by `feedline prepare`: its manifest knows classes and settings that "
                         "`index` cannot find out")  # fmt: skip


def tars_in(place: Path, options: SourceOptions) -> list[Listed]:
    """Those right in the folder, of the split that it is called after, or else of the one that all their names say.
    Raises UsageError where they say two, and for compressed ones."""
    if not place.is_dir() or not any(place.glob("*.tar")):
        return []
    paths = [path for path in sorted(place.iterdir()) if not path.is_dir() and not path.name.startswith(".")]
    refuse_compressed(str(path) for path in paths)
    names = [path.name for path in paths if path.suffix == ".tar"]
    split = SPLIT_NAMES.get(place.absolute().name.lower())
    splits = sorted({split or split_of(name) for name in names})
    if len(splits) > 1:
        raise UsageError(f"{place} holds shards of {', '.join(splits)}: give each split a folder of its own")
    return distinct(
        Listed(path=str(place / name), under=name, split=splits[0]) for name in names if options.wants(splits[0])
    )


def index_folder(
    folder: Path,
    split: str,
    columns: Columns,
    classes: Classes,
    dotted: Mapping[str, int],
    on_progress: OnProgress,
) -> dict[str, Any]:
    """`dotted`: images of which no sample was made (DOTTED), by their tar's path."""
    sweep(folder)
    lost = {Path(path).name: count for path, count in dotted.items() if Path(path).parent == folder}
    mine = [number for number, path in enumerate(columns.paths) if Path(path).parent == folder]
    samples = int(np.isin(columns.path_N, mine).sum())
    shards: list[ShardInfo] = []
    rows: list[Rows] = []
    left_out: list[str] = []
    done = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for shard, usable, unusable in pool.map(partial(examine, columns), mine, range(len(mine))):
            shards.append(shard)
            rows.append(usable)
            left_out += unusable
            done += shard.samples + len(unusable)
            on_progress(done, samples)
    index = index_table_bytes(index_table(rows))
    manifest = Manifest(
        split=split,
        samples=sum(shard.samples for shard in shards),
        classes=classes,
        shards=shards,
        settings={"codec": "keep", "foreign": True},
        seed=0,
        plan_hash=hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
        versions=versions(),
    )
    lines = [*(f"{tar}: {count} {DOTTED}" for tar, count in lost.items()), *left_out]
    write_atomically(folder / INDEX, index)
    write_atomically(folder / MANIFEST, manifest.to_json().encode())
    return {
        "samples": manifest.samples,
        "shards": len(shards),
        "left_out": lines[:MAX_NAMED],
        "not_named": len(lines[MAX_NAMED:]),
        "bad": len(left_out) + sum(lost.values()),
    }


def examine(columns: Columns, number: int, shard: int) -> tuple[ShardInfo, Rows, list[str]]:
    """Of one tar, its folder's `shard`-th: what the manifest says of it, its usable images in order, and why the
    others are left out."""
    path = Path(columns.paths[number])
    members: list[int] = np.flatnonzero(columns.path_N == number).tolist()
    places = [Where(str(path), int(columns.offsets_N[row]), int(columns.lengths_N[row])) for row in members]
    keys: list[str] = []
    table: list[tuple[int, ...]] = []
    left_out: list[str] = []
    for row, place, data in zip(members, places, read_local(places, {}), strict=True):
        size = None if row in columns.troubles else picture_size(data)
        if size is None:
            why = columns.troubles.get(row, "not an image that can be read")
            left_out.append(f"{path.name}: {columns.keys[row]}: {why}")
            continue
        keys.append(columns.keys[row])
        table.append((int(columns.labels_N[row]), shard, place.offset, place.length, *size, zlib.crc32(data)))
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size_bytes = path.stat().st_size
    info = ShardInfo(name=path.name, samples=len(keys), planned_samples=len(keys), bytes=size_bytes, sha256=sha256)
    return info, Rows(keys, np.array(table, ROW)), left_out


def picture_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) from the header; None when it is no image."""
    Image.init()
    try:
        with Image.open(io.BytesIO(data), formats=NAMES) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
