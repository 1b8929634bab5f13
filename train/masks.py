"""Masks: which weights of a network stay. By magnitude or at random, with exact counts; and held while it trains.

torch.nn.utils.prune renames every weight it masks, so checkpoints would fit no unmasked network, and of equal weights
it keeps any. What is needed is little: a sort, and a fill behind each optimiser step.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from feedline.train import checkpoint
from feedline.train.checkpoint import CheckpointError

Weights = Mapping[str, Tensor]
Masks = dict[str, Tensor]
"""By the parameter's name, of its shape, bool: True stays."""


def prunable(parameters: Weights, *, vectors: bool = False) -> dict[str, Tensor]:
    """Those with more than one dimension; norms and biases only with `vectors`."""
    return {name: weights for name, weights in parameters.items() if vectors or weights.ndim > 1}


def by_magnitude(weights: Weights, keep: float, *, per_layer: bool = False, among: Masks | None = None) -> Masks:
    """The largest in magnitude stay: round(keep × count) of them all or, `per_layer`, of each layer; of equal ones
    the first. `among`: only of those that these masks keep, which must be as many at least."""
    scores = {name: layer.detach().abs().float().cpu() for name, layer in weights.items()}
    for name, mask in (among or {}).items():
        scores[name] = scores[name].masked_fill(~mask, -1.0)
    masks: Masks = {}
    for names in [[name] for name in scores] if per_layer else [list(scores)]:
        scores_N = torch.cat([scores[name].flatten() for name in names])
        best_first_N = torch.argsort(scores_N, descending=True, stable=True)
        kept_N = _only(best_first_N[: round(keep * len(scores_N))], len(scores_N))
        parts = kept_N.split([scores[name].numel() for name in names])
        masks |= {name: part.view(scores[name].shape) for name, part in zip(names, parts, strict=True)}
    return masks


def at_random(masks: Masks, seed: int) -> Masks:
    """As many weights of each layer as `masks` keep there, drawn by the seed."""
    chance = torch.Generator().manual_seed(seed)
    return {
        name: _only(torch.randperm(mask.numel(), generator=chance)[: int(mask.sum())], mask.numel()).view(mask.shape)
        for name, mask in masks.items()
    }


def _only(places_K: Tensor, count: int) -> Tensor:
    kept_N = torch.zeros(count, dtype=torch.bool)
    kept_N[places_K] = True
    return kept_N


def empty_layers(masks: Masks) -> list[str]:
    """Those of which nothing stays: what lies before them no longer reaches the output, unless by another way."""
    return [name for name, mask in masks.items() if not mask.any()]


def pruned(masks: Masks) -> int:
    """How many weights are left out."""
    return sum(int((~mask).sum()) for mask in masks.values())


def to_bytes(masks: Masks) -> bytes:
    """A file of them: a checkpoint that holds nothing else."""
    return checkpoint.to_bytes({"masks": masks})


def read(path: Path) -> Masks:
    """Raises CheckpointError."""
    with checkpoint.as_whole(path):
        return {str(name): mask.bool() for name, mask in checkpoint.read(path)["masks"].items()}


class Held:
    """Keeps the weights that masks leave out at exactly zero, whatever the optimiser makes of them."""

    def __init__(self, masks: Masks, model: nn.Module, average: nn.Module | None = None) -> None:
        """`average`: the model's moving average, if it has one. Raises CheckpointError for masks of another model."""
        parameters = dict(model.named_parameters())
        for name, mask in masks.items():
            if name not in parameters or parameters[name].shape != mask.shape:
                raise CheckpointError(f"the masks are of another model ({name}): give the same --model and --widths")
        models = [parameters] + ([dict(average.named_parameters())] if average else [])
        self._out = [(of[name], torch.empty_like(of[name], dtype=torch.bool).copy_(~mask))
                     for of in models for name, mask in masks.items()]  # fmt: skip
        """Each parameter and, in the same layout, what of it is left out."""

    @torch.no_grad()
    def weights(self) -> None:
        """To be called behind every change of them. Filled and not multiplied: −0 and NaN must not stay."""
        for parameter, out in self._out:
            parameter.masked_fill_(out, 0.0)

    def gradients(self) -> None:
        """Before their norm is taken: what is left out has no share in it."""
        for parameter, out in self._out:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(out, 0.0)
