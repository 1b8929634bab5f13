"""`feedline compare`: which settings, and by how much."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import HtmlFile, Record, progress, show, stderr
from feedline.cli.options import Settings, command, fields, source

Opt = typer.Option
CODECS = source("pipeline.codecs.table")["NAMES"]
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
    record: Record,
    num_workers: Annotated[str, Opt(help="Loader processes, as 0,1,2,4.")] = "2",
    prefetch_factor: Annotated[str | None, Opt(help="Batches under way per worker.")] = None,
    batch_size: Annotated[str, Opt(help="Samples per batch.")] = "64",
    image_size: Annotated[str, Opt(help="Side of the images handed over, px.")] = "224",
    pin_memory: Annotated[str | None, Opt(help="true,false")] = None,
    codec: Annotated[str | None, Opt(help=f"Shards: {','.join(CODECS)}.")] = None,
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
    html: HtmlFile = None,
) -> None:
    """Measure every combination, interleaved and repeated, until they can be told apart or cannot.

    Example: feedline compare OUT --num-workers 0,1,2,4 --codec jpeg,raw
    """
    from feedline.benchmarks.commands import check_work
    from feedline.benchmarks.compare import CompareConfig
    from feedline.benchmarks.compare import run as measure_all
    from feedline.benchmarks.grid import Grid
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.pages import compare_page
    from feedline.benchmarks.statement import record_of
    from feedline.benchmarks.variants import splits_of

    grid = Grid.parse(
        {
            "num_workers": num_workers, "prefetch_factor": prefetch_factor, "batch_size": batch_size,
            "image_size": image_size, "pin_memory": pin_memory, "codec": codec, "size": size, "quality": quality,
            "shard_size": shard_size, "shards": shards, "model": model, "devices": devices,
        }
    )  # fmt: skip
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
