"""A prepared dataset as one HTML page that works offline: numbers, histograms, classes, samples. Pure."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.preprocess.inspect import Thumbnail

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
