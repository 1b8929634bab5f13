"""What would a change give? The throughput model, set to a measured run, with one thing changed. Pure.

The model is calibrated by the run itself: what it says of the present settings is scaled to what was measured, and
the same factor is applied to the prediction, wholly when the same resource stays the limit, by its square root when
another takes over. The interval is ±1.64 standard errors of: the measured rate, the measured ceiling, the part of the
factor that was not applied, and the model's own error (`MODEL_ERROR`, larger without legs and for each doubling of
the workers; `benchmarks/experiments/predictions.py` checks it).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.profiling.explain.measure import Measured, Rate
from feedline.profiling.explain.neighbours import fair_share
from feedline.profiling.explain.page_faults import FAULTS_ERROR
from feedline.profiling.explain.throughput import Throughput
from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording, Trial

MODEL_ERROR = 0.075
"""With it 13 of the 14 gains of results/predictions.json lie inside their 90 % intervals; with 0.05, 7 did."""
NO_CEILING_ERROR = 0.08
"""Added where the ceiling was not measured by a leg but taken from the time the steps did not wait."""
ERROR_PER_DOUBLING = 0.04
STANDARD_ERRORS = 1.64
NOTABLE = 0.05
"""A gain below this share is none."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    remedy: str
    samples_per_s: float
    """Over whole epochs, what they begin and end with included."""
    low: float
    high: float
    gain: float
    """Factor over the measured rate, that too over whole epochs."""
    cost: str
    why: str
    helps: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What to change, as keywords of the loader or of `feedline prepare`."""
    prepare_s: float | None = None
    disk_bytes: float | None = None
    break_even_epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One remedy, before it is turned into a prediction: the model as it would be, and the words."""

    remedy: str
    then: Throughput
    cost: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    trial: Trial | None = None
    extra_error: float = 0.0
    """Relative error beyond the model's own, e.g. of an assumed factor."""
    may_raise_ceiling: bool = False
    """Copies and compute: the ceiling itself moves."""
    ceiling_times: float = 1.0
    """By so much, where that is known."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A measured run and the model set to it."""

    measured: Measured
    recording: Recording
    rate: Rate
    now: Throughput

    @property
    def factor(self) -> float:
        """Measured over modelled rate of the present settings."""
        modelled = self.now.rate()
        return self.rate.value / modelled if math.isfinite(modelled) and modelled > 0 else 1.0

    @property
    def rate_over_epochs(self) -> float:
        return self.now.over_epochs(self.rate.value)

    @property
    def ceiling(self) -> float:
        """The most that better data can give: the leg's ceiling, never below what was measured."""
        return max(self.now.limits()["compute"], self.rate.value)

    @property
    def dataset_samples(self) -> int | None:
        return self.measured.loader.dataset_samples if self.measured.loader else None


def situation(recording: Recording, measured: Measured) -> Situation | None:
    """None when no rate was measured: then nothing can be predicted."""
    now = model_of(measured)
    if measured.rate is None or now is None:
        return None
    return Situation(measured=measured, recording=recording, rate=measured.rate, now=now)


def model_of(measured: Measured) -> Throughput | None:
    """The model with the run's own costs."""
    if measured.rate is None or measured.step_s is None:
        return None
    step_s = measured.ranks / measured.ceiling.value if measured.ceiling else measured.step_s
    worker_s = slowest_worker_s(measured)
    if measured.workers == 0 and not worker_s:
        # No sampler saw the preparing: what the loop waited for it is its cost.
        worker_s = measured.wait_fraction * measured.ranks / measured.rate.value
    return Throughput(
        workers=measured.workers,
        step_s=step_s,
        worker_s=worker_s,
        worker_cpu_s=min(measured.worker_cpu_s or 0.0, worker_s) if worker_s else 0.0,
        trainer_cpu_s=measured.free_trainer_cpu_s or measured.trainer_cpu_s or 0.0,
        handover_s=measured.unpickle_s,
        cores=_cores(measured),
        ranks=measured.ranks,
        contention=contention(measured, worker_s),
        epoch_start_s=measured.epoch_start_s,
        epoch_samples=measured.epoch_samples,
    )


FULL = 0.8
"""A model that uses this share of the cores while it computes is taken to use all."""


def with_stall(at: "Situation") -> "Situation":
    """With what the trainer loses to workers beside it, measured by the legs or assumed."""
    return replace(at, now=replace(at.now, stall=at.measured.stall or assumed_stall(at.measured, at.now)))


