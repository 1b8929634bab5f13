"""What each rung of the ladder will give, said before it is climbed.

From the profile of the script as it is (what one sample costs a worker and the trainer, the ceiling) and from trials
on a few hundred of its own samples (what loading one would cost from other shards), through the throughput model of
`profiling.throughput`. Nothing in here has seen a rung run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profiling.measure import Measured
from feedline.profiling.recording import Trial
from feedline.profiling.throughput import Throughput

MODEL_ERROR = 0.10
"""What the model itself is trusted to, one standard error; trials and legs add their own."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    samples_per_s: float
    low: float
    high: float
    why: str
    """What it will be bound by."""


Costs = tuple[float | None, float | None, float]
"""Wall and CPU seconds of one sample in a worker with a core to itself, and the relative error of both."""


def forecasts(
    measured: Measured, trials: Sequence[Trial], *, workers: int, size_px: int, raw_px: int
) -> dict[str, Forecast]:
    """By rung key (`benchmarks.ladder.rungs_of`); a rung whose costs were not tried is left out."""
    found: dict[str, Forecast] = {}
    if measured.rate is not None:
        found["as-is"] = Forecast(
            samples_per_s=measured.rate.value, low=measured.rate.low, high=measured.rate.high, why="as profiled"
        )
    costs: dict[str, Costs] = {
        "workers": (measured.worker_alone_s, measured.worker_cpu_s, 0.0),
        "shards": _trial(trials, "jpeg", size_px, "script"),
        "loader": _trial(trials, "jpeg", size_px, "feedline"),
        "raw": _trial(trials, "raw", raw_px, "feedline"),
    }
    for key, (wall_s, cpu_s, error) in costs.items():
        if wall_s is not None and measured.step_s is not None:
            found[key] = _forecast(measured, workers, wall_s, cpu_s or wall_s, error)
    return found


def _trial(trials: Sequence[Trial], codec: str, size_px: int, loader: str) -> Costs:
    for trial in trials:
        if (trial.codec, trial.size_px, trial.loader) == (codec, size_px, loader) and trial.load_cpu_s_per_sample:
            spread = (trial.load_cpu_s_spread or 0.0) / trial.load_cpu_s_per_sample
            return trial.load_cpu_s_per_sample, trial.load_cpu_s_per_sample, spread
    return None, None, 0.0


def _forecast(measured: Measured, workers: int, wall_s: float, cpu_s: float, error: float) -> Forecast:
    step_s = 1.0 / measured.ceiling.value if measured.ceiling else measured.step_s or 0.0
    model = Throughput(
        workers=workers,
        step_s=step_s,
        worker_s=wall_s,
        worker_cpu_s=cpu_s,
        trainer_cpu_s=measured.trainer_cpu_s or step_s,
        cores=measured.cores,
    )
    rate = model.rate()
    spread = 2 * math.hypot(MODEL_ERROR, error, measured.ceiling.error if measured.ceiling else 0.0)
    return Forecast(samples_per_s=rate, low=rate * (1 - spread), high=rate * (1 + spread), why=model.binding())
