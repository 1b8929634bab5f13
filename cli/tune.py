"""`feedline tune`: workers, prefetch and batch size for this machine, model and dataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, progress, write

Opt = typer.Option


def tune(
    dataset: Annotated[Path, typer.Argument(help="A prepared folder.")],
    model: Annotated[str, Opt(help="The model that will be trained.")] = "mobilenet_v2",
    image_size: Annotated[int, Opt(min=8, help="Side of the training images, px.")] = 224,
    batch_size: Annotated[str, Opt(help="Batch sizes allowed; one alone is kept.")] = "32,64,128",
    device: Annotated[str, Opt(help="cpu, cuda or auto.")] = "auto",
    budget: Annotated[float, Opt(min=5, help="Seconds to spend.")] = 60.0,
    window: Annotated[float, Opt(min=0.2, max=3600, help="Seconds measured per window.")] = 1.0,
    out: Annotated[Path, Opt(help="Where the settings go; `feedline train --config FILE` takes them.")] = Path(
        "tuned.json"
    ),
    html: Annotated[Path | None, Opt(help="Also write a page with the curve it saw.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Find the settings that train fastest, within a time budget.

    Example: feedline tune OUT --model mobilenet_v2 && feedline train OUT --config tuned.json
    """
    from feedline.benchmarks.grid import parse_values
    from feedline.benchmarks.measure.ranks import check_devices
    from feedline.benchmarks.measure.rounds import Bench
    from feedline.benchmarks.tune import TuneConfig, write_config
    from feedline.benchmarks.tune import tune as search
    from feedline.pipeline.base.process import usable_cores

    record, split, cores = Record("tune", json_file, html, out), train_split(dataset), usable_cores()
    device = check_devices([1], device, [model])
    config = TuneConfig(
        split=split, model=model, image_size=image_size, batch_sizes=tuple(parse_values(batch_size)), cores=cores,
        most_workers=min(16, 2 * cores), device=device, budget_s=budget, window_s=window,
    )  # fmt: skip
    with Bench() as bench, progress("tune", "windows") as advance:
        found = search(config, counted(bench.measure, advance))
    show(found)
    write_config(out, found, split)
    if html is not None:
        from feedline.benchmarks.tune_page import tune_page
        from feedline.profiling.render.html import document

        write(html, document(tune_page(found)))
    console.print(f"settings: {out}", markup=False, soft_wrap=True)
    record.write(json_file, found)


def train_split(dataset: Path) -> Path:
    from feedline.pipeline.base.errors import DatasetError
    from feedline.pipeline.format.manifest import prepared_splits, read_manifest

    for split in prepared_splits(dataset):
        if read_manifest(split).split == "train":
            return split
    raise DatasetError(f"{dataset} has no prepared train split: run `feedline prepare` first")


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
