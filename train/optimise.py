"""What happens to the weights: which of them decay, the rate of each step, their moving average."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feedline.train.config import TrainConfig

LR_BATCH = 256
USUAL_LR = 0.1
DEFAULT_LR = {"small_cnn": 0.05}
"""Per LR_BATCH samples. Without batch norm the usual rate kills the small CNN's rectifiers within an epoch."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up from 0, then a cosine to 0. Progress is counted in epochs, a fraction inside one.

    A pure function of progress: nothing to save, and the same curve for any number of ranks.
    """

    peak_lr: float
    warmup_epochs: float
    epochs: float

    def lr(self, progress_epochs: float) -> float:
        """The rate for the step that starts at `progress_epochs`."""
        if progress_epochs < self.warmup_epochs:
            return self.peak_lr * progress_epochs / self.warmup_epochs
        span = max(self.epochs - self.warmup_epochs, 1e-9)
        share = min((progress_epochs - self.warmup_epochs) / span, 1.0)
        return self.peak_lr * 0.5 * (1 + math.cos(math.pi * share))


def build_schedule(config: TrainConfig, global_batch: int) -> Schedule:
    """The configured peak, or the default for the model scaled to the global batch (linear rule)."""
    lr, meant_for = config.lr, config.scale_lr
    if lr is None:
        lr, meant_for = DEFAULT_LR.get(config.model, USUAL_LR), LR_BATCH
    scale = global_batch / meant_for if meant_for else 1.0
    warmup_epochs = min(config.warmup_epochs, config.epochs / 2)
    return Schedule(peak_lr=lr * scale, warmup_epochs=warmup_epochs, epochs=config.epochs)


def build_optimizer(model: nn.Module, config: TrainConfig, lr: float) -> torch.optim.Optimizer:
    groups = parameter_groups(model, config.weight_decay)
    return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, nesterov=config.momentum > 0)


def take_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """What another one has gathered, and its last rate; decay, momentum and the like stay as they are here."""
    ours = [{name: group[name] for name in group.keys() - {"params", "lr"}} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, ours, strict=True):
        group.update(settings)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weights with decay; norms, biases and other vectors without: shrinking those only fights the optimiser."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


class Ema:
    """`model` is the moving average of another's weights. Its buffers (batch-norm statistics) are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """`step` counts from 1. Early on the average is shorter, else it would remember the random start."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, weights = list[Tensor](self.model.parameters()), list[Tensor](model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
        copies, buffers = list[Tensor](self.model.buffers()), list[Tensor](model.buffers())
        if buffers:  # one by one they are a launch each, and MobileNetV2 has 156
            torch._foreach_copy_(copies, buffers)  # pyright: ignore[reportPrivateImportUsage]
