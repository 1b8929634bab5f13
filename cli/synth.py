"""`feedline synth OUT`: a synthetic ImageNet."""

import time
from typing import Annotated

from feedline.cli.common import JsonFile, Record, console, progress
from feedline.cli.options import Settings, command, fields

OPTIONS = fields("preprocess.synth.inventory.SynthConfig", long_side_px={"flags": ("--long-side",)})


@command
def synth(config: Annotated[Settings, OPTIONS], json_file: JsonFile = None) -> None:
    """Make a synthetic ImageNet from photographs that ship inside scikit-image and scikit-learn.

    Example: feedline synth /data/synthetic --images 10000 --classes 100 --oddities
    """
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth as make

    record = Record("synth", json_file)
    started = time.monotonic()
    with progress("synth", "images") as advance:
        done = make(SynthConfig(**config), advance)
    seconds = time.monotonic() - started
    samples = done["train_samples"] + done["val_samples"]
    if done.get("already_complete"):
        console.print(f"already there: {config['out']}", markup=False, soft_wrap=True)
    else:
        console.print(
            f"{done['train_samples']:,} train and {done['val_samples']:,} val images of {config['classes']} classes, "
            f"{done['bytes'] / 2**20:.1f} MiB, {samples / seconds:,.0f} images/s: {config['out']}",
            markup=False,
            soft_wrap=True,
        )
    record.write(json_file, done | {"samples_per_s": round(samples / seconds, 1)})
