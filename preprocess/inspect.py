"""What is inside a prepared dataset: classes, sizes, bytes; a contact sheet, and one HTML page of it all. Pure but
for reading samples.
"""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import Index, Manifest, prepared_splits, read_index, read_manifest

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
    files = LocalFiles(folder, manifest.shard_names)
    try:
        return [thumbnail(manifest, index, files, sample) for sample in sorted(chosen.tolist())]
    finally:
        files.close()


def thumbnail(manifest: Manifest, index: Index, files: LocalFiles, sample: int) -> Thumbnail:
    try:
        image = Image.fromarray(CODECS[manifest.codec].pixels(files.read(*index.place(sample))))
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


# --- the page ------------------------------------------------------------------------------------------

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
.charts{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0}figcaption{font-size:.8rem;opacity:.75}
.sheet{display:flex;flex-wrap:wrap;gap:.6rem}.sheet figure{width:112px}
.sheet figcaption{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
rect{fill:#3a6ea5}
"""
CHART_W, CHART_H = 300, 90
CLASSES_SHOWN = 40


def page(title: str, splits: Mapping[str, Mapping[str, Any]], samples: Sequence[Thumbnail]) -> str:
    parts = [split_part(name, said) for name, said in splits.items()]
    cells = "".join(
        f'<figure><img alt="{html.escape(one.key)}" src="{data_address(one)}">'
        f'<figcaption title="{html.escape(one.key)}">{html.escape(one.class_name)}</figcaption></figure>'
        for one in samples
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{''.join(parts)}"
        f'<h2>{len(samples)} samples, drawn at random</h2><div class="sheet">{cells}</div></html>\n'
    )


def split_part(name: str, said: Mapping[str, Any]) -> str:
    facts = {
        "samples": f"{said['samples']:,}",
        "shards": f"{said['shards']:,}",
        "bytes": f"{said['bytes']:,}",
        "settings": ", ".join(f"{key} {value}" for key, value in said["settings"].items()),
        "seed": said["seed"],
        "plan": said["plan_hash"][:16],
    }
    rows = "".join(f"<tr><th>{key}<td>{html.escape(str(value))}" for key, value in facts.items())
    charts = "".join(
        f"<figure>{bars(said[key])}<figcaption>{html.escape(caption(label, said[key]))}</figcaption></figure>"
        for key, label in (("width_px", "width, px"), ("height_px", "height, px"), ("sample_bytes", "bytes"))
    )
    return (
        f"<h2>{html.escape(name)}</h2><table>{rows}</table>"
        f'<div class="charts">{charts}</div>{classes_part(said["classes"])}'
    )


def caption(label: str, said: Mapping[str, Any]) -> str:
    if said["min"] is None:
        return f"{label}: no samples"
    return f"{label}: {said['min']:,} to {said['max']:,}, median {said['median']:,.0f}"


def bars(said: Mapping[str, Any]) -> str:
    counts: list[int] = said["counts"]
    tallest, width = max(counts, default=0) or 1, CHART_W / max(len(counts), 1)
    drawn = "".join(
        f'<rect x="{n * width + 0.5:.1f}" y="{CHART_H * (1 - count / tallest):.1f}" width="{width - 1:.1f}" '
        f'height="{CHART_H * count / tallest:.1f}"><title>{count:,}</title></rect>'
        for n, count in enumerate(counts)
    )
    return f'<svg width="{CHART_W}" height="{CHART_H}" role="img" aria-label="histogram">{drawn}</svg>'


def classes_part(classes: Sequence[Mapping[str, Any]]) -> str:
    shown = classes[:CLASSES_SHOWN]
    rows = "".join(f"<tr><td>{c['label']}<td>{html.escape(c['name'])}<td>{c['samples']:,}" for c in shown)
    more = f"<p>… and {len(classes) - len(shown)} more classes" if len(classes) > len(shown) else ""
    return f"<details><summary>{len(classes):,} classes</summary><table>{rows}</table>{more}</details>"


def data_address(one: Thumbnail) -> str:
    file = io.BytesIO()
    one.image.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
