"""What would a change give? The throughput model, set to a measured run, with one thing changed. Pure.

`all_predictions` is the one way to a predicted number: reports, the ladder, `tune` and the experiment that scores
predictions (`benchmarks.experiments.predictions`) all ask it.

The model is calibrated by the run itself: what it says of the present settings is scaled to what was measured, and
the same factor is applied to the prediction, wholly when the same resource stays the limit, by its square root when
another takes over. The interval is ±1.64 standard errors of: the measured rate, what other programs may have taken
from it, the measured ceiling, the part of the factor that was not applied, and the model's own error (`MODEL_ERROR`,
larger without legs and for each doubling of the workers). It ends at the ceiling's own upper
end.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import Measured, Situation, situation
from feedline.profiling.explain.remedies import compute, own_loader, storage
from feedline.profiling.explain.remedies.remedy import Change, Effort, Vain
from feedline.profiling.record import units

REMEDIES = (*own_loader.REMEDIES, *storage.REMEDIES, *compute.REMEDIES)
MODEL_ERROR = 0.075
"""With it 12 of the 14 gains of results/predictions.json lie inside their 90 % intervals; with 0.05, 7 did."""
NO_CEILING_ERROR = 0.08
"""Added where the ceiling was not measured by a leg but taken from the time the steps did not wait."""
ERROR_PER_DOUBLING = 0.04
NOTABLE = 0.05  # a gain below this share is none


@dataclass(frozen=True, kw_only=True)
class Prediction:
    remedy: str
    samples_per_s: float  # over whole epochs, what they begin and end with included
    low: float
    high: float
    why: str
    gain: float = 1.0  # factor over the measured rate, that too over whole epochs
    effort: Effort = Effort.SETTING
    cost: str = ""
    gain_low: float = 0.0
    gain_high: float = 0.0
    family: str = ""
    target: str = ""
    command: str = ""
    needs: str = ""
    changes: str = ""
    helps: bool = False
    vain: bool = False  # no figure but a reason says that it does not help
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What to change, as keywords of the loader or of `feedline prepare`."""
    prepare_s: float | None = None
    disk_bytes: float | None = None
    break_even_epochs: float | None = None


def all_predictions(measured: Measured, *, workers: Iterable[int] = ()) -> list[Prediction]:
    """Ranked: what helps first, by its rate; near ties (3 %) by how little it takes; then what does not help.

    One per change that a remedy offers: for a few numbers of workers and for each of the recording's trials of
    prepared samples; for the numbers in `workers` too, both ways. Empty where no rate was measured.
    """
    at = situation(measured, tuple(workers))
    if at is None:
        return []
    predictions = [predict(at, change) for remedy in REMEDIES for change in remedy(at)]
    step = 0.03 * at.rate.value
    return sorted(predictions, key=lambda p: (not p.helps, -round(p.samples_per_s / step), p.effort))


def prediction_for(predictions: Iterable[Prediction], **settings: Any) -> Prediction | None:
    """The one with exactly these settings; None where no remedy offers them."""
    return next((prediction for prediction in predictions if prediction.settings == settings), None)


def predict(at: Situation, change: Change) -> Prediction:
    """The rate after `change`, its interval, and whether that is worth having."""
    then, ceiling = change.then, at.measured.rates.ceiling
    ceiling_error = ceiling.error if ceiling else NO_CEILING_ERROR
    same, modelled, top = then.binding() == at.now.binding(), then.rate(), at.ceiling * change.ceiling_times
    applied = modelled * (at.factor if same else math.sqrt(at.factor)) if math.isfinite(modelled) else at.ceiling
    value = min(top, applied)
    errors = [MODEL_ERROR, at.rate.error, at.measured.machine.others_error, change.extra_error]
    if not same:
        errors.append(0.5 * abs(math.log(at.factor)))
    if then.binding() == "compute":
        errors.append(ceiling_error)
    if then.workers and at.now.workers:
        errors.append(ERROR_PER_DOUBLING * abs(math.log2(then.workers / at.now.workers)))
    reach = 1 + ERRORS_90 * math.hypot(*errors)
    top_reach = 1 + ERRORS_90 * math.hypot(ceiling_error, at.rate.error)
    whole = then.over_epochs(value)
    gain = whole / at.rate_over_epochs
    once = _preparing(at, change, whole)
    vain = isinstance(change.why, Vain)
    return Prediction(
        remedy=change.remedy,
        samples_per_s=whole,
        low=whole / reach,
        high=max(whole, min(whole * reach, then.over_epochs(top * top_reach))),
        gain=gain,
        gain_low=gain / reach,
        gain_high=max(whole, min(whole * reach, then.over_epochs(top * top_reach))) / at.rate_over_epochs,
        effort=change.effort,
        cost=_cost(change, once),
        why=f"this will not help, because {change.why}" if vain else change.why,
        helps=not vain and gain > max(1.0 + NOTABLE, at.rate.high / at.rate.value),
        vain=vain,
        settings=dict(change.settings),
        **once,
    )


def _preparing(at: Situation, change: Change, rate: float) -> dict[str, float | None]:
    """What it costs once, and after how many epochs it is paid back."""
    samples, trial = at.dataset_samples, change.trial
    if trial is None or trial.codec == "as-is" or not samples:
        return {}
    per_sample_s, bytes_each = trial.prepare_cpu_s_per_sample, trial.bytes_per_sample
    prepare_s = samples * per_sample_s / at.measured.machine.cores if per_sample_s is not None else None
    saved_s = samples / at.rate_over_epochs - samples / rate if rate > 0 else 0.0
    return {
        "prepare_s": prepare_s,
        "disk_bytes": samples * bytes_each if bytes_each is not None else None,
        "break_even_epochs": prepare_s / saved_s if prepare_s is not None and saved_s > 0 else None,
    }


def _cost(change: Change, once: Mapping[str, float | None]) -> str:
    """The change's own words, with figures where preparing has them."""
    parts = [change.cost or change.effort.words]
    if (prepare_s := once.get("prepare_s")) is not None:
        parts.append(f"{units.seconds(prepare_s)} on this machine")
    if (disk := once.get("disk_bytes")) is not None:
        parts.append(f"{units.size(disk)} of disk")
    if change.trial is not None and change.trial.psnr_db is not None and once:
        parts.append(f"{change.trial.psnr_db:.0f} dB PSNR")
    return ", ".join(parts)
