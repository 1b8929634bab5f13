"""How far a run is and what it has measured: plain numbers, all of which travel in the checkpoint."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from feedline.train.distributed import World

TRAINING = ("next", "compute", "own")
"""Laps of the loop itself, without evaluation and checkpoints."""


@dataclass(kw_only=True)
class Progress:
    epoch: int = 0
    """Whole epochs done; also the number of the one under way, from 0."""
    samples: int = 0
    """Delivered in the epoch under way, over all ranks."""
    step: int = 0
    """Optimiser steps taken in all."""
    trained_samples: int = 0
    """Samples learned from in all, over all ranks and epochs."""
    elapsed_s: float = 0.0
    """Of training, evaluation and checkpoints, over all resumed parts of the run."""
    checkpoint_s: float = 0.0
    """Share of `elapsed_s` spent writing checkpoints."""
    best_top1: float | None = None
    """Of the run's best.pt."""
    time_to_target_s: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """One entry per epoch, the last of which may be a part of one: the record's `epochs`."""
    loss_sum: float = 0.0
    """Over `loss_samples` samples of the epoch under way, as far as they have been added up over the ranks."""
    loss_samples: int = 0
    logged_loss_sum: float = 0.0
    """The part of `loss_sum` that has been in a log line."""
    logged_loss_samples: int = 0
    epoch_s: float = 0.0
    """Of the epoch under way, without evaluation and checkpoints."""
    epoch_wait_s: float = 0.0
    """Of this in which the loop was blocked on the next batch, mean over the ranks."""

    @property
    def reached_top1(self) -> float | None:
        """The best of all epochs, also of those whose checkpoints another run has, or nobody any more."""
        return max((entry["top1"] for entry in self.history if entry["top1"] is not None), default=None)

    def check(self) -> None:
        """Raises ValueError where a run could not have come to this."""
        for name in ("epoch", "samples", "step", "trained_samples"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}")

    def begin_epoch(self) -> None:
        self.samples = 0
        self.loss_sum = self.logged_loss_sum = self.epoch_s = self.epoch_wait_s = 0.0
        self.loss_samples = self.logged_loss_samples = 0


class LossSum:
    """Adds up losses on the device, so that no step has to wait for the number; `collect` joins the ranks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
        self._samples = torch.zeros((), dtype=torch.int64, device=world.device)

    def add(self, loss_sum: Tensor, labels_N: Tensor) -> None:
        """`loss_sum` over the samples whose label is not −1."""
        self._loss_sum += loss_sum.detach()
        self._samples += (labels_N >= 0).sum()

    def collect(self, progress: Progress) -> None:
        """Moves what has been added up so far, on all ranks, to `progress`. Every rank must call it."""
        loss_sum, samples = self._world.sum(torch.stack([self._loss_sum, self._samples.double()])).tolist()
        self._loss_sum.zero_()
        self._samples.zero_()
        progress.loss_sum += loss_sum
        progress.loss_samples += int(samples)
        progress.trained_samples += int(samples)


class Laps:
    """Where the loop's time goes: each lap's time since the one before belongs to its name, and to the clocks that
    travel in the checkpoint. About 0.3 µs each."""

    def __init__(self, progress: Progress) -> None:
        self.total_s: dict[str, float] = dict.fromkeys((*TRAINING, "checkpoint", "evaluate"), 0.0)
        self._progress = progress
        self._last_s = time.perf_counter()

    def lap(self, name: str) -> None:
        now_s = time.perf_counter()
        spent_s, self._last_s = now_s - self._last_s, now_s
        self.total_s[name] += spent_s
        self._progress.elapsed_s += spent_s
        if name in TRAINING:
            self._progress.epoch_s += spent_s
        elif name == "checkpoint":
            self._progress.checkpoint_s += spent_s

    def training_s(self) -> float:
        return sum(self.total_s[name] for name in TRAINING)
