"""The settings of a training run: one frozen object, checked where it is made. Imports nothing heavy.

The field docstrings are the command line's help (`cli.options` reads them), so they are written for users.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from feedline.pipeline.base.errors import UsageError

Amp = Literal["auto", "none", "bf16", "fp16"]
Policy = Literal["drop", "pad", "wrap"]
OnBad = Literal["raise", "skip", "replace"]
MOST = 10**9
"""No number of a run is larger: torch takes no infinity, and counts threads and samples in 32 bits."""


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

    model: str = "mobilenet_v2"
    """mobilenet_v2, small_cnn, resnet18, resnet50 or any torchvision classification model by name."""
    widths: tuple[int, int] = (6, 16)
    """Channels of the small CNN's two convolutions."""
    epochs: int = 10
    """Passes over the train split."""
    batch_size: int = 64
    """Samples per rank and forward pass."""
    global_batch: int | None = None
    """Samples per optimiser step over all ranks; sets --batch-size, so that any number of ranks trains alike."""
    accumulate: int = 1
    """Forward passes per optimiser step."""
    image_size: int = 224
    """Side of the training images, in pixels."""
    progressive: tuple[tuple[int, int], ...] = ()
    """Image size by epoch, as EPOCH:SIZE,EPOCH:SIZE…: from that epoch on."""

    lr: float | None = None
    """Peak learning rate; default: 0.1 (small_cnn: 0.05) per 256 samples of the global batch."""
    scale_lr: int | None = None
    """Take --lr as meant for this global batch and scale it linearly to the real one."""
    momentum: float = 0.9
    """Of SGD with Nesterov's step."""
    weight_decay: float = 5e-5
    """Not applied to norms and biases."""
    warmup_epochs: float = 0.5
    """Linear warm-up, then a cosine to 0."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    clip_norm: float | None = None
    """Clip the gradient to this norm."""
    ema_decay: float | None = None
    """Keep a moving average of the weights with this decay; evaluation then uses it."""

    amp: Amp = "auto"
    """Autocast: bf16 on CUDA and none on a CPU by default."""
    channels_last: bool = True
    """Keep activations as NHWC in memory, which is how the batches arrive."""
    compile: bool = False
    """Run the model through torch.compile."""
    sync_bn: bool = False
    """Synchronise batch norm over the ranks."""
    device: str = "auto"
    """cpu, cuda, or auto: CUDA where there is one."""
    threads: int | None = None
    """CPU threads of this rank's model; default: the cores, shared by the ranks of this host."""
    deterministic: bool = False
    """Refuse operations that are not reproducible bit by bit (on CUDA: warn about them)."""
    timeout_s: float = 300.0
    """How long ranks wait for each other before they give up."""

    num_workers: int | None = None
    """Loader processes per rank; default: one per core left by the model's ranks, at most 8."""
    prefetch_factor: int = 2
    """Batches each worker prepares ahead."""
    policy: Policy = "drop"
    """What becomes of an incomplete last batch: drop it, pad it (padding is not learned from) or wrap around."""
    on_bad: OnBad = "raise"
    """What becomes of an unreadable sample."""
    augment: bool = True
    """Random resized crops and flips; without, training sees the same images as evaluation."""
    flip: bool = True
    """Mirror half of the training images."""
    crop_scale: tuple[float, float] = (0.25, 1.0)
    """Area share of the random crop, from and to."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Channel means for normalisation, of 1."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Channel deviations for normalisation, of 1."""
    seed: int = 0
    """Of the weights, the order, the augmentation and dropout."""

    eval_every: int = 1
    """Evaluate every so many epochs, and after the last; 0: never."""
    eval_batch_size: int | None = None
    """Samples per rank and evaluation batch; default: the training batch size."""
    eval_ratio: float = 0.875
    """Side of the evaluation's centre crop by the resized short side."""
    target_top1: float | None = None
    """Stop at this validation accuracy (0 to 1) and record the time it took."""
    steps: int | None = None
    """Stop after so many optimiser steps in all."""

    checkpoint_every: int = 0
    """Checkpoint every so many optimiser steps, besides the end of every epoch."""
    keep_last: int = 3
    """Checkpoints to keep besides the best and the named ones; 0 writes none."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose checkpoint is kept for good, as 0,5,20; 0 is the initial weights."""
    log_every: int = 10
    """Optimiser steps between log lines."""
    tensorboard: bool = True
    """Write TensorBoard files too."""

    def __post_init__(self) -> None:
        self._check(
            lambda value: 1 <= value <= MOST, f"must be from 1 to {MOST:,}",
            *("epochs", "batch_size", "accumulate", "prefetch_factor", "log_every", "global_batch", "threads",
              "scale_lr", "eval_batch_size", "steps"),
        )  # fmt: skip
        self._check(
            lambda value: 0 <= value <= MOST, f"must be from 0 to {MOST:,}",
            *("num_workers", "warmup_epochs", "eval_every", "checkpoint_every", "keep_last", "weight_decay",
              "momentum"),
        )  # fmt: skip
        self._check(lambda px: 8 <= px <= MOST, f"must be from 8 to {MOST:,}", "image_size")
        self._check(lambda x: 0 < x <= MOST, f"must be above 0, up to {MOST:,}", "lr", "clip_norm", "timeout_s")
        self._check(lambda share: 0 <= share <= 1, "must be from 0 to 1",
                    "label_smoothing", "ema_decay", "target_top1", "eval_ratio")  # fmt: skip
        self._check(lambda both: all(1 <= n <= MOST for n in both), f"both must be from 1 to {MOST:,}", "widths")
        self._check(lambda sizes: all(a[0] < b[0] for a, b in pairwise(sizes)), "epochs must rise", "progressive")
        self._check(lambda sizes: all(epoch >= 0 and px >= 8 for epoch, px in sizes),
                    "EPOCH is at least 0 and SIZE at least 8", "progressive")  # fmt: skip
        self._check(lambda epochs: all(0 <= epoch <= self.epochs for epoch in epochs),
                    f"the run has epochs 0 to {self.epochs}", "keep_epochs")  # fmt: skip
        self._check(lambda area: 0 < area[0] <= area[1] <= 1,
                    "give two shares of the area, 0 < from <= to <= 1", "crop_scale")  # fmt: skip
        self._check(lambda mean: all(abs(x) <= MOST for x in mean), "give three numbers, as shares of 1", "mean")
        self._check(lambda std: all(0 < x <= MOST for x in std), "deviations are above 0", "std")
        self._check(lambda seed: 0 <= seed < 1 << 63, "must be from 0 to 2^63 - 1", "seed")
        self._check(re.compile(r"auto|cpu|cuda(:\d{1,3})?").fullmatch, "known are cpu, cuda and auto", "device")

    def _check(self, fits: Callable[[Any], object], rule: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise UsageError(f"--{name.replace('_', '-')} {value!r}: {rule}")

    def image_size_at(self, epoch: int) -> int:
        """Side in pixels of the training images of `epoch`."""
        return next((size for first, size in reversed(self.progressive) if epoch >= first), self.image_size)
