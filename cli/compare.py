"""`feedline compare`: which settings, and by how much."""

from pathlib import Path
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
        hint=str | None,
        default=axis.default,
        more={"help": axis.help.format(codecs=CODECS)},
    )
    for name, axis in AXES.items()
)  # fmt: skip
OPTIONS = fields("benchmarks.compare.CompareConfig", "rounds", "window_s", window_s={"flags": ("--window",)})
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
    from feedline.benchmarks.commands import check_work
    from feedline.benchmarks.compare import CompareConfig
    from feedline.benchmarks.compare import run as measure_all
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.pages import compare_page
    from feedline.benchmarks.statement import record_of
    from feedline.benchmarks.variants import splits_of

    grid = Grid.parse(asked)
    axes = grid.axes
    with progress("compare", "windows") as advance:
        device = check_devices(axes.get("devices", [1]), device, axes.get("model", []), axes.get("pin_memory", []))
        check_work(work)
        splits = splits_of(grid.cells(), dataset, work, stderr.print)
        config = CompareConfig(grid=grid, splits=splits, common={"device": device}, **options)
        with Bench() as bench:
            windows = measure_all(config, work / f"compare-{config.identity}.jsonl", bench.measure, advance)
    result = record_of(windows)
    show(compare_page(result), html)
    record.write(result)
