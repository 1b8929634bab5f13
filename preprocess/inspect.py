"""What is inside a prepared dataset: classes, sizes, bytes; samples drawn at random."""

import io
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.local import AGAIN, MANIFEST, LocalFiles
from feedline.pipeline.format.manifest import Manifest, class_name, prepared_splits, read_index, read_manifest

THUMB_PX = 112
BINS = 20


def inspect(out: Path) -> dict[str, dict[str, Any]]:
    """By split folder: settings, counts by class, histograms of sides and bytes. Raises DatasetError if none."""
    return {
        str(folder.relative_to(out)) if folder != out else folder.name: describe(folder) for folder in splits(out)
    }


def splits(out: Path) -> Sequence[Path]:
    folders = prepared_splits(out)
    if not folders:
        other = " nor a checkpoint (.pt): give a folder" if out.is_file() else ""
        raise DatasetError(
            f"{out} is not a prepared dataset (no manifest.json){other or ': run `feedline prepare` first'}"
        )
    return folders


def describe(folder: Path) -> dict[str, Any]:
    """One split; `problems`: what is wrong with its shards, as their names and sizes tell."""
    manifest = read_manifest(folder)
    index = read_index(folder, manifest)
    counts = np.bincount(index.labels_N, minlength=len(manifest.classes)).tolist()
    return {
        "split": manifest.split,
        "samples": manifest.samples,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "settings": manifest.settings,
        "seed": manifest.seed,
        "plan_hash": manifest.plan_hash,
        "problems": problems(folder, manifest),
        "classes": [
            {"label": label, "name": class_name(entry), "samples": counts[label]}
            for label, entry in enumerate(manifest.classes)
        ],
        "width_px": histogram(index.widths_N),
        "height_px": histogram(index.heights_N),
        "sample_bytes": histogram(index.lengths_N),
    }


def problems(folder: Path, manifest: Manifest) -> list[str]:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    found: list[str] = []
    for shard in manifest.shards:
        if shard.name not in sizes:
            found.append(f"{shard.name} is missing: {AGAIN}")
        elif (size := sizes[shard.name]) != shard.bytes:
            found.append(f"{shard.name} is {size:,} bytes long, {MANIFEST} says {shard.bytes:,}: {AGAIN}")
    if not manifest.settings.get("foreign", False):
        strays = sorted(name for name in {*sizes} - {*manifest.shard_names} if name.endswith(".tar"))
        found += [f"{name} is none of its shards: move it away" for name in strays]
    return found


def histogram(values_N: npt.NDArray[Any]) -> dict[str, Any]:
    """Counts in at most BINS equal bins from the smallest to the largest value, and where the middle lies."""
    if not len(values_N):
        return {"min": None, "median": None, "max": None, "edges": [], "counts": []}
    low, high = int(values_N.min()), int(values_N.max())
    counts, edges = np.histogram(values_N, bins=min(BINS, high - low + 1), range=(low, high + 1))
    return {
        "min": low,
        "median": float(np.median(values_N)),
        "max": high,
        "edges": [round(float(edge), 1) for edge in edges],
        "counts": counts.tolist(),
    }


def thumbnails(out: Path, count: int, seed: int = 0) -> list[tuple[str, str, bytes]]:
    """(key, class, small JPEG) of samples drawn at random, the same for the same seed, spread over all splits."""
    folders = splits(out)
    shown: list[tuple[str, str, bytes]] = []
    for number, folder in enumerate(folders):
        manifest = read_manifest(folder)
        index = read_index(folder, manifest)
        of_split = count // len(folders) + (number < count % len(folders))
        with closing(LocalFiles(folder, manifest.shard_names)) as files:
            for sample in sorted(np.random.default_rng(seed).permutation(len(index))[:of_split].tolist()):
                name = class_name(manifest.classes[index.labels_N[sample]])
                try:
                    image = Image.fromarray(CODECS[manifest.codec].pixels(files.read(*index.place(sample))))
                except (DatasetError, ValueError, OSError):
                    image = Image.new("RGB", (THUMB_PX, THUMB_PX), (160, 0, 0))  # red: there, and cannot be shown
                image.thumbnail((THUMB_PX, THUMB_PX), Image.Resampling.BICUBIC)
                file = io.BytesIO()
                image.save(file, "JPEG", quality=85)
                shown.append((index.key(sample), name, file.getvalue()))
    return shown
