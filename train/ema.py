"""A moving average of the weights, which is what evaluation uses when it is on."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class Ema:
    """`model` is the average. Its buffers (batch-norm statistics) are copied, not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """`step` counts from 1. Early on the average is shorter, else it would remember the random start."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, weights = list[Tensor](self.model.parameters()), list[Tensor](model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()
