"""Shards for every cell of a comparison: found in the prepared folder, or prepared on demand and kept.

A variant is kept under the hash of what it was made with; `prepare` itself then decides by the plan's hash whether
what lies there is what was asked for, and finishes what a kill left half done.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.grid import Cell
from feedline.benchmarks.ladder_run import Say
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.codecs.base import Codec
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import Manifest, prepared_splits, read_manifest, refuse_address

OPTIONS = {"size": "--size", "codec": "--codec", "quality": "--quality", "shard_size": "--shard-size",
           "shards": "--shards", "resize": "--resize"}  # fmt: skip
SETTING = {"size": "size_px", "codec": "codec", "quality": "quality", "resize": "resize"}
"""What a manifest calls them; the other options do not show in a manifest's settings and are always prepared."""


def splits_of(cells: list[Cell], dataset: Path, work: Path, say: Say) -> dict[str, Path]:
    """The train split of every cell, by its key. Raises UsageError, CommandError."""
    if not dataset.exists():
        refuse_address(dataset)
        raise UsageError(f"{dataset} does not exist: give a prepared folder, or raw images to prepare from")
    base = base_of(dataset)
    found: dict[str, Path] = {}
    made: dict[str, Path] = {}
    for cell in cells:
        asked = completed(cell.shards(), base)
        name = json.dumps(asked, sort_keys=True, default=str)
        if name not in made:
            made[name] = find(dataset, asked) or prepare_variant(dataset, asked, work, say)
        found[cell.key] = made[name]
    return found


def base_of(dataset: Path) -> dict[str, Any]:
    """What shards have where no axis says otherwise: that of the largest prepared ones. {} for raw images, of which
    `prepare`'s own defaults are."""
    source = largest(dataset)
    settings = read_manifest(source).settings if source is not None else {}
    return {name: settings[key] for name, key in SETTING.items() if settings.get(key) is not None}


def completed(asked: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """All of what a variant is made with, so that cells differ in what the grid varies and in nothing else."""
    whole = {**base, **asked}
    codec = whole.get("codec")
    if codec == "raw":
        whole["resize"] = "square"  # rows of equal length: what raw shards are for
    elif whole.get("resize") == "square":
        del whole["resize"]
    return {name: value for name, value in whole.items() if codec is None or applies(name, CODECS[codec])}


def applies(option: str, codec: Codec) -> bool:
    return {"quality": codec.has_quality, "size": codec.sized, "resize": codec.sized}.get(option, True)


def find(dataset: Path, asked: Mapping[str, Any]) -> Path | None:
    """A prepared train split that is what was asked for."""
    if {"shard_size", "shards"} & set(asked):
        return None
    for split in prepared_splits(dataset):
        manifest = read_manifest(split)
        if manifest.split == "train" and fits(manifest, asked):
            return split
    return None


def fits(manifest: Manifest, asked: Mapping[str, Any]) -> bool:
    return all(manifest.settings.get(SETTING[name]) == value for name, value in asked.items())


def prepare_variant(dataset: Path, asked: Mapping[str, Any], work: Path, say: Say) -> Path:
    """From the raw images, or from the largest prepared shards where there are no others."""
    best = largest(dataset)
    source = dataset if best is None else best.parent
    if best is not None and int(asked.get("size") or 0) > (there := _px(read_manifest(best))):
        raise UsageError(
            f"--size {asked['size']}: {best} holds {there} px and has no more to give, compare on raw images"
        )
    name = variant_name(source, asked)
    out = work / "variants" / name
    options = [word for key, value in asked.items() for word in (OPTIONS[key], str(value))]
    step = commands.Step(
        name=f"prepare-{name}", argv=["prepare", str(source), str(out), *options], products=[out / "train"],
        inputs={"source": commands.stamp_of(source)},
    )  # fmt: skip
    if commands.reusable(step, work / "records") is None:
        say(f"$ {step.shown}")
        commands.run(step, work / "records", keep_text=True)
    return out / "train"


def largest(dataset: Path) -> Path | None:
    """The prepared train split with the most to give; None where there are raw images only."""
    splits = [split for split in prepared_splits(dataset) if read_manifest(split).split == "train"]
    return max(
        splits, key=lambda split: (read_manifest(split).codec != "raw", _px(read_manifest(split))), default=None
    )


def _px(manifest: Manifest) -> int:
    return int(manifest.settings.get("size_px") or 1 << 20)


def variant_name(source: Path, asked: Mapping[str, Any]) -> str:
    """Readable, and different for different things."""
    said = json.dumps([str(source.resolve()), dict(asked)], sort_keys=True, default=str)
    words = "-".join(str(value).replace("/", "_") for value in asked.values())
    return f"{words}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
