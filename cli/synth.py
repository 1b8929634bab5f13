"""`feedline synth OUT`: a synthetic ImageNet."""

import time
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import JsonFile, Record, console, progress

Opt = typer.Option


def synth(
    out: Annotated[Path, typer.Argument(help="Folder that becomes the dataset.")],
    images: Annotated[int, Opt("--images", help="Images in all, train and val together.")] = 2_000,
    classes: Annotated[int, Opt("--classes", help="Classes.")] = 10,
    layout: Annotated[
        str,
        Opt("--layout", help="ilsvrc: the three archives as published; folder: train/ and val/ of class folders."),
    ] = "ilsvrc",
    oddities: Annotated[
        bool, Opt("--oddities", help="Also CMYK, PNG named .JPEG, grey, EXIF, truncated and empty files.")
    ] = False,
    seed: Annotated[int, Opt("--seed", help="The same seed gives the same bytes.")] = 0,
    val_fraction: Annotated[float, Opt("--val-fraction", help="Share of the images that are val.")] = 0.1,
    long_side: Annotated[int, Opt("--long-side", help="Pixels of the usual long side; ImageNet's is 500.")] = 500,
    num_workers: Annotated[
        int | None, Opt("--num-workers", help="Processes that draw (one per core); never changes the result.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Make a synthetic ImageNet from photographs that ship inside scikit-image and scikit-learn.

    Example: feedline synth /data/synthetic --images 10000 --classes 100 --oddities
    """
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth as make

    record = Record("synth", json_file)
    config = SynthConfig(
        out=str(out),
        images=images,
        classes=classes,
        layout=layout,  # pyright: ignore[reportArgumentType] - it checks
        oddities=oddities,
        seed=seed,
        val_fraction=val_fraction,
        long_side_px=long_side,
        num_workers=num_workers,
    )
    started = time.monotonic()
    with progress("synth", "images") as advance:
        said = make(config, advance)
    seconds = time.monotonic() - started
    samples = said["train_samples"] + said["val_samples"]
    if said.get("already_complete"):
        console.print(f"already there: {out}", markup=False, soft_wrap=True)
    else:
        console.print(
            f"{said['train_samples']:,} train and {said['val_samples']:,} val images of {classes} classes, "
            f"{said['bytes'] / 2**20:.1f} MiB, {samples / seconds:,.0f} images/s: {out}",
            markup=False,
            soft_wrap=True,
        )
    record.write(json_file, said | {"samples_per_s": round(samples / seconds, 1)})
