"""`feedline inspect OUT`: what is inside a prepared dataset."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import OUTPUT, HtmlFile, Record, console, write
from feedline.cli.options import command

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
    from feedline.preprocess.inspect import contact_sheet, page, summary, thumbnails
    from feedline.preprocess.inspect import inspect as look

    splits = look(out)
    for name, split in splits.items():
        text = "\n  ".join(summary(split, CLASSES_SHOWN))
        console.print(f"{name}: {text}")
    shown = thumbnails(out, samples, seed) if html or png else []
    if html:
        write(html, page(str(out), splits, shown))
        console.print(f"page: {html}")
    if png:
        write(png, contact_sheet(shown))
        console.print(f"contact sheet: {png}")
    record.write({"splits": splits})
