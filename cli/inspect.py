"""`feedline inspect OUT`: what is inside a prepared dataset."""

from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import OUTPUT, HtmlFile, Record, console, write
from feedline.cli.options import command

BLOCKS = " ▁▂▃▄▅▆▇█"
CLASSES_SHOWN = 10


@command
def inspect(
    out: Annotated[Path, typer.Argument(help="A prepared dataset, or one split of it.")],
    record: Record,
    html: HtmlFile = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a contact sheet."), OUTPUT] = None,
    samples: Annotated[int, typer.Option(help="Samples on page and sheet.", min=1, max=2000)] = 48,
    seed: Annotated[int, typer.Option(help="Which samples.", min=0)] = 0,
) -> None:
    """Show classes, histograms of sizes and bytes, and a contact sheet of samples.

    Example: feedline inspect OUT --html sheet.html
    """
    from feedline.preprocess.inspect import contact_sheet, page, thumbnails
    from feedline.preprocess.inspect import inspect as look

    splits = look(out)
    for name, split in splits.items():
        show_split(name, split)
    shown = thumbnails(out, samples, seed) if html or png else []
    if html:
        write(html, page(str(out), splits, shown))
        console.print(f"page: {html}")
    if png:
        write(png, contact_sheet(shown))
        console.print(f"contact sheet: {png}")
    record.write({"splits": splits})


def show_split(name: str, split: dict[str, Any]) -> None:
    mean = split["bytes"] / max(split["samples"], 1)
    console.print(f"{name}: {split['samples']:,} samples in {split['shards']} shards, {mean:,.0f} bytes a sample")
    console.print("  " + ", ".join(f"{key} {value}" for key, value in split["settings"].items()))
    for key, label in (("width_px", "width"), ("height_px", "height"), ("sample_bytes", "bytes")):
        values = split[key]
        if values["min"] is not None:
            spread = f"{values['min']:,} to {values['max']:,}, median {values['median']:,.0f}"
            console.print(f"  {label:<7} {bars(values['counts'])} {spread}")
    classes = split["classes"]
    counts = [entry["samples"] for entry in classes]
    console.print(f"  {len(counts):,} classes of {min(counts, default=0):,} to {max(counts, default=0):,} samples")
    for entry in classes[:CLASSES_SHOWN]:
        console.print(f"    {entry['label']:>4} {entry['name']}: {entry['samples']:,}")
    if len(classes) > CLASSES_SHOWN:
        console.print(f"    … and {len(classes) - CLASSES_SHOWN} more (all of them with --json)")


def bars(counts: list[int]) -> str:
    tallest = max(counts, default=0) or 1
    return "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // tallest)] for count in counts)
