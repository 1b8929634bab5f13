"""`feedline tune`: workers, prefetch and batch size for this machine, model and dataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, progress, write
from feedline.cli.options import Settings, command, fields

Opt = typer.Option


OPTIONS = fields(
    "benchmarks.tune.TuneConfig",
    *("model", "image_size", "batch_sizes", "device", "budget_s", "window_s"),
    image_size={"min": 8},
    batch_sizes={"flags": ("--batch-size",)},
    budget_s={"flags": ("--budget",), "min": 5},
    window_s={"flags": ("--window",), "min": 0.2, "max": 3600},
)


@command
def tune(
    dataset: Annotated[Path, typer.Argument(help="A prepared folder.")],
    options: Annotated[Settings, OPTIONS],
    out: Annotated[Path, Opt(help="Where the settings go; `feedline train --config FILE` takes them.")] = Path(
        "tuned.json"
    ),
    html: Annotated[Path | None, Opt(help="Also write a page with the curve it saw.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Find the settings that train fastest, within a time budget.

    Example: feedline tune OUT --model mobilenet_v2 && feedline train OUT --config tuned.json
    """
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.tune import TuneConfig, write_config
    from feedline.benchmarks.tune import tune as search
    from feedline.benchmarks.variants import find_train
    from feedline.pipeline.base.process import usable_cores

    record, split, cores = Record("tune", json_file, html, out), find_train(dataset), usable_cores()
    options["device"] = check_devices([1], options["device"], [options["model"]])
    config = TuneConfig(split=split, cores=cores, most_workers=min(16, 2 * cores), **options)
    with Bench() as bench, progress("tune", "windows") as advance:
        found = search(config, counted(bench.measure, advance))
    show(found)
    write_config(out, found, split)
    if html is not None:
        from feedline.benchmarks.pages import tune_page
        from feedline.profiling.render.html import document

        write(html, document(tune_page(found)))
    console.print(f"settings: {out}", markup=False, soft_wrap=True)
    record.write(json_file, found)


def counted(measure: Any, advance: Any) -> Any:
    done = [0]

    def counting(subject: Any) -> Any:
        window = measure(subject)
        done[0] += 1
        advance(done[0])
        return window

    return counting


def show(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    from feedline.cli.compare import wide
    from feedline.cli.ladder import bar
    from feedline.profiling.record import units

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("workers", "batch", "prefetch", "", "samples/s", "interval", "n"):
        table.add_column(name, no_wrap=True, justify="left" if not name else "right")
    most = found["tried"][0]["samples_per_s"]
    for one in found["tried"]:
        table.add_row(
            str(one["num_workers"]),
            str(one["batch_size"]),
            str(one["prefetch_factor"]),
            bar(one["samples_per_s"] / most),
            units.number(one["samples_per_s"]),
            units.spread(one["low"], one["high"]),
            str(one["n"]),
        )
    wide(table)
    console.print(found["statement"], markup=False, soft_wrap=True)
