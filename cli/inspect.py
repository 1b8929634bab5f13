"""`feedline inspect OUT`: what is inside a prepared dataset."""

from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, write

BLOCKS = " ▁▂▃▄▅▆▇█"
CLASSES_SHOWN = 10


def inspect(
    out: Annotated[Path, typer.Argument(help="A prepared dataset, or one split of it.")],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with samples.")] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write a contact sheet.")] = None,
    samples: Annotated[int, typer.Option("--samples", help="Samples on the sheet.", min=1, max=2000)] = 48,
    seed: Annotated[int, typer.Option("--seed", help="Which samples.", min=0)] = 0,
    json_file: JsonFile = None,
) -> None:
    """Show classes, histograms of sizes and bytes, and a contact sheet of samples.

    Example: feedline inspect OUT --html sheet.html
    """
    from feedline.preprocess.inspect import contact_sheet, page, thumbnails
    from feedline.preprocess.inspect import inspect as look

    record = Record("inspect", json_file, html, png)
    found = look(out)
    for name, said in found.items():
        show(name, said)
    shown = thumbnails(out, samples, seed) if html or png else []
    if html:
        write(html, page(str(out), found, shown))
        console.print(f"page: {html}", markup=False, soft_wrap=True)
    if png:
        write(png, contact_sheet(shown))
        console.print(f"contact sheet: {png}", markup=False, soft_wrap=True)
    record.write(json_file, {"splits": found})


def show(name: str, said: dict[str, Any]) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    settings = ", ".join(f"{key} {value}" for key, value in said["settings"].items())
    mean = said["bytes"] / max(said["samples"], 1)
    line(f"{name}: {said['samples']:,} samples in {said['shards']} shards, {mean:,.0f} bytes a sample")
    line(f"  {settings}")
    for key, label in (("width_px", "width"), ("height_px", "height"), ("sample_bytes", "bytes")):
        one = said[key]
        if one["min"] is not None:
            line(f"  {label:<7} {bars(one['counts'])} {one['min']:,} to {one['max']:,}, median {one['median']:,.0f}")
    counts = [entry["samples"] for entry in said["classes"]]
    line(f"  {len(counts):,} classes of {min(counts, default=0):,} to {max(counts, default=0):,} samples")
    for entry in said["classes"][:CLASSES_SHOWN]:
        line(f"    {entry['label']:>4} {entry['name']}: {entry['samples']:,}")
    if len(counts) > CLASSES_SHOWN:
        line(f"    … and {len(counts) - CLASSES_SHOWN} more (all of them with --json)")


def bars(counts: list[int]) -> str:
    tallest = max(counts, default=0) or 1
    return "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // tallest)] for count in counts)