def assumed_stall(measured: Measured, now: Throughput) -> dict[int, float]:
    """CPU time lost per CPU second of one worker, and of as many as there are cores, where no leg measured it.

    Legs found 0.93 and 0.76 for a small model, 0.03 for a MobileNetV2. More is not assumed on more cores.
    """
    share = measured.cores / measured.ranks
    if not measured.on_cpu or share < 2 or not now.step_s or now.trainer_cpu_s < FULL * share * now.step_s:
        return {}
    return {1: 1.0, max(2, int(share)): 0.5}


def with_own_workers(at: "Situation", workers: int) -> Throughput:
    """The script's own loader with other workers. What a sample costs in a worker process, sending it included, is
    known from the loader-only leg with that many, where there is one."""
    legs = at.recording.legs
    known = [one.worker_cpu_s_per_sample for one in legs if one.name == "loader_only" and one.num_workers == workers]
    cpu_s = known[0] if known and known[0] else at.now.worker_cpu_s
    return replace(at.now, workers=workers, worker_cpu_s=max(cpu_s, at.now.worker_cpu_s))


def slowest_worker_s(measured: Measured) -> float:
    """Batches are dealt to workers in turn and taken in order: one slow worker sets the pace of all."""
    alone_s = measured.worker_alone_s or 0.0
    return even_worker_s(measured) * measured.slow_worker[1] if measured.slow_worker else alone_s


def even_worker_s(measured: Measured) -> float:
    """What a sample takes the other workers, where one is slow."""
    alone_s, count = measured.worker_alone_s or 0.0, len(measured.per_worker)
    return alone_s * count / (count - 1 + measured.slow_worker[1]) if measured.slow_worker else alone_s


def _cores(measured: Measured) -> float:
    """The cores the run could really use: beside other programs its fair share. Where nobody counted those, but the
    workers computed all the time and were clearly fighting for cores that the run did not use, somebody else did."""
    if measured.others_cores:
        return fair_share(measured.cores, measured.ranks * (measured.workers + 1), measured.others_cores)
    computing = (measured.worker_cpu_s or 0.0) > 0.5 * (measured.worker_alone_s or 0.0)
    fighting = measured.slowdown >= 1.25 and measured.stages.get("idle", 1.0) <= 0.3
    if measured.rate is None or not (fighting and computing):
        return measured.cores
    used = measured.rate.value * ((measured.worker_cpu_s or 0.0) + (measured.trainer_cpu_s or 0.0))
    return min(measured.cores, max(used, 0.25 * measured.cores)) if used else measured.cores


def contention(measured: Measured, worker_s: float) -> dict[int, float]:
    """k by workers from the loader-only legs: their rate over that of as many workers each with a core to itself."""
    if worker_s <= 0:
        return {}
    found = {w: rate.value * worker_s / (measured.ranks * w) for w, rate in measured.loader_only.items() if w > 0}
    return {workers: min(1.2, max(0.05, k)) for workers, k in found.items()}


def with_trial(now: Throughput, measured: Measured, trial: Trial, as_is: Trial | None) -> Throughput | None:
    """The model with the costs of prepared samples.

    feedline's loader: the trial's own cost, nothing to collate, serialise or unpickle. The script's own loader: its
    reading, decoding and transforming shrink by the ratio of the trial to the same trial on the samples as they are.
    """
    if trial.load_cpu_s_per_sample is None:
        return None
    extra_s = trial.trainer_cpu_s_per_sample or 0.0
    if trial.loader == "feedline":
        cost_s = trial.load_cpu_s_per_sample
        lighter = replace(now, worker_s=cost_s, worker_cpu_s=cost_s, handover_s=0.0, contention={},
                          epoch_start_s=kept_start_s(now, measured, cost_s))  # fmt: skip
        busy_s = extra_s / max(1.0, now.cores / now.ranks)
        return replace(lighter, trainer_cpu_s=now.trainer_cpu_s + extra_s, step_s=now.step_s + busy_s)
    if as_is is None or not as_is.load_cpu_s_per_sample:
        return None
    ratio = trial.load_cpu_s_per_sample / as_is.load_cpu_s_per_sample
    shrinking = sum(measured.stage_alone_s.get(name, 0.0) for name in ("read", "decode", "transform")) or now.worker_s
    share = min(1.0, shrinking / now.worker_s) if now.worker_s else 1.0
    scale = 1.0 - share + share * ratio
    return replace(now, worker_s=now.worker_s * scale, worker_cpu_s=now.worker_cpu_s * scale)


