"""Shards for every cell of a comparison: found in the prepared folder, or prepared on demand and kept.

A variant is kept under the hash of what it was made from and with, so that `prepare` never finds another dataset in
its place; it finishes what a kill left half done.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.grid import Cell
from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import Manifest, prepared_splits, read_manifest, refuse_address

SETTING = {"size": "size_px", **{name: name for name in ("codec", "quality", "subsampling", "resize")}}
"""What a manifest calls them; other options do not show there and are always prepared."""
Prepared = Sequence[tuple[Path, Manifest]]


def splits_of(cells: list[Cell], dataset: Path, work: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """The train split of every cell, by its key. Raises UsageError, CommandError."""
    if not dataset.exists():
        refuse_address(dataset)
        raise UsageError(f"{dataset} does not exist: give a prepared folder, or raw images to prepare from")
    most_to_give = sorted(train_splits(dataset), key=lambda split: (split[1].codec != "raw", size_px(split[1])))
    prepared = most_to_give[::-1]
    settings = prepared[0][1].settings if prepared else {}
    base = {name: settings[key] for name, key in SETTING.items() if settings.get(key) is not None}
    splits: dict[str, Path] = {}
    made: dict[str, Path] = {}
    for cell in cells:
        asked = completed(cell.shards, base)
        name = json.dumps(asked, sort_keys=True)
        if name not in made:
            made[name] = find(prepared, asked) or prepare_variant(dataset, prepared, asked, work, say)
        splits[cell.key] = made[name]
    return splits


def completed(asked: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """All of what a variant is made with, so that cells differ in what the grid varies and in nothing else. `base` is
    what shards have where no axis says otherwise; {}: `prepare`'s own defaults."""
    whole = {**base, **asked}
    if "codec" not in whole:
        return whole
    codec = CODECS[whole["codec"]]
    if codec.name == "raw" and base.get("codec") != "raw":
        whole["resize"] = "square"  # rows of equal length: what raw shards are for
    elif codec.name != "raw" and whole.get("resize") == "square":
        del whole["resize"]
    applies = {
        "quality": codec.has_quality,
        "subsampling": codec.name == "jpeg",
        "size": codec.sized,
        "resize": codec.sized,
    }
    return {name: value for name, value in whole.items() if applies.get(name, True)}


def find(prepared: Prepared, asked: Mapping[str, Any]) -> Path | None:
    """A train split that is what was asked for."""
    for split, manifest in prepared:
        if all(name in SETTING and manifest.settings.get(SETTING[name]) == asked[name] for name in asked):
            return split
    return None


def prepare_variant(
    dataset: Path, prepared: Prepared, asked: Mapping[str, Any], work: Path, say: Callable[[str], None]
) -> Path:
    """From the raw images, or from the largest prepared shards where there are no others."""
    source = dataset
    if prepared:
        best, manifest = prepared[0]
        source, there = best.parent, size_px(manifest)
        if int(asked.get("size") or 0) > there:
            raise UsageError(
                f"--size {asked['size']}: {best} holds {there} px and has no more to give, compare on raw images"
            )
    options = [word for key, value in asked.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return kept_shards(source, options, work, say) / "train"


def kept_shards(source: Path, options: Sequence[str], work: Path, say: Callable[[str], None]) -> Path:
    """What `feedline prepare SOURCE` with these options makes; a second time it is there already. Raises
    CommandError."""
    made_with = json.dumps([str(source.resolve()), commands.stamp_of(source), *options])
    words = "-".join(word for word in options if not word.startswith("--"))
    name = f"{re.sub('[/:]', '_', words)}-{hashlib.sha256(made_with.encode()).hexdigest()[:8]}"
    out = work / "variants" / name
    step = commands.Step(name=f"prepare-{name}", argv=["prepare", str(source), str(out), *options], products=[out])
    commands.run(step, work / "records", keep_text=True, say=say)
    return out


def train_splits(folder: Path) -> list[tuple[Path, Manifest]]:
    """Under a prepared folder; [] where there are none."""
    manifests = [(split, read_manifest(split)) for split in prepared_splits(folder)]
    return [(split, manifest) for split, manifest in manifests if manifest.split == "train"]


def find_train(folder: Path, codec: str | None = None, size: int | None = None, *, whole: bool | None = None) -> Path:
    """The first, of this codec and size, and that shows whole pictures or not (`Manifest.shows`), where they are
    given. Raises DatasetError."""
    for split, manifest in train_splits(folder):
        fits = codec in (None, manifest.codec) and size in (None, manifest.settings.get("size_px"))
        if fits and (whole is None or manifest.shows(whole=whole)):
            return split
    if codec is None:
        raise DatasetError(f"{folder} has no prepared train split: run `feedline prepare` first")
    what = f"{size} px {codec}" if size else codec
    form = "SIZE:raw:square" if codec == "raw" else f"SIZE:{codec}"
    raise DatasetError(f"{folder} has no train split of {what} shards: prepare one with --output {form}")


def size_px(manifest: Manifest) -> int:
    return int(manifest.settings.get("size_px") or 1 << 20)
