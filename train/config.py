"""The settings of a training run: one frozen object, checked where it is made. Imports nothing heavy.

The field docstrings are the command line's help (`cli.options` reads them), so they are written for users.
"""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import (
    BATCH_SIZE,
    IMAGE_SIZE,
    IMAGENET_MEAN,
    IMAGENET_STD,
    MOST,
    MOST_THREADS,
    PREFETCH,
    TINY,
    OnBad,
    Policy,
    check_limits,
    limited,
)

Amp = Literal["auto", "none", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    dataset: Path
    """Prepared dataset: a folder with train/ and val/."""
    run: Path | None = None
    """Folder for logs and checkpoints; default runs/MODEL-TIME. Under torchrun write --run-dir."""
    resume: str | None = None
    """A checkpoint file, or `auto`: the newest good one in the run folder, from the start where there is none."""
    init: Path | None = None
    """Start from the weights of this checkpoint and nothing else (fine-tuning, late resetting)."""
    rewind: Path | None = None
    """Begin as this checkpoint of a kept epoch left off: weights, statistics, moving average, schedule, order."""
    rewind_optimizer: bool = True
    """With --rewind: the optimiser's momentum as kept; without, it begins empty."""
    mask: Path | None = None
    """Hold the weights that this file by `feedline prune` leaves out at zero."""

    model: str = "mobilenet_v2"
    """mobilenet_v2, small_cnn, resnet18, resnet50 or any torchvision classification model by name."""
    widths: tuple[int, int] = limited((6, 16), 1)
    """Channels of the small CNN's two convolutions."""
    classes: int | None = limited(None, 2)
    """Train on so many of the classes, drawn by --subset-seed and numbered anew; default: all."""
    samples: int | None = limited(None, 1)
    """Train on so many of the training samples (of these classes), drawn likewise; default: all."""
    subset_seed: int = limited(0, 0, (1 << 63) - 1)
    """Of --classes and --samples, and apart from --seed: runs with other seeds see the same."""
    epochs: int = limited(10, 1)
    """Passes over the train split."""
    batch_size: int = limited(BATCH_SIZE, 1)
    """Samples per rank and forward pass."""
    global_batch: int | None = limited(None, 1)
    """Samples per optimiser step over all ranks; sets --batch-size, so that any number of ranks trains alike."""
    accumulate: int = limited(1, 1)
    """Forward passes per optimiser step."""
    image_size: int = limited(IMAGE_SIZE, 8)
    """Side of the training images, in pixels."""
    progressive: tuple[tuple[int, int], ...] = ()
    """Image size by epoch, as EPOCH:SIZE,EPOCH:SIZE…: from that epoch on."""

    lr: float | None = limited(None, TINY)
    """Peak learning rate; default: 0.1 (small_cnn: 0.05) per 256 samples of the global batch."""
    scale_lr: int | None = limited(None, 1)
    """Take --lr as meant for this global batch and scale it linearly to the real one."""
    momentum: float = limited(0.9, 0)
    """Of SGD with Nesterov's step."""
    weight_decay: float = limited(5e-5, 0)
    """Not applied to norms and biases."""
    warmup_epochs: float = limited(0.5, 0)
    """Linear warm-up, then a cosine to 0."""
    label_smoothing: float = limited(0.0, 0, 1)
    """Share of the target spread over all classes."""
    clip_norm: float | None = limited(None, TINY)
    """Clip the gradient to this norm."""
    ema_decay: float | None = limited(None, 0, 1)
    """Keep a moving average of the weights with this decay; evaluation then uses it."""

    amp: Amp = "auto"
    """Autocast: bf16 on a GPU that computes in it, none elsewhere by default."""
    channels_last: bool = True
    """Keep activations as NHWC in memory, which is how the batches arrive."""
    compile: bool = False
    """Run the model through torch.compile."""
    sync_bn: bool = False
    """Synchronise batch norm over the ranks."""
    device: str = "auto"
    """cpu, cuda, or auto: CUDA where there is one."""
    threads: int | None = limited(None, 1, MOST_THREADS)
    """CPU threads of this rank's model; default: the cores, shared by the ranks of this host."""
    deterministic: bool = False
    """Refuse operations that are not reproducible bit by bit (on CUDA: warn about them)."""
    timeout_s: float = limited(300.0, TINY)
    """How long ranks wait for each other before they give up."""

    num_workers: int | Literal["auto"] | None = limited(None, 0, words=("auto",))
    """Loader processes per rank, or auto: as many as it is worth, at most one per core; default: one per core of the
    rank, half of that without a GPU, at most 8."""
    prefetch_factor: int = limited(PREFETCH, 1)
    """Batches each worker prepares ahead."""
    window_shards: int | None = limited(None, 0)
    """Read shards in sequence and mix within so many at a time, for storage on which random reads are slow; 0: full
    random order, the default on disks."""
    policy: Policy = "drop"
    """What becomes of an incomplete last batch: drop it, pad it (padding is not learned from; with several ranks
    batch norm sees it) or wrap around."""
    on_bad: OnBad = "raise"
    """What becomes of an unreadable sample."""
    augment: bool = True
    """Random resized crops and flips; without, training sees the same images as evaluation."""
    flip: bool = True
    """Mirror half of the training images."""
    crop_scale: tuple[float, float] = limited((0.25, 1.0), TINY, 1)
    """Area share of the random crop, from and to."""
    mean: tuple[float, float, float] = limited(IMAGENET_MEAN, -MOST)
    """Channel means for normalisation, of 1."""
    std: tuple[float, float, float] = limited(IMAGENET_STD, TINY)
    """Channel deviations for normalisation, of 1."""
    seed: int = limited(0, 0, (1 << 63) - 1)
    """Of the weights, the order, the augmentation and dropout."""

    eval_every: int = limited(1, 0)
    """Evaluate every so many epochs, and after the last; 0: never."""
    eval_batch_size: int | None = limited(None, 1)
    """Samples per rank and evaluation batch; default: the training batch size."""
    eval_ratio: float = limited(0.875, TINY, 1)
    """Side of the evaluation's centre crop by the resized short side."""
    target_top1: float | None = limited(None, 0, 1)
    """Stop at this validation accuracy (0 to 1) and record the time it took."""
    steps: int | None = limited(None, 1)
    """Stop after so many optimiser steps in all."""

    checkpoint_every: int = limited(0, 0)
    """Checkpoint every so many optimiser steps, besides the end of every epoch."""
    keep_last: int = limited(3, 0)
    """Checkpoints to keep besides the best and the named ones; 0 writes none."""
    keep_epochs: tuple[int, ...] = limited((), 0)
    """Epochs whose checkpoint is kept for good, as 0,5,20; 0 is the initial weights. What `prune` rewinds to."""
    log_every: int = limited(10, 1)
    """Optimiser steps between log lines."""
    tensorboard: bool = True
    """Write TensorBoard files too."""

    def __post_init__(self) -> None:
        check_limits(self)
        firsts = [first for first, _ in self.progressive]
        rules = {
            "progressive": (
                firsts == sorted({*firsts}) and all(first >= 0 and px >= 8 for first, px in self.progressive),
                "epochs must rise from 0 or more, sizes are at least 8",
            ),
            "keep_epochs": (
                all(epoch <= self.epochs for epoch in self.keep_epochs),
                f"the run has epochs 0 to {self.epochs}",
            ),
            "keep_last": (
                self.keep_last or not (self.keep_epochs or self.checkpoint_every),
                "0 writes no checkpoints, --keep-epochs or --checkpoint-every asks for some",
            ),
            "target_top1": (self.target_top1 is None or self.eval_every, "--eval-every 0 never measures it"),
            "rewind": (not (self.rewind and self.init), "--init says otherwise where to begin"),
            "crop_scale": (self.crop_scale[0] <= self.crop_scale[1], "give two shares of the area, from and to"),
            "device": (re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device), "known are cpu, cuda and auto"),
        }
        for name, (fits, rule) in rules.items():
            if not fits:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)!r}: {rule}")

    def image_size_at(self, epoch: int) -> int:
        """Side in pixels of the training images of `epoch`."""
        return next((size for first, size in reversed(self.progressive) if epoch >= first), self.image_size)


CHECKPOINTS = "checkpoints"
"""The folder of a run that holds them."""


def is_run(place: Path) -> bool:
    """Whether it is a run's folder with checkpoints in it, or one of these."""
    checkpoint = place.is_file() and (place.suffix == ".pt" or zipfile.is_zipfile(place))  # as torch.save writes them
    return checkpoint or (place / CHECKPOINTS).is_dir()


FREE_TO_CHANGE = frozenset(
    ("dataset", "run", "resume", "rewind", "rewind_optimizer", "num_workers", "prefetch_factor", "log_every",
     "tensorboard", "threads", "timeout_s", "device", "eval_every", "eval_batch_size", "checkpoint_every",
     "keep_last", "keep_epochs", "target_top1", "steps", "compile")
)  # fmt: skip
"""Settings that do not change what is learned; a resumed run says so when it differs in any other."""
