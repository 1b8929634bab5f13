"""Small shards to measure with where there is no dataset: pictures of the synthetic ImageNet in every codec, prepared
by processes of this machine (no Java, no Spark, no network), their index repeated.

An epoch of two thousand samples is over in a tenth of a second, and most of that is its beginning and its end. So the
index names every sample again and again, and the loader reads the same bytes for as many batches as are asked for.
"""

import hashlib
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.format.manifest import INDEX, MANIFEST, ShardInfo, index_table_bytes, read_manifest
from feedline.pipeline.format.shard_tar import shard_name
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare
from feedline.preprocess.synth.inventory import SynthConfig
from feedline.preprocess.synth.write import synth

IMAGES = 2048
"""In the larger codecs some hundred megabytes: more than a processor's caches hold."""
EPOCH = 200_000
"""Samples of an epoch that is not over within a window."""
STORED_PX = (256, 96)
"""For images of 224 and of 64 px."""
CODECS = ("jpeg", "planes", "raw")
SHARDS = 16


def make_shards(folder: Path, *, images: int = IMAGES, epoch: int = EPOCH) -> Path:
    """A prepared folder with every codec at every size: SIZE-CODEC/train, as long as `epoch`, and /val."""
    photos, prepared = folder / "photos", folder / "prepared"
    synth(SynthConfig(out=str(photos), images=images, layout="folder"))
    forms = tuple(
        Output(codec=codec, size_px=px, resize="square" if codec == "raw" else "shortest")
        for px in STORED_PX
        for codec in CODECS
    )
    shards = max(1, min(SHARDS, images // 32))
    prepare(PrepareConfig(source=str(photos), out=str(prepared), outputs=forms, shards=shards, engine="processes"))
    shutil.rmtree(photos)
    for split in prepared.glob("*/train"):
        lengthen(split, epoch)
    return prepared


def lengthen(split: Path, epoch: int, copies: int = 1, out: Path | None = None) -> None:
    """Its index, or that of a copy of it in `out`, names the samples again and again until there are `epoch` of them,
    in so many `copies` of every shard by turns: few pictures would be read from the processor's caches, where a
    dataset is not."""
    manifest, out = read_manifest(split), out or split
    table, count = pq.ParquetFile(split / INDEX).read(), len(manifest.shards)
    column, compute = table.column_names.index("shard"), cast("Any", pc)  # its functions are made at run time
    shards: list[ShardInfo] = []
    tables: list[pa.Table] = []
    for turn in range(copies):
        for number, shard in enumerate(manifest.shards):
            name = shard_name(manifest.split, turn * count + number)
            if turn or out != split:
                shutil.copyfile(split / shard.name, out / name)
            shards.append(replace(shard, name=name))
        moved = compute.add(table[column], pa.scalar(turn * count, pa.int32()))
        tables.append(table.set_column(column, table.schema.field(column), moved))
    samples = max(epoch, manifest.samples)
    tables *= math.ceil(samples / (copies * max(1, manifest.samples)))
    index = index_table_bytes(pa.concat_tables(tables).slice(0, samples))
    longer = replace(manifest, samples=samples, shards=shards, index_sha256=hashlib.sha256(index).hexdigest())
    write_atomically(out / INDEX, index)
    write_atomically(out / MANIFEST, longer.to_json().encode())
