"""What is inside a prepared dataset: classes, sizes, bytes, and a contact sheet. Pure but for reading samples."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import Index, Manifest, ShardReader, prepared_splits, read_index, read_manifest

THUMB_PX = 112
CAPTION_PX = 14


@dataclass(frozen=True)
class Thumbnail:
    split: str
    key: str
    class_name: str
    image: Image.Image


def inspect(out: Path) -> dict[str, dict[str, Any]]:
    """By split folder: settings, counts by class, histograms of sides and bytes. Raises DatasetError if none."""
    return {relative(folder, out): describe_split(folder) for folder in splits_of(out)}


def splits_of(out: Path) -> Sequence[Path]:
    found = prepared_splits(out)
    if not found:
        raise DatasetError(f"{out} is not a prepared dataset (no manifest.json): run `feedline prepare` first")
    return found


def relative(folder: Path, out: Path) -> str:
    return str(folder.relative_to(out)) if folder != out else folder.name


def describe_split(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    index = read_index(folder, manifest)
    counts = np.bincount(index.labels_N, minlength=len(manifest.classes))
    return {
        "split": manifest.split,
        "samples": manifest.samples,
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "settings": manifest.settings,
        "seed": manifest.seed,
        "plan_hash": manifest.plan_hash,
        "classes": [
            {"label": label, "name": class_name(manifest, label), "samples": int(counts[label])}
            for label in range(len(manifest.classes))
        ],
        "width_px": histogram(index.widths_N),
        "height_px": histogram(index.heights_N),
        "sample_bytes": histogram(index.lengths_N),
    }


def class_name(manifest: Manifest, label: int) -> str:
    entry = manifest.classes[label]
    names = entry.get("names") or []
    return f"{entry['name']} ({names[0]})" if names and names[0] != entry["name"] else str(entry["name"])


def histogram(values_N: npt.NDArray[Any], bins: int = 20) -> dict[str, Any]:
    """Counts in equal bins from the smallest to the largest value, and where the middle lies."""
    if not len(values_N):
        return {"min": None, "median": None, "max": None, "edges": [], "counts": []}
    low, high = int(values_N.min()), int(values_N.max())
    counts, edges = np.histogram(values_N, bins=min(bins, high - low + 1), range=(low, high + 1))
    return {
        "min": low,
        "median": float(np.median(values_N)),
        "max": high,
        "edges": [round(float(edge), 1) for edge in edges],
        "counts": counts.tolist(),
    }


# --- samples ------------------------------------------------------------------------------------------


def thumbnails(out: Path, count: int, seed: int = 0) -> list[Thumbnail]:
    """Samples drawn at random, the same for the same seed, spread over all splits."""
    folders = splits_of(out)
    per_split = [count // len(folders) + (n < count % len(folders)) for n in range(len(folders))]
    return [one for folder, number in zip(folders, per_split, strict=True) for one in of_split(folder, number, seed)]


def of_split(folder: Path, count: int, seed: int) -> list[Thumbnail]:
    manifest = read_manifest(folder)
    index = read_index(folder, manifest)
    chosen = np.random.default_rng(seed).permutation(len(index))[:count]
    reader = ShardReader(folder, manifest, index)
    try:
        return [thumbnail(manifest, index, reader, sample) for sample in sorted(chosen.tolist())]
    finally:
        reader.close()


def thumbnail(manifest: Manifest, index: Index, reader: ShardReader, sample: int) -> Thumbnail:
    try:
        image = Image.fromarray(CODECS[manifest.codec].pixels(reader.read(sample)))
    except (DatasetError, ValueError, OSError):
        image = Image.new("RGB", (THUMB_PX, THUMB_PX), (160, 0, 0))  # red: it is there and cannot be shown
    image.thumbnail((THUMB_PX, THUMB_PX), Image.Resampling.BICUBIC)
    return Thumbnail(manifest.split, index.key(sample), class_name(manifest, int(index.labels_N[sample])), image)


def contact_sheet(samples: Sequence[Thumbnail], columns: int = 8) -> bytes:
    """One PNG with the samples in a grid, each with its class."""
    rows = max(-(-len(samples) // columns), 1)
    cell = THUMB_PX + CAPTION_PX + 8
    sheet = Image.new("RGB", (columns * (THUMB_PX + 8), rows * cell), (255, 255, 255))
    pen = ImageDraw.Draw(sheet)
    for number, sample in enumerate(samples):
        left, top = number % columns * (THUMB_PX + 8) + 4, number // columns * cell + 4
        sheet.paste(sample.image, (left, top))
        text = sample.class_name.encode("latin-1", "replace").decode("latin-1")[:18]  # the built-in font's letters
        pen.text((left, top + THUMB_PX), text, fill=(60, 60, 60))
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
