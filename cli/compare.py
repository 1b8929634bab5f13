"""`feedline compare`: which settings, and by how much."""

from pathlib import Path
from types import GenericAlias
from typing import Annotated

import typer

from feedline.benchmarks.grid import AXES, Grid, flag
from feedline.cli.common import HtmlFile, Record, progress, show, stderr
from feedline.cli.options import Option, Options, Settings, command, fields, source

CODECS = ",".join(source("pipeline.codecs.table")["NAMES"])
AXIS_OPTIONS = Options(
    Option(
        field=name,
        flags=(flag(name),),
        hint=GenericAlias(tuple, (axis.kind, ...)),
        default=None if axis.default is None else (axis.default,),
        commas=True,
        more={"help": axis.help.format(codecs=CODECS)},
    )
    for name, axis in AXES.items()
)  # fmt: skip
OPTIONS = fields("benchmarks.comparison.CompareConfig", "rounds", "window_s")
WorkFolder = Annotated[Path, typer.Option(help="Results and shard variants are kept here; a rerun continues.")]


@command
def compare(
    dataset: Annotated[Path, typer.Argument(help="A prepared folder, or raw images to prepare shards from.")],
    asked: Annotated[Settings, AXIS_OPTIONS],
    options: Annotated[Settings, OPTIONS],
    record: Record,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    work: WorkFolder = Path("compare-out"),
    html: HtmlFile = None,
) -> None:
    """Measure every combination, interleaved and repeated, until they can be told apart or cannot.

    Example: feedline compare OUT --num-workers 0,1,2,4 --codec jpeg,raw
    """
    from feedline.benchmarks.compare import compare as measure_all
    from feedline.benchmarks.pages import compare_page

    grid = Grid(axes={name: values for name, values in asked.items() if values is not None})
    with progress("compare", "windows") as advance:
        result = measure_all(
            dataset, grid, device=device, work=work, on_progress=advance, on_note=stderr.print, **options
        )
    show(compare_page(result), html)
    record.write(result)
