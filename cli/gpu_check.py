"""`feedline gpu-check`: what this machine's GPU takes, what its cores deliver, and whether these feed the other."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import HtmlFile, Record, progress, show
from feedline.cli.options import Settings, command, fields

OPTIONS = fields(
    "benchmarks.gpu_check.GpuCheckConfig",
    *("models", "image_sizes", "batch_size", "num_workers", "device", "rounds", "budget_s", "window_s"),
    models={"flags": ("--model",)},
    image_sizes={"flags": ("--image-size",)},
)


@command
def gpu_check(
    options: Annotated[Settings, OPTIONS],
    record: Record,
    dataset: Annotated[Path | None, typer.Argument(help="A prepared folder; else small shards are made.")] = None,
    html: HtmlFile = None,
) -> None:
    """Does this machine feed its GPU? Its ceilings, what the cores deliver, and how many of them each codec needs.

    Example: feedline gpu-check --html gpu.html
    """
    from feedline.benchmarks.gpu_check import GpuCheckConfig, check
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.pages import gpu_check_page

    options["device"] = check_devices([1], options["device"], options["models"])
    with Bench() as bench, progress("gpu-check", "windows") as told:
        result = check(GpuCheckConfig(dataset=dataset, **options), bench.measure, told)
    show(gpu_check_page(result), html)
    record.write(result)
