"""What a training run is told: one frozen object, checked where it is made. Imports nothing heavy.

The field docstrings are the command line's help (`cli.options` reads them), so they are written for users.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

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
        self._check_at_least(1, "epochs", "batch_size", "accumulate", "prefetch_factor", "log_every")
        self._check_at_least(1, "global_batch", "threads", "scale_lr", "eval_batch_size", "steps")
        self._check_at_least(0, "num_workers", "warmup_epochs", "eval_every", "checkpoint_every", "keep_last")
        self._check_at_least(0, "weight_decay", "momentum")
        self._check_above_zero("lr", "clip_norm", "timeout_s")
        self._check_share("label_smoothing", "ema_decay", "target_top1", "eval_ratio")
        self._check_at_least(8, "image_size")
        self._check_lists()

    def image_size_at(self, epoch: int) -> int:
        """Side in pixels of the training images of `epoch`."""
        return next((size for first, size in reversed(self.progressive) if epoch >= first), self.image_size)

    def _check_lists(self) -> None:
        if not all(1 <= width <= MOST for width in self.widths):
            raise UsageError(f"--widths {self.widths}: both must be from 1 to {MOST:,}")
        if any(later[0] <= earlier[0] for earlier, later in pairwise(self.progressive)):
            raise UsageError(f"--progressive {self.progressive}: epochs must rise")
        if any(first < 0 or size < 8 for first, size in self.progressive):
            raise UsageError(f"--progressive {self.progressive}: EPOCH is at least 0 and SIZE at least 8")
        if any(epoch < 0 or epoch > self.epochs for epoch in self.keep_epochs):
            raise UsageError(f"--keep-epochs {self.keep_epochs}: the run has epochs 0 to {self.epochs}")
        if not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise UsageError(f"--crop-scale {self.crop_scale}: give two shares of the area, 0 < from <= to <= 1")
        if not all(abs(mean) <= MOST for mean in self.mean):
            raise UsageError(f"--mean {self.mean}: give three numbers, as shares of 1")
        if not all(0 < deviation <= MOST for deviation in self.std):
            raise UsageError(f"--std {self.std}: deviations are above 0")
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"--seed {self.seed}: must be from 0 to 2^63 - 1")
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise UsageError(f"--device {self.device!r}: known are cpu, cuda and auto")

    def _check_at_least(self, least: int, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None and not least <= value <= MOST:
                raise UsageError(f"--{option(name)} {value}: must be from {least} to {MOST:,}")

    def _check_above_zero(self, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None and not 0 < value <= MOST:
                raise UsageError(f"--{option(name)} {value}: must be above 0, up to {MOST:,}")

    def _check_share(self, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None and not 0 <= value <= 1:
                raise UsageError(f"--{option(name)} {value}: must be from 0 to 1")


def option(field_name: str) -> str:
    """A field's name on the command line, without the dashes before it."""
    return field_name.replace("_", "-")
