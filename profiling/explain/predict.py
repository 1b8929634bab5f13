"""What would a change give? The throughput model, set to a measured run, with one thing changed. Pure.

`all_predictions` is the one way to a predicted number: reports, the ladder, `tune` and the experiment that scores
predictions (`benchmarks.experiments.predictions`) all ask it.

The model is calibrated by the run itself: what it says of the present settings is scaled to what was measured, and
the same factor is applied to the prediction, wholly when the same resource stays the limit, and less the further it
recedes when another takes over, down to its square root. Without legs the ceiling is that of the very steps, with the
cores that their workers take from them (`Measured.crowded`), and the factor is the data side's alone. The interval
is ±1.64 standard errors of: the measured rate, what other programs may have taken from it, the measured ceiling, the
part of the factor that was not applied, what a sample costs a worker where that is not what was measured, and the
model's own error (`MODEL_ERROR`, larger without legs and for each doubling of the workers). It ends at the ceiling's
own upper end.

What helps gains something at the lower end of its interval, and what takes preparing a notable part. Families
(workers, shards, …) stand in the order of what they gain for sure, less what they ask for (`WORTH`); before them
stands what mends the very cause, and what is a setting and all but reaches the ceiling; of what is no cause, and of
which only the most it can give is known, half of that counts (on a scale of factors); before a cause of which
only the most it can give is known, a setting that gains a fifth, or beside other programs may, and as much as that
gives for sure; more GPUs come last, and are not promised where only something cheaper is left that may gain as much.
Within a family the best is the first.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import DATA_BOUND, Measured, Situation, situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.explain.remedies import compute, own_loader, sample_cost, starts, storage, waiting_reads
from feedline.profiling.explain.remedies.remedy import Change, Effort, Offer, Vain
from feedline.profiling.record import units

REMEDIES = (
    *own_loader.REMEDIES, *starts.REMEDIES, *waiting_reads.REMEDIES, *sample_cost.REMEDIES,
    *compute.REMEDIES, *storage.REMEDIES,
)  # fmt: skip
MODEL_ERROR = 0.075
"""With it 12 of the 14 gains of results/predictions.json lie inside their 90 % intervals; with 0.05, 7 did."""
NO_CEILING_ERROR = 0.08
"""Added where the ceiling was not measured by a leg but taken from the time the steps did not wait."""
ERROR_PER_DOUBLING = 0.04
RECEDED = 1.5
NOTABLE = 0.05  # a gain below this share is none
WORTH = {Effort.SETTING: 1.0, Effort.CODE: 0.95, Effort.PREPARING: 0.87, Effort.REWRITE: 0.7, Effort.HARDWARE: 0.6}
"""What is left of a gain when what it asks for is held against it: a setting comes before preparing that gains 15 %
more."""
LESS_ALIKE = 0.95  # the same for what changes the training
OF_MODEL = frozenset({"compute", "cores", "trainer prepares"})
"""Limits that a faster model moves, with nothing assumed of workers or storage."""
REACHED = 0.9  # share of the ceiling from which nothing more is to be looked for
NOTED = 1.2  # a gain for which a setting is tried first
TIE = 0.03  # gains that differ by less are the same


@dataclass(frozen=True, kw_only=True)
class Prediction(Offer):
    family: str = ""
    effort: Effort = Effort.SETTING
    command: str = ""
    samples_per_s: float  # over whole epochs, what they begin and end with included
    low: float
    high: float
    gain: float = 1.0  # factor over the measured rate, that too over whole epochs
    gain_low: float = 1.0
    """Beside the same other programs: what these took is in the interval of the rate, not in that of the gain."""
    gain_high: float = 1.0
    helps: bool = False
    vain: bool = False  # no figure but a reason says that it does not help
    of_data: bool = False  # it mends the data's side, not the model, its copies or the script's own Python
    prepare_s: float | None = None
    disk_bytes: float | None = None
    break_even_epochs: float | None = None

    @property
    def in_doubt(self) -> bool:
        """A gain that cannot be told from none."""
        return not self.helps and not self.vain and self.gain > 1.0 + NOTABLE

    @property
    def bought(self) -> bool:
        """It takes GPUs that are not there."""
        return self.family == "gpus" and self.effort == Effort.HARDWARE


def all_predictions(measured: Measured, *, workers: Iterable[int] = ()) -> list[Prediction]:
    """What helps, family by family, the first thing to do first; then what does not.

    One per change that a remedy offers: for a few numbers of workers and for each of the recording's trials of
    prepared samples; for the numbers in `workers` too, both ways. Empty where no rate was measured.
    """
    at = situation(measured, tuple(workers))
    if at is None:
        return []
    found = _hardware_last([(change, predict(at, change)) for remedy in REMEDIES for change in remedy(at)])
    best = sorted((one for one in found if one[1].helps), key=lambda one: _within(one[1]))
    shown = {one.family: (change, one) for change, one in reversed(best)}  # the best of each
    order = sorted(shown, key=lambda family: _among(at, *shown[family]))
    if order and shown[order[0]][1].at_most:
        leading = shown[order[0]][1]
        order.sort(key=lambda family: not _good_setting(at, *shown[family], leading))
    helping = sorted((one for _, one in best), key=lambda one: order.index(one.family))
    others = sorted((pair for pair in found if not pair[1].helps), key=lambda pair: _unsure(at, *pair))
    return helping + [one for _, one in others]


def _hardware_last(found: list[tuple[Change, Prediction]]) -> list[tuple[Change, Prediction]]:
    """Nobody buys a GPU before two lines are tried that may do as well."""
    bought = [one for _, one in found if one.helps and one.bought]
    others = [one for _, one in found if not one.bought]
    least = min((one.gain_low for one in bought), default=math.inf)
    if any(one.helps for one in others) or not any(one.in_doubt and one.gain_high >= least for one in others):
        return found
    return [(change, replace(one, helps=False)) for change, one in found]


def _unsure(at: Situation, change: Change, one: Prediction) -> tuple[bool, bool, bool, float, int]:
    """Of what does not surely help: what may comes first; of that, what mends what the loop is bound by: its data
    where it waits for them, else the model."""
    beside = change.of_data != (at.measured.waits >= DATA_BOUND)
    return one.bought or not one.in_doubt, one.bought, beside, -one.gain * _worth(one), one.effort


def _within(one: Prediction) -> tuple[float, int, bool]:
    """Of one family, the best first; near ties by how little they take and change, then as they are offered: fewest
    workers."""
    return -round(math.log(one.gain_low) / TIE), one.effort, bool(one.changes)


def _among(at: Situation, change: Change, one: Prediction) -> tuple[bool, bool, int, float]:
    whole = change.then.over_epochs(at.ceiling)
    of_data = one.effort == Effort.SETTING and change.of_data
    leads = change.cause or (of_data and one.samples_per_s >= REACHED * whole)
    likely = math.sqrt(one.gain_low) if one.at_most and not change.cause else one.gain_low
    return one.bought, not leads, one.effort if leads else 0, -likely * _worth(one)


def _worth(one: Prediction) -> float:
    return WORTH[one.effort] * (LESS_ALIKE if one.changes else 1.0)


def _good_setting(at: Situation, change: Change, one: Prediction, leading: Prediction) -> bool:
    """Of the data: it comes before a change of code (`leading`) of which only the most it can give is known. Beside
    other programs a gain is not known as well."""
    may = at.measured.machine.others_cores > 0 and one.gain_high >= max(NOTED, leading.gain_low)
    return one.effort == Effort.SETTING and (may or one.gain >= NOTED) and change.of_data


class Cold(NamedTuple):
    """samples/s of an epoch that finds nothing in memory, as a first one does."""

    samples_per_s: float
    low: float
    high: float
    by: Literal["leg", "reads"]  # measured by the cold leg; predicted from reads of the files


def cold_epoch(measured: Measured) -> Cold | None:
    """None where the run was cold already, or nothing tells."""
    at, leg = situation(measured), measured.rates.cold
    if leg is not None:
        return Cold(leg.value, leg.low, leg.high, "leg")
    if at is None or (change := waiting_reads.cold(at)) is None:
        return None
    predicted = predict(at, change)
    return Cold(predicted.samples_per_s, predicted.low, predicted.high, "reads")


def prediction_for(predictions: Iterable[Prediction], **settings: Any) -> Prediction | None:
    """The one with exactly these settings; None where no remedy offers them."""
    return next((prediction for prediction in predictions if prediction.settings == settings), None)


def predict(at: Situation, change: Change) -> Prediction:
    """The rate after `change`, its interval, and whether that is worth having."""
    then, now = change.then, at.rate_over_epochs
    top = at.ceiling * change.ceiling_times
    whole = bound = _over_epochs(at, then, top)
    if change.at_most:  # threads that wait for each other want no core: a bound counts the main thread alone
        loosest = replace(then, stall={}, trainer_cpu_s=min(then.trainer_cpu_s, then.step_s))
        bound = max(whole, _over_epochs(at, loosest, top))
    most = then.over_epochs(top * (1 + ERRORS_90 * math.hypot(_ceiling_error(at), at.rate.error)))
    errors = _errors(at, change)
    of_rate = [*errors, at.rate.error, at.measured.machine.others_error]
    of_gain = [*errors, 0.0 if _is_measured(at, change) else _now_error(at, then)]
    (low, high), (least, largest) = (_interval(whole, bound, of, most) for of in (of_rate, of_gain))
    gain, gain_low, gain_high = (rate / now for rate in (whole, least, largest))
    once = _preparing(at, change, whole)
    vain, prepares = isinstance(change.why, Vain), change.effort in (Effort.PREPARING, Effort.REWRITE)
    why = f"this will not help, because {change.why}" if vain else change.why
    offered: dict[str, Any] = {one.name: getattr(change, one.name) for one in fields(Offer)}
    offered |= {"why": why, "cost": _cost(change, once), **once}
    return Prediction(
        **offered,
        samples_per_s=whole,
        low=low,
        high=high,
        gain=gain,
        gain_low=gain_low,
        gain_high=gain_high,
        helps=not vain and gain > 1.0 + NOTABLE and gain_low > (1.0 + NOTABLE if prepares else 1.0),
        vain=vain,
        of_data=change.of_data,
    )


def _over_epochs(at: Situation, then: Throughput, top: float) -> float:
    """The rate that the model tells, set to the run's own, and no more than `top`."""
    modelled = then.rate(_data_factor(at, then))
    scale = at.rate.value / at.now.rate(at.factor) if at.of_data else at.factor ** _carried(at, then)
    return then.over_epochs(min(top, modelled * scale if math.isfinite(modelled) else at.ceiling))


