"""`feedline inspect OUT`: what is inside a prepared dataset."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import JsonFile, Record, console, write

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
    from feedline.preprocess.inspect import contact_sheet, page, summary, thumbnails
    from feedline.preprocess.inspect import inspect as look

    record = Record("inspect", json_file, html, png)
    splits = look(out)
    for name, split in splits.items():
        text = "\n  ".join(summary(split, CLASSES_SHOWN))
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    shown = thumbnails(out, samples, seed) if html or png else []
    if html:
        write(html, page(str(out), splits, shown))
        console.print(f"page: {html}", markup=False, soft_wrap=True)
    if png:
        write(png, contact_sheet(shown))
        console.print(f"contact sheet: {png}", markup=False, soft_wrap=True)
    record.write(json_file, {"splits": splits})
