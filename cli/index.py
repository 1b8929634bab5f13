"""`feedline index DIR`: a manifest and an index beside WebDataset shards that others wrote."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import Record, SourceOption, console, progress, stderr
from feedline.cli.options import command, pairs
from feedline.pipeline.base.text import count_of


@command
def index(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with .tar shards, or with train/ and val/.")],
    record: Record,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the manifest and index there.")] = False,
    source_option: SourceOption = None,
) -> None:
    """Make existing WebDataset shards readable at random, without touching them: writes manifest.json, index.parquet.
    Ends with status 1 if more than one sample in a thousand is left out.

    Example: feedline index /data/shards/train
    """
    from feedline.preprocess.index_tars import index_shards
    from feedline.preprocess.prepare import DEFAULT_MAX_BAD

    options = pairs(source_option, "--source-option")
    with progress("index") as advance:
        folders = index_shards(folder, overwrite=overwrite, source_options=options, on_progress=advance)
    bad = sum(indexed["bad"] for indexed in folders.values())
    for place, indexed in folders.items():
        console.print(f"{place}: {count_of(indexed['samples'], 'sample')} in {count_of(indexed['shards'], 'shard')}")
        for why in indexed["left_out"]:
            stderr.print(f"  left out: {why}")
        if indexed["not_named"]:
            stderr.print(f"  … and {indexed['not_named']} more")
    record.write({"folders": folders})
    if bad > DEFAULT_MAX_BAD * sum(indexed["samples"] + indexed["bad"] for indexed in folders.values()):
        left = f"{count_of(bad, 'sample')} left out, more than {DEFAULT_MAX_BAD:.1%} of all"
        stderr.print(f"{left}: mend them and --overwrite, or use the rest")
        raise typer.Exit(1)