def _ceiling_error(at: Situation) -> float:
    """Half of what the workers' cores make of it is in doubt."""
    ceiling, crowded = at.measured.rates.ceiling, at.measured.crowded
    return ceiling.error if ceiling else math.hypot(NO_CEILING_ERROR, 0.5 * crowded)


def _now_error(at: Situation, then: Throughput) -> float:
    """What a gain has of the error of the rate now, with no leg's ceiling beside it. Where the model is the limit of
    steps of which the wait is known, no more than that of the rest of them, however the steps differ; where the same
    resource stays the limit, nothing."""
    if at.measured.rates.ceiling:
        return at.rate.error
    if _limit(at, then) != "compute":
        return at.rate.error * min(1.0, 2.0 * (1.0 - _carried(at, then)))
    return min(at.rate.error, at.measured.trainer.waits_error / max(0.05, 1.0 - at.measured.waits))


def _data_factor(at: Situation, then: Throughput) -> float:
    return at.factor ** _carried(at, then) if at.of_data else 1.0


def _limit(at: Situation, then: Throughput) -> str:
    return then.binding(_data_factor(at, then))


def _carried(at: Situation, then: Throughput) -> float:
    """The power of the factor that is applied: 1 while the same resource is the limit, a half once another is lower
    by RECEDED. `of_data`: of those that are not the model's."""
    limits, now = then.limits(), at.now.limits()
    if at.of_data:
        del limits["compute"], now["compute"]
    least, before = min(limits.values()), limits.get(min(now, key=lambda name: now[name]), math.inf)
    return 1.0 - 0.5 * min(1.0, math.log(before / least) / math.log(RECEDED)) if 0 < least < math.inf else 1.0


