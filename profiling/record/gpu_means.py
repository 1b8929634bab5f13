"""Each GPU's means over the measured training steps, from its series. Pure.

The sampler looks from the start of the process on, through imports, evaluation and checkpoints. A look stands for the
time since the one before, and counts by the share of it that lies inside measured steps.
"""

from collections.abc import Sequence
from dataclasses import replace

from feedline.profiling.record.recording import Gpu, Series, Step
from feedline.profiling.record.series import GPU_MEANS
from feedline.profiling.record.windows import Windows


def over_steps(gpus: Sequence[Gpu], series: Sequence[Series], steps: Sequence[Step]) -> list[Gpu]:
    """The same GPUs with their means taken anew; all time counts where no training step was measured. Ranks run in
    step: the lowest one's steps stand for all."""
    lowest = min((step.rank for step in steps), default=0)
    windows = Windows([step for step in steps if step.rank == lowest])
    return [_over(gpu, [one for one in series if one.scope == f"gpu:{gpu.uuid}"], windows) for gpu in gpus]


def _over(gpu: Gpu, series: Sequence[Series], windows: Windows) -> Gpu:
    means = {one.name: _mean(one, windows) for one in series if one.name in GPU_MEANS}
    missing = {name: "no look fell into the training steps" for name, mean in means.items() if mean is None}
    return replace(gpu, **means, unavailable={**missing, **gpu.unavailable})


def _mean(series: Series, windows: Windows) -> float | None:
    total, weight = 0.0, 0.0
    for before_s, t_s, value in zip([0.0, *series.t_s], series.t_s, series.values, strict=False):
        share = windows.share(before_s, t_s) * (t_s - before_s) if value is not None else 0.0
        total, weight = total + share * (value or 0.0), weight + share
    return total / weight if weight else None
