"""What if the samples were prepared? A few hundred of the user's own, decoded, resized, re-encoded, and loaded again.

For every form (256 px JPEG, 64 px raw, the files as they are, …): bytes per sample, the CPU time to prepare one, what
it loses (PSNR of the re-encoded against the resized pixels), and the CPU time to load one for training, twice: with
feedline's loader, from real shards in a temporary folder, and with the usual PIL transforms, as the script's own
loader would. Rounds visit all forms in turn, so that a busy moment hits none alone; the median of the rounds counts.

The result is a list of plain `Trial`s for `profiling.explain.predict`. Costs about ten seconds of one core.
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedline.benchmarks.what_if_forms import Form, is_usable, prepare_form, samples_of
from feedline.pipeline.base.errors import FeedlineError
from feedline.preprocess.fingerprint import fingerprint
from feedline.preprocess.picture import Output
from feedline.profiling.record.recording import Recording, Trial

FORMS = (
    Output(codec="keep"),
    Output(codec="jpeg", size_px=256),
    Output(codec="jpeg", size_px=160),
    Output(codec="planes", size_px=256),
    Output(codec="raw", size_px=64, resize="square"),
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class WhatIfConfig:
    forms: tuple[Output, ...] = FORMS
    samples: int = 200
    """At most; spread evenly over the files that were seen."""
    image_size_px: int = 224
    """Side of what the training loop gets."""
    rounds: int = 3
    script_loader: bool = True
    """Also with the usual PIL transforms, where torchvision is installed."""


def what_if(recording: Recording, **options: Any) -> list[Trial]:
    """Trials on the samples a recording names, at the size its training loop asks for; [] where there are none."""
    config = WhatIfConfig(image_size_px=image_size(recording) or 224)
    return trials(recording.sample_paths, replace(config, **options))


def why_none(recording: Recording) -> str:
    """For a recording that gave no trials."""
    seen = len(recording.sample_paths)
    opened = f"of the {seen:,} files seen to be opened none is" if seen else "the script was not seen to open"
    return (
        f"nothing is predicted for prepared shards: {opened} an image, or a tar of them, that can be read here "
        "(LMDB, HDF5 and the like are not)"
    )


def image_size(recording: Recording) -> int | None:
    """Side of the images in the training loader's batches, NCHW or NHWC."""
    loader = recording.train_loader
    shapes = [shape for shape in (loader.batch_shapes if loader else []) if len(shape) == 4]
    if not shapes:
        return None
    _, first, middle, last = shapes[0]
    return middle if first in (1, 3) else min(first, middle) if last in (1, 3) else None


def trials(paths: Sequence[str | Path], config: WhatIfConfig | None = None) -> list[Trial]:
    """One trial per form and loader. Files that are no images (nor tars of images) are passed over."""
    config = config or WhatIfConfig()
    originals = [data for data in samples_of(paths, config.samples) if is_usable(data)]
    if not originals:
        return []
    with tempfile.TemporaryDirectory(prefix="feedline-whatif-") as folder:
        forms = [prepare_form(originals, form, Path(folder)) for form in config.forms]
        with ExitStack() as stack:
            loads = [load for form in forms for load in _loaders(form, config, stack)]
            costs = _rounds(loads, config.rounds)
    return [_trial(load, costs[index]) for index, load in enumerate(loads) if costs[index]]


# --- loading ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Load:
    """One way to load one form: calling `run` loads every sample once."""

    form: Form
    loader: str
    run: Callable[[], int]
    """Returns how many samples were loaded."""


def _loaders(form: Form, config: WhatIfConfig, stack: ExitStack) -> list[Load]:
    loads = [Load(form=form, loader="feedline", run=_with_feedline(form, config.image_size_px, stack))]
    transform = usual_transform(config.image_size_px) if config.script_loader else None
    if transform is not None and form.output.codec != "planes":
        loads.append(Load(form=form, loader="script", run=_with_pil(form, transform)))
    return loads


def _with_feedline(form: Form, size_px: int, stack: ExitStack) -> Callable[[], int]:
    """Epochs of the real loader in this process; `stack` closes it. A form it cannot read fails in the call."""
    from feedline.pipeline.loader import Loader

    loader = Loader(form.split, batch_size=min(32, len(form.members)), image_size=size_px, num_workers=0, seed=1)
    stack.callback(loader.close)
    return lambda: sum(len(labels_N) for _, labels_N in loader)


def _with_pil(form: Form, transform: Callable[[Image.Image], Any]) -> Callable[[], int]:
    def run() -> int:
        for member in form.members:
            if member.extension == "npy":
                image = Image.fromarray(np.load(io.BytesIO(member.data)))
            else:
                image = Image.open(io.BytesIO(member.data)).convert("RGB")
            transform(image)
        return len(form.members)

    return run


def usual_transform(size_px: int) -> Callable[[Image.Image], Any] | None:
    """RandomResizedCrop, flip, float, normalised; None without torchvision."""
    try:
        from torchvision import transforms
    except ImportError:
        return None
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size_px),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


# --- timing -------------------------------------------------------------------------------------------


def _rounds(loads: Sequence[Load], rounds: int) -> list[list[float]]:
    """CPU seconds per sample, by load and round; [] for a load that cannot be done. One warm-up round is left out."""
    costs: list[list[float]] = [[] for _ in loads]
    impossible: set[int] = set()
    for turn in range(rounds + 1):
        for index, load in enumerate(loads):
            if index in impossible:
                continue
            try:
                cost = _cpu_s_per_sample(load)
            except FeedlineError:
                impossible.add(index)
                costs[index] = []
                continue
            if turn:
                costs[index].append(cost)
    return costs


def _cpu_s_per_sample(load: Load, least_s: float = 0.1) -> float:
    """Over whole passes, as many as fill `least_s`: a pass over small raw samples is too short for the clock."""
    samples, started = 0, time.process_time()
    while True:
        samples += load.run()
        seconds = time.process_time() - started
        if seconds >= least_s or not samples:
            return seconds / max(samples, 1)


def _trial(load: Load, costs: Sequence[float]) -> Trial:
    form, output = load.form, load.form.output
    kept = output.codec == "keep"
    return Trial(
        codec="as-is" if kept else output.codec,
        size_px=None if kept else output.size_px,
        samples=len(form.members),
        bytes_per_sample=form.bytes_per_sample,
        load_cpu_s_per_sample=statistics.median(costs),
        load_cpu_s_spread=statistics.stdev(costs) if len(costs) > 1 else None,
        prepare_cpu_s_per_sample=None if kept else form.prepare_cpu_s,
        psnr_db=form.psnr_db,
        loader=load.loader,
        note=f"encoder {fingerprint((output,)).encoder[:12]}" if output.codec == "jpeg" else "",
    )
