"""`feedline tune`: the settings that train fastest on this machine."""

from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import OUTPUT, HtmlFile, Record, console, progress, show
from feedline.cli.options import Settings, command, fields

OPTIONS = fields(
    "benchmarks.tune.TuneConfig",
    *("model", "image_size", "batch_sizes", "device", "budget_s", "window_s"),
    batch_sizes={"flags": ("--batch-size",)},
    budget_s={"flags": ("--budget",)},
    window_s={"flags": ("--window",)},
)
OutFile = Annotated[
    Path, typer.Option(help="Where the settings go; `feedline train --config FILE` takes them."), OUTPUT
]


@command
def tune(
    dataset: Annotated[Path, typer.Argument(help="A prepared folder.")],
    options: Annotated[Settings, OPTIONS],
    record: Record,
    out: OutFile = Path("tuned.json"),
    html: HtmlFile = None,
) -> None:
    """Find the settings that train fastest, within a time budget.

    Example: feedline tune OUT --model mobilenet_v2 && feedline train OUT --config tuned.json
    """
    from feedline.benchmarks.measure.rounds import Bench, check_devices
    from feedline.benchmarks.pages import tune_page
    from feedline.benchmarks.storage_advice import storage_of
    from feedline.benchmarks.tune import TuneConfig, write_config
    from feedline.benchmarks.tune import tune as search
    from feedline.benchmarks.variants import find_train
    from feedline.pipeline.base.process import usable_cores

    split = find_train(dataset)
    options["device"] = check_devices([1], options["device"], [options["model"]])
    cores, done = usable_cores(), count(1)
    storage = storage_of(split).record()
    config = TuneConfig(split=split, cores=cores, most_workers=min(16, 2 * cores), **options)
    with Bench() as bench, progress("tune", "windows") as advance:

        def measure(subject: Any) -> Any:
            window = bench.measure(subject)
            advance(next(done))
            return window

        result = search(config, measure)
    result["storage"] = storage
    show(tune_page(result), html)
    write_config(out, result, split)
    console.print(f"settings: {out}")
    record.write(result)
