"""`feedline index DIR`: a manifest and an index beside WebDataset shards that others wrote."""

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import JsonFile, Record, console, progress, stderr
from feedline.cli.options import values


def index(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with .tar shards, or with train/ and val/.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the manifest and index there.")] = False,
    source_option: Annotated[
        list[str] | None,
        typer.Option("--source-option", metavar="KEY=VALUE", help="image_column=jpg, label_column=cls, labels=words"),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Make existing WebDataset shards readable at random, without touching them: writes manifest.json, index.parquet.

    Example: feedline index /data/shards/train
    """
    from feedline.preprocess.index_tars import index_shards

    record = Record("index", json_file)
    with progress("index") as advance:
        options = values(source_option, "--source-option")
        found = index_shards(folder, overwrite=overwrite, source_options=options, on_progress=advance)
    for place, said in found.items():
        console.print(
            f"{place}: {said['samples']:,} samples in {said['shards']} shards", markup=False, soft_wrap=True
        )
        for why in said["left_out"]:
            stderr.print(f"  left out: {why}", markup=False, soft_wrap=True)
        if said["bad"] > len(said["left_out"]):
            stderr.print(f"  … and {said['bad'] - len(said['left_out'])} more")
    record.write(json_file, {"folders": found})
