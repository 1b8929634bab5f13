"""`feedline tune`: the settings that train fastest on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import OUTPUT, HtmlFile, Record, console, progress, show
from feedline.cli.options import Settings, command, fields

OPTIONS = fields(
    "benchmarks.tune.TuneConfig",
    *("model", "image_size", "batch_sizes", "device", "budget_s", "window_s"),
    batch_sizes={"flags": ("--batch-size",)},
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
    from feedline.benchmarks.pages import tune_page
    from feedline.benchmarks.tune import tune as search

    with progress("tune", "windows") as advance:
        result = search(dataset, out=out, on_progress=advance, **options)
    show(tune_page(result), html)
    console.print(f"settings: {out}")
    record.write(result)
