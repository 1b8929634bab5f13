"""`feedline compare`: which settings, and by how much."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, progress, stderr, write
from feedline.cli.options import Settings, command, fields

Opt = typer.Option


OPTIONS = fields(
    "benchmarks.compare.CompareConfig",
    *("rounds", "window_s"),
    rounds={"min": 3},
    window_s={"flags": ("--window",), "min": 0.2, "max": 3600},
)


@command
def compare(
    dataset: Annotated[Path, typer.Argument(help="A prepared folder, or raw images to prepare shards from.")],
    options: Annotated[Settings, OPTIONS],
    num_workers: Annotated[str, Opt(help="Loader processes, as 0,1,2,4.")] = "2",
    prefetch_factor: Annotated[str | None, Opt(help="Batches under way per worker.")] = None,
    batch_size: Annotated[str, Opt(help="Samples per batch.")] = "64",
    image_size: Annotated[str, Opt(help="Side of the images handed over, px.")] = "224",
    pin_memory: Annotated[str | None, Opt(help="true,false")] = None,
    codec: Annotated[str | None, Opt(help="Shards: jpeg,planes,raw,keep.")] = None,
    size: Annotated[str | None, Opt(help="Shards: short side in px.")] = None,
    quality: Annotated[str | None, Opt(help="Shards: JPEG quality.")] = None,
    shard_size: Annotated[str | None, Opt(help="Shards: size of one, as 16MiB,64MiB.")] = None,
    shards: Annotated[str | None, Opt(help="Shards: how many per split.")] = None,
    model: Annotated[str | None, Opt(help="Also train: small_cnn,mobilenet_v2; else the loader alone.")] = None,
    devices: Annotated[
        str | None, Opt(help="With --model: GPUs that train together, as 1,2,4; processes on a CPU.")
    ] = None,
    device: Annotated[str, Opt(help="cpu, cuda or auto.")] = "auto",
    work: Annotated[Path, Opt(help="Results and shard variants are kept here; a rerun continues.")] = Path(
        "compare-out"
    ),
    html: Annotated[Path | None, Opt(help="Also write a page.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure every combination, interleaved and repeated, until they can be told apart or cannot.

    Example: feedline compare OUT --num-workers 0,1,2,4 --codec jpeg,raw
    """
    from feedline.benchmarks.grid import Grid

    given = {"num_workers": num_workers, "prefetch_factor": prefetch_factor, "batch_size": batch_size,
             "image_size": image_size, "pin_memory": pin_memory, "codec": codec, "size": size, "quality": quality,
             "shard_size": shard_size, "shards": shards, "model": model, "devices": devices}  # fmt: skip
    grid = Grid.parse(given)
    record = Record("compare", json_file, html)
    with progress("compare", "windows") as advance:
        found = run(grid, dataset, work, {"device": device}, options, advance)
    show(found)
    if html is not None:
        from feedline.benchmarks.pages import compare_page
        from feedline.profiling.render.html import document

        write(html, document(compare_page(found)))
    record.write(json_file, found)


def run(
    grid: Any, dataset: Path, work: Path, common: dict[str, Any], options: Settings, advance: Any
) -> dict[str, Any]:
    from feedline.benchmarks.commands import check_work
    from feedline.benchmarks.compare import CompareConfig
    from feedline.benchmarks.compare import run as measure_all
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.statement import record_of
    from feedline.benchmarks.variants import splits_of

    def say(line: str) -> None:
        stderr.print(line, markup=False, soft_wrap=True)

    axes = grid.axes
    device = check_devices(
        axes.get("devices", [1]), common["device"], axes.get("model", []), axes.get("pin_memory", [])
    )
    check_work(work)
    splits = splits_of(grid.cells(), dataset, work, say)
    config = CompareConfig(grid=grid, splits=splits, common={**common, "device": device}, **options)
    results = work / f"compare-{config.identity}.jsonl"
    with Bench() as bench:
        return record_of(measure_all(config, results, bench.measure, advance))


def show(record: Mapping[str, Any]) -> None:
    from rich.table import Table

    from feedline.benchmarks.pages import outcome
    from feedline.cli.ladder import BAR_CELLS, bar
    from feedline.profiling.record import units

    cells = record["cells"]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("setting", "", "samples/s", "interval", "n", "cores", ""):
        table.add_column(name, no_wrap=True, justify="left" if name in ("setting", "") else "right")
    most = max(cell["samples_per_s"] for cell in cells)
    for cell in cells:
        table.add_row(
            cell["name"],
            f"{bar(cell['samples_per_s'] / most):<{BAR_CELLS}}",
            units.number(cell["samples_per_s"]),
            units.spread(cell["low"], cell["high"]),
            str(cell["n"]),
            units.number(cell["cores_used"], 2),
            outcome(cell),
        )
    wide(table)
    console.print(record["statement"], markup=False, soft_wrap=True)


def wide(table: Any) -> None:
    """In a pipe or a narrow window the lines stay whole: a folded table is none."""
    from rich.console import Console

    Console(width=max(console.width, 116), highlight=False).print(table)
