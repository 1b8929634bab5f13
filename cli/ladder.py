"""`feedline ladder`: one script, climbed from as it is to where its data is as good as free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, progress, stderr, write
from feedline.cli.options import Settings, command, fields

CONTEXT = {"allow_interspersed_args": False}
"""Options end at the script's name: what follows is the script's own."""
BAR_CELLS = 20
TABLE_CELLS = 116


OPTIONS = fields(
    "benchmarks.ladder.LadderConfig",
    *("source", "work", "profiled", "prepared", "num_workers", "size_px", "rounds", "window_s"),
    num_workers={"min": 1},
    size_px={"flags": ("--size",), "min": 16},
    rounds={"min": 2},
    window_s={"flags": ("--window",), "min": 0.2, "max": 3600},
)


@command
def ladder(
    options: Annotated[Settings, OPTIONS],
    script: Annotated[
        list[str] | None, typer.Argument(metavar="[SCRIPT ARGS…]", help="Your training script; else an example.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the ladder as a page.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Profile a script, predict what each remedy gives, apply it, measure it: up to the ceiling.

    Example: feedline ladder /data/photos train.py --data /data/photos --epochs 1
    """
    from feedline.benchmarks.ladder import LadderConfig, ascend

    record = Record("ladder", json_file, html)
    config = LadderConfig(argv=script or [], **options)
    with progress("ladder", "windows") as advance:
        found = ascend(config, lambda line: stderr.print(line, markup=False, soft_wrap=True), advance)
    show(found)
    if html is not None:
        write_page(html, found)
    record.write(json_file, found)


def show(record: Mapping[str, Any]) -> None:
    """The rungs as a table and the sentence they make."""
    from rich.console import Console
    from rich.table import Table

    from feedline.benchmarks.pages import LADDER_HEADERS, ladder_rows, ladder_story

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rung", no_wrap=True)
    table.add_column("", no_wrap=True, width=BAR_CELLS)
    for name in LADDER_HEADERS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    rates = [*(rung["samples_per_s"] for rung in record["rungs"]), record["ceiling_samples_per_s"]]
    for rate, (name, *cells) in zip(rates, ladder_rows(record), strict=True):
        table.add_row(name, bar(rate / max(rates)), *cells)
    # In a pipe or a narrow window the lines stay whole: a folded table is none.
    Console(width=max(console.width, TABLE_CELLS), highlight=False).print(table)
    console.print(ladder_story(record), markup=False, soft_wrap=True)


def bar(share: float) -> str:
    eighths = round(share * BAR_CELLS * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def write_page(path: Path, record: Mapping[str, Any]) -> None:
    from feedline.benchmarks.pages import ladder_section
    from feedline.profiling.render.html import document
    from feedline.profiling.render.sections import Page

    write(path, document(Page(title="The ladder", sections=[ladder_section(record)])))
