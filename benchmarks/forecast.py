"""What each rung of the ladder will give, said before it is climbed.

From the profile of the script as it is (what one sample costs a worker and the trainer, the ceiling) and from trials
on a few hundred of its own samples (what loading one would cost from other shards), through the same model that
predicts remedies (`profiling.predict`). Nothing in here has seen a rung run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedline.profiling.measure import measure
from feedline.profiling.predict import Change, Prediction, Situation, predict, situation, with_trial
from feedline.profiling.recording import Recording, Trial
from feedline.profiling.throughput import Throughput


@dataclass(frozen=True, kw_only=True)
class Forecast:
    samples_per_s: float
    low: float
    high: float
    why: str
    """What it will be bound by."""


def forecasts(recording: Recording, *, workers: int, size_px: int, raw_px: int) -> dict[str, Forecast]:
    """By rung key (`benchmarks.ladder.rungs_of`); a rung whose costs were not tried is left out."""
    at = situation(recording, measure(recording))
    if at is None:
        return {}
    now = replace(at.now, workers=workers, contention={})
    then: dict[str, Throughput | None] = {
        "workers": now,
        "shards": _with(at, now, recording.trials, "jpeg", size_px, "script"),
        "loader": _with(at, now, recording.trials, "jpeg", size_px, "feedline"),
        "raw": _with(at, now, recording.trials, "raw", raw_px, "feedline"),
    }
    said = {key: _forecast(_predict(at, key, model), model) for key, model in then.items() if model}
    rate = at.rate
    return {"as-is": Forecast(samples_per_s=rate.value, low=rate.low, high=rate.high, why="as profiled"), **said}


def _with(
    at: Situation, now: Throughput, trials: Sequence[Trial], codec: str, size_px: int, loader: str
) -> Throughput | None:
    as_is = next((one for one in trials if (one.codec, one.loader) == ("as-is", loader)), None)
    for trial in trials:
        if (trial.codec, trial.size_px, trial.loader) == (codec, size_px, loader):
            return with_trial(now, at.measured, trial, as_is)
    return None


def _predict(at: Situation, key: str, model: Throughput) -> Prediction:
    return predict(at, Change(remedy=key, then=model, cost="", why=""))


def _forecast(prediction: Prediction, model: Throughput) -> Forecast:
    bound = {"compute": "the model", "workers": "the workers", "cores": "the cores", "storage": "the storage"}
    why = f"bound by {bound.get(model.binding(), model.binding())}"
    return Forecast(samples_per_s=prediction.samples_per_s, low=prediction.low, high=prediction.high, why=why)