def with_our_batches(now: Throughput, measured: Measured) -> Throughput:
    """The model with the trainer's costs when feedline's loader hands it its batches."""
    times = our_batches_times(measured)
    return replace(now, step_s=now.step_s / times, trainer_cpu_s=now.trainer_cpu_s / times)


def our_batches_times(measured: Measured) -> float:
    """How much faster the model then is: by channels_last where a leg measured that, and on a CPU by memory kept."""
    return (measured.layout_gain.value if measured.layout_gain else 1.0) / measured.kept_memory_left


def our_batches_error(measured: Measured) -> float:
    """Relative error of that."""
    faults = FAULTS_ERROR if measured.kept_memory_left < 1 else 0.0
    return math.hypot(measured.layout_gain.error if measured.layout_gain else 0.0, faults)


def kept_start_s(now: Throughput, measured: Measured, worker_s: float) -> float:
    """What an epoch begins with when workers live on: one of them prepares the first batch, everybody else waits."""
    batch = measured.loader.batch_size if measured.loader else None
    return min(now.epoch_start_s, (batch or 1) * worker_s)


def predict(at: Situation, change: Change) -> Prediction:
    """The rate after `change`, its interval, and whether that is worth having."""
    then = change.then
    same = then.binding() == at.now.binding()
    modelled = then.rate()
    top = math.inf if change.may_raise_ceiling else at.ceiling * change.ceiling_times
    applied = modelled * (at.factor if same else math.sqrt(at.factor)) if math.isfinite(modelled) else at.ceiling
    value = min(top, applied)
    reach = 1 + STANDARD_ERRORS * _error(at, then, same, change.extra_error)
    whole = then.over_epochs(value)
    gain = whole / at.rate_over_epochs
    once = _preparing(at, change.trial, whole)
    return Prediction(
        remedy=change.remedy,
        samples_per_s=whole,
        low=whole / reach,
        high=max(whole, min(whole * reach, then.over_epochs(top))),
        gain=gain,
        cost=_cost(change, once),
        why=change.why,
        helps=gain > 1.0 + max(NOTABLE, 2.0 * at.rate.error),
        settings=dict(change.settings),
        **once,
    )


def _error(at: Situation, then: Throughput, same: bool, extra: float) -> float:
    parts = [MODEL_ERROR, at.rate.error, extra]
    if not same:
        parts.append(0.5 * abs(math.log(at.factor)))
    if then.binding() == "compute":
        parts.append(at.measured.ceiling.error if at.measured.ceiling else NO_CEILING_ERROR)
    if then.workers and at.now.workers:
        parts.append(ERROR_PER_DOUBLING * abs(math.log2(then.workers / at.now.workers)))
    return math.sqrt(sum(part * part for part in parts))


def _preparing(at: Situation, trial: Trial | None, rate: float) -> dict[str, float | None]:
    """What it costs once, and after how many epochs it is paid back."""
    samples = at.dataset_samples
    if trial is None or trial.codec == "as-is" or not samples:
        return {}
    per_sample_s = trial.prepare_cpu_s_per_sample
    prepare_s = samples * per_sample_s / at.measured.cores if per_sample_s is not None else None
    saved_s = samples / at.rate_over_epochs - samples / rate if rate > 0 else 0.0
    disk = samples * trial.bytes_per_sample if trial.bytes_per_sample is not None else None
    epochs = prepare_s / saved_s if prepare_s is not None and saved_s > 0 else None
    return {"prepare_s": prepare_s, "disk_bytes": disk, "break_even_epochs": epochs}


def _cost(change: Change, once: Mapping[str, float | None]) -> str:
    """The change's own words, with figures where preparing has them."""
    parts = [change.cost]
    if (prepare_s := once.get("prepare_s")) is not None:
        parts.append(f"{units.seconds(prepare_s)} on this machine")
    if (disk := once.get("disk_bytes")) is not None:
        parts.append(f"{units.size(disk)} of disk")
    if change.trial is not None and change.trial.psnr_db is not None and once:
        parts.append(f"{change.trial.psnr_db:.0f} dB PSNR")
    return ", ".join(parts)