def _errors(at: Situation, change: Change) -> list[float]:
    """Relative standard errors of the rate after `change`, on a machine that has as much to do beside it as now, but
    for that of the rate now."""
    then, limit = change.then, _limit(at, change.then)
    left_out = 0.0 if at.of_data and limit == "compute" else 1.0 - _carried(at, then)
    errors = [change.extra_error, left_out * abs(math.log(at.factor))]
    if not _is_measured(at, change):
        errors += [MODEL_ERROR, _ceiling_error(at) if limit == "compute" else 0.0]
    if left_out:
        errors.append(2 * left_out * at.measured.workers.alone_error * _of_workers(at, then, limit))
    if then.workers and at.now.workers:
        errors.append(ERROR_PER_DOUBLING * abs(math.log2(then.workers / at.now.workers)))
    return errors


def _of_workers(at: Situation, then: Throughput, limit: str) -> float:
    """How much of the limit is what a sample takes a worker now, the error of which is then in it."""
    if limit == "workers":
        return min(1.0, at.now.worker_s / then.worker_s)
    if limit == "cores":
        return min(at.now.worker_cpu_s, then.worker_cpu_s) / (then.worker_cpu_s + then.trainer_cpu_s)
    return 1.0


def _is_measured(at: Situation, change: Change) -> bool:
    """Whether it is a factor of the model's speed that was measured: it holds at whatever rate."""
    return change.measured and {_limit(at, change.then), _limit(at, at.now)} <= OF_MODEL


def _interval(value: float, bound: float, errors: Iterable[float], most: float) -> tuple[float, float]:
    """From the value downwards, and from its upper bound upwards, but not beyond `most`."""
    reach = 1 + ERRORS_90 * math.hypot(*errors)
    return value / reach, max(bound, min(bound * reach, most))


def _preparing(at: Situation, change: Change, rate: float) -> dict[str, Any]:
    """What it costs once, and after how many epochs it is paid back."""
    samples, trial = at.dataset_samples, change.trial
    if trial is None or not samples:
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
    """Effort's words and the change's own, with figures where preparing has them."""
    parts = [change.effort.words + (f": {change.cost}" if change.cost else "")]
    if (prepare_s := once.get("prepare_s")) is not None:
        parts.append(f"{units.seconds(prepare_s)} on this machine")
    if (disk := once.get("disk_bytes")) is not None:
        parts.append(f"{units.size(disk)} of disk")
    return ", ".join(parts)
