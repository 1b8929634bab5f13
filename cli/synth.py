"""`feedline synth OUT`: a synthetic ImageNet."""

import time
from typing import Annotated

from feedline.cli.common import Record, console, progress
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units

OPTIONS = fields("preprocess.synth.inventory.SynthConfig")


@command
def synth(config: Annotated[Settings, OPTIONS], record: Record) -> None:
    """Make a synthetic ImageNet from eight photographs.

    Example: feedline synth /data/synthetic --images 10000 --classes 100 --oddities
    """
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth as make

    started = time.monotonic()
    with progress("synth", "images") as advance:
        done = make(SynthConfig(**config), advance)
    train, val = done["train_samples"], done["val_samples"]
    if done.get("already_complete"):
        per_s = None
        console.print(f"already there: {config['out']}")
    else:
        per_s = round((train + val) / (time.monotonic() - started), 1)
        console.print(f"{train:,} train and {val:,} val images of {count_of(config['classes'], 'class')}, "
                      f"{units.size(done['bytes'])}, {per_s:,.0f} images/s: {config['out']}")  # fmt: skip
    record.write(done | {"samples_per_s": per_s})
