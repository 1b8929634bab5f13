"""What each rung of the ladder will give, said before it is climbed.

From the profile of the script as it is (what one sample costs a worker and the trainer, the ceiling) and from trials
on a few hundred of its own samples (what loading one would cost from other shards), through the same model that
predicts remedies (`profiling.explain.predict`). Nothing in here has seen a rung run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedline.benchmarks.measure.window import Window
from feedline.profiling.explain.measure import measure
from feedline.profiling.explain.predict import Change, Prediction, Situation, predict, situation, with_trial
from feedline.profiling.explain.throughput import Throughput
from feedline.profiling.record.recording import Recording, Trial


@dataclass(frozen=True, kw_only=True)
class Forecast:
    samples_per_s: float
    low: float
    high: float
    why: str
    """What it will be bound by."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The script with cached batches, measured before any rung: data is free."""

    own: list[Window]
    """In the layout of its own loader."""
    channels_last: list[Window]
    """In the layout of feedline's loader, in which convolutions may be faster."""
    crowded: list[Window]
    """With as many processes beside it that burn CPU as there will be workers: threads that wait for each other lose
    more than their share of the cores."""


def forecasts(
    recording: Recording, ceilings: Ceilings, *, workers: int, size_px: int, raw_px: int
) -> dict[str, Forecast]:
    """By rung key (`benchmarks.ladder.rungs_of`); a rung whose costs were not tried is left out."""
    at = situation(recording, measure(recording))
    if at is None:
        return {}
    at = replace(at, now=with_ceiling(at.now, ceilings.own))
    own = replace(at.now, workers=workers, contention={})
    ours = with_ceiling(own, ceilings.channels_last)
    trials = recording.trials
    then: dict[str, Throughput | None] = {
        "workers": own,
        "shards": _with(at, own, trials, "jpeg", size_px, "script"),
        "loader": _with(at, ours, trials, "jpeg", size_px, "feedline"),
        "raw": _with(at, ours, trials, "raw", raw_px, "feedline"),
    }
    crowding = crowding_of(ceilings) if recording.compute.device == "cpu" else 1.0
    crowded = {key: crowd(model, crowding) for key, model in then.items() if model}
    said = {key: _forecast(_predict(at, key, model), model) for key, model in crowded.items()}
    rate = at.rate
    return {"as-is": Forecast(samples_per_s=rate.value, low=rate.low, high=rate.high, why="as profiled"), **said}


def with_ceiling(model: Throughput, windows: Sequence[Window]) -> Throughput:
    """What one sample costs the trainer, as the cached runs showed it."""
    return replace(model, step_s=_seconds(windows), trainer_cpu_s=_cpu_s(windows))


def crowding_of(ceilings: Ceilings) -> float:
    """Trainer CPU time per sample with full cores over that with free ones; 1 where sharing costs nothing extra."""
    return max(1.0, _cpu_s(ceilings.crowded) / _cpu_s(ceilings.own))


def crowd(model: Throughput, crowding: float) -> Throughput:
    """The trainer's costs grow with the share of the cores that the workers take: fully where they take half."""
    cpu_s = model.trainer_cpu_s
    for _ in range(20):
        taken = model.worker_cpu_s / (model.worker_cpu_s + cpu_s) if cpu_s else 0.0
        cpu_s = model.trainer_cpu_s * (1 + (crowding - 1) * min(1.0, 2 * taken))
    return replace(model, trainer_cpu_s=cpu_s)


def _seconds(windows: Sequence[Window]) -> float:
    return sum(window.seconds for window in windows) / sum(window.samples for window in windows)


def _cpu_s(windows: Sequence[Window]) -> float:
    return sum(window.trainer_cpu_s for window in windows) / sum(window.samples for window in windows)


def _with(
    at: Situation, now: Throughput, trials: Sequence[Trial], codec: str, size_px: int, loader: str
) -> Throughput | None:
    as_is = next((one for one in trials if (one.codec, one.loader) == ("as-is", loader)), None)
    for trial in trials:
        if (trial.codec, trial.size_px, trial.loader) == (codec, size_px, loader):
            return with_trial(now, at.measured, trial, as_is)
    return None


def _predict(at: Situation, key: str, model: Throughput) -> Prediction:
    return predict(at, Change(remedy=key, then=model, cost="", why="", may_raise_ceiling=True))


def _forecast(prediction: Prediction, model: Throughput) -> Forecast:
    bound = {"compute": "the model", "workers": "the workers", "cores": "the cores", "storage": "the storage"}
    why = f"bound by {bound.get(model.binding(), model.binding())}"
    return Forecast(samples_per_s=prediction.samples_per_s, low=prediction.low, high=prediction.high, why=why)
