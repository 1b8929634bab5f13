"""What a network's weights are like: counts, range, mean, quantiles of their magnitude; by layer and in all.

All numbers are NumPy's of the weights in float64; a quantile lies between two magnitudes linearly (`numpy.quantile`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feedline.pipeline.base.settings import check_limits, limited
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import State, Where
from feedline.train.models import build_model

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    quantiles: tuple[float, ...] = limited((0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99), 0, 1)
    """Of a run's weights: the share below a magnitude, as 0.6,0.9,0.99."""

    def __post_init__(self) -> None:
        check_limits(self)


def parameters_of(state: State) -> dict[str, torch.Tensor]:
    """A checkpoint's trained tensors, by name, in the model's order: no statistics, nor other buffers. Raises
    LookupError, TypeError or UsageError where it lacks something."""
    config, classes = state["config"], len(state["dataset"]["classes"])
    with torch.device("meta"):
        model = build_model(config["model"], classes, widths=tuple(config["widths"]))
    return {name: state["model"][name] for name, _ in model.named_parameters()}


def describe(where: Where, config: WeightsConfig) -> dict[str, Any]:
    """Of one checkpoint, as JSON: `epoch`, `step`, `all` (parameters of more than one dimension: what is pruned),
    `layers` (every parameter), `thresholds` (magnitudes that the quantiles of all mean). Raises CheckpointError."""
    with checkpoint.as_whole(where):
        state = checkpoint.read(where)
        parameters = parameters_of(state)
        layers = {name: values(weights) for name, weights in parameters.items()}
        every = {name: layers[name] for name in masks.prunable(parameters)}
        together = np.concatenate([*every.values(), np.empty(0)])
        quantiles = config.quantiles
        return {
            "epoch": state["progress"]["epoch"],
            "step": state["progress"]["step"],
            "all": statistics(together, quantiles),
            "layers": {
                name: {"shape": list(parameters[name].shape), **statistics(layer, quantiles)}
                for name, layer in layers.items()
            },
            "thresholds": [
                threshold(every, quantile, value)
                for quantile, value in zip(quantiles, magnitudes(together, quantiles), strict=True)
            ],
        }


def values(weights: torch.Tensor) -> Values:
    return weights.detach().double().flatten().numpy()


def magnitudes(weights_N: Values, quantiles: Sequence[float]) -> list[float | None]:
    """|w| at each quantile; None without weights."""
    return np.quantile(np.abs(weights_N), quantiles).tolist() if len(weights_N) else [None] * len(quantiles)


def statistics(weights_N: Values, quantiles: Sequence[float]) -> dict[str, Any]:
    some = len(weights_N) > 0
    return {
        "count": len(weights_N),
        "zeros": int((weights_N == 0).sum()),
        "min": float(weights_N.min()) if some else None,
        "max": float(weights_N.max()) if some else None,
        "mean": float(weights_N.mean()) if some else None,
        "quantiles": dict(zip(map(str, quantiles), magnitudes(weights_N, quantiles), strict=True)),
    }


def threshold(layers: Mapping[str, Values], quantile: float, value: float | None) -> dict[str, Any]:
    """What cutting all weights below the magnitude `value` would leave out, and of which layers leave nothing."""
    below = {name: int((np.abs(layer) < (value or 0.0)).sum()) for name, layer in layers.items()}
    empty = [name for name, layer in layers.items() if below[name] == len(layer)]
    return {"quantile": quantile, "threshold": value, "below": sum(below.values()), "empty_layers": empty}
