"""Recording -> Diagnosis: what the training loop waits for, with the evidence, and what each remedy would give. Pure.

The rule, in order (shares as in `measure`; a share below its threshold is no candidate, the largest candidate wins):

    data      the loop is blocked on batches 10 % of the time or more; or the ceiling leg is 1.5 times as fast
              although it hardly waits: workers and model fight for the same cores
    copy      15 % or more in host-to-device copies
    trainer   25 % or more in the main thread's own Python, logging, synchronising
    compute   none of these: the model is the limit

Waiting for batches that are ready is no want of data: where the workers idle four fifths of the time, none of them is
slow, and neither unpickling nor pinning explains it, handing over takes what the loop waits (tiny batches, or other
programs on the cores), and data is a candidate only if it is half of the time or more.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from feedline.profiling.explain.main_thread import own_places, parts_of
from feedline.profiling.explain.measure import Measured, measure
from feedline.profiling.explain.predict import Prediction, Situation, situation
from feedline.profiling.explain.remedies.data import all_predictions
from feedline.profiling.record import units
from feedline.profiling.record.recording import STAGES, Line, Recording

Bound = Literal["data", "copy", "compute", "trainer"]
THRESHOLDS: dict[Bound, float] = {"data": 0.10, "copy": 0.15, "trainer": 0.25}
STALLED = 1.5
"""The ceiling over the measured rate from which data is to blame even if the loop hardly waits."""


HANDOVER = 0.8
"""Workers that idle more than this share of the time have batches ready."""
EPOCH_START = 0.03
"""Share of an epoch from which its beginning is worth a sentence."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    bound: Bound | None
    """None: no step was seen, and `headline` says so."""
    headline: str
    """The verdict in one short sentence."""
    evidence: list[str]
    """Sentences that carry it, the strongest first."""
    measured: Measured
    predictions: list[Prediction]
    situation: Situation | None
    """The model set to this run, for whoever wants to ask it more."""
    overhead_fraction: float | None
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def samples_per_s(self) -> float | None:
        return self.measured.rate.value if self.measured.rate else None

    @property
    def ceiling_samples_per_s(self) -> float | None:
        return self.measured.ceiling.value if self.measured.ceiling else None

    @property
    def top_stage(self) -> str | None:
        """Where the workers spend most of their busy time."""
        busy = {name: share for name, share in self.measured.stages.items() if name not in ("idle", "other")}
        return max(busy, key=lambda name: busy[name]) if busy and max(busy.values()) > 0 else None


def diagnose(recording: Recording) -> Diagnosis:
    measured = measure(recording)
    bound = _bound(measured)
    at = situation(recording, measured)
    return Diagnosis(
        bound=bound,
        headline=_headline(recording, measured, bound),
        evidence=_evidence(recording, measured, bound),
        measured=measured,
        predictions=all_predictions(at) if at else [],
        situation=at,
        overhead_fraction=recording.overhead.fraction,
        lines=sorted(recording.lines, key=lambda line: -line.seconds),
        notes=[*measured.notes, *recording.notes],
    )


def record_keys(recording: Recording, diagnosis: Diagnosis) -> dict[str, Any]:
    """The keys of a `profile` record: verdict, stages, workers, predictions, gpu, lines. JSON-ready."""
    measured = diagnosis.measured
    return {
        "verdict": {
            "bound": diagnosis.bound,
            "headline": diagnosis.headline,
            "evidence": diagnosis.evidence,
            "wait_fraction": measured.wait_fraction,
            "samples_per_s": diagnosis.samples_per_s,
            "low": measured.rate.low if measured.rate else None,
            "high": measured.rate.high if measured.rate else None,
            "ceiling_samples_per_s": diagnosis.ceiling_samples_per_s,
            "overhead_fraction": diagnosis.overhead_fraction,
            "shares": asdict(measured.shares),
            "steps": measured.steps,
            "others_cores": measured.others_cores,
            "epoch_start_s": measured.epoch_start_s,
            "epoch_samples": measured.epoch_samples,
        },
        "stages": measured.stages,
        "workers": [
            {
                "worker": w.worker,
                "rank": w.rank,
                "pid": w.pid,
                "samples": w.samples,
                "in_trainer": w.in_trainer,
                **stages,
            }
            for w, stages in measured.per_worker
        ],
        "predictions": [_prediction_keys(prediction) for prediction in diagnosis.predictions],
        "gpu": [asdict(gpu) for gpu in recording.gpus],
        "lines": [asdict(line) for line in diagnosis.lines],
        "notes": diagnosis.notes,
    }


def _prediction_keys(prediction: Prediction) -> dict[str, Any]:
    return {**asdict(prediction), "settings": dict(prediction.settings)}


def _bound(measured: Measured) -> Bound | None:
    if measured.rate is None:
        return None
    shares = asdict(measured.shares)
    least = {**THRESHOLDS, "data": 0.5} if _batches_ready(measured) else THRESHOLDS
    candidates: dict[Bound, float] = {name: shares[name] for name in THRESHOLDS if shares[name] >= least[name]}
    if not candidates and _stalled(measured):
        return "data"
    return max(candidates, key=lambda name: candidates[name]) if candidates else "compute"


def _batches_ready(measured: Measured) -> bool:
    pinned = measured.loader is not None and measured.loader.pin_memory and not measured.on_cpu
    explained = pinned or measured.slow_worker is not None or measured.unpickling_limits
    return measured.workers > 0 and measured.stages.get("idle", 0.0) > HANDOVER and not explained


def _stalled(measured: Measured) -> bool:
    """Data for free would be far faster although the loop hardly waits: its workers take the cores that the model
    needs. Where other programs take more of them than the workers do, it is not the data."""
    if measured.rate is None or measured.ceiling is None:
        return False
    workers_cores = measured.rate.value * (measured.worker_cpu_s or 0.0)
    return measured.ceiling.value > STALLED * measured.rate.value and measured.others_cores <= workers_cores


def _headline(recording: Recording, measured: Measured, bound: Bound | None) -> str:
    if bound is None:
        seen = units.count(recording.optimizer_steps, "optimiser step")
        return f"{seen} seen, but no loader." if recording.optimizer_steps else "No training step was seen."
    shares = measured.shares
    texts: dict[Bound, str] = {
        "data": f"Data-bound: the model waits for data {units.percent(shares.data)} of the time.",
        "copy": f"Copy-bound: {units.percent(shares.copy)} of the time goes into copies to the device.",
        "trainer": f"Trainer-bound: {units.percent(shares.trainer)} of the time is the script's own Python.",
        "compute": f"Compute-bound: the model computes {units.percent(shares.compute)} of the time.",
    }
    if bound == "data" and shares.data < THRESHOLDS["data"]:
        who = "the workers and other programs" if measured.others_cores else "the workers"
        return f"Data-bound: {who} take the cores that the model needs."
    return texts[bound]


def _evidence(recording: Recording, measured: Measured, bound: Bound | None) -> list[str]:
    if bound is None or measured.rate is None:
        unknown = "No loader of a known kind was iterated, so there is nothing to measure a rate by."
        return [unknown, *_without_loader(recording)]
    shares = measured.shares
    words = (("waiting for the next batch", shares.data), ("copying", shares.copy),
             ("in its own Python", shares.trainer), ("computing", shares.compute))  # fmt: skip
    parts = [f"{units.percent(share)} {word}" for word, share in words if share >= 0.005]
    told = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    said = [
        f"Over {units.count(measured.steps, 'step')} at {units.rate(measured.rate.value)}, the loop spent {told}."
    ]
    said += _crowd_evidence(measured)
    said += _ceiling_evidence(measured)
    said += _epoch_evidence(measured)
    said += _worker_evidence(measured, bound)
    said += _trainer_evidence(recording, bound)
    return said


def _without_loader(recording: Recording) -> list[str]:
    """What the main thread did in a loop whose batches come from nowhere we know."""
    seconds = max((one.seconds for one in recording.trainers), default=0.0)
    parts = sorted(parts_of(recording).items(), key=lambda item: -item[1])
    told = [f"{units.percent(share)} {name}" for name, share in parts if share >= 0.01]
    if not recording.optimizer_steps or not seconds or not told:
        return []
    rate = units.rate(recording.optimizer_steps / seconds, "optimiser steps/s")
    return [f"At {rate}, the main thread's time was {', '.join(told)}."]


def _crowd_evidence(measured: Measured) -> list[str]:
    if not measured.others_cores:
        return []
    taken = f"{units.number(measured.others_cores, 2)} of the {measured.cores:g} cores"
    return [f"Other programs took {taken} meanwhile: without them the script is faster, whatever bounds it."]


def _epoch_evidence(measured: Measured) -> list[str]:
    """Where epochs are short, what they begin with is part of the bill."""
    if measured.rate is None or not measured.epoch_samples:
        return []
    steps_s = measured.epoch_samples / measured.rate.value
    if measured.epoch_start_s < EPOCH_START * steps_s:
        return []
    whole = measured.epoch_samples / (steps_s + measured.epoch_start_s)
    return [
        f"Each epoch takes {units.seconds(measured.epoch_start_s)} to begin and end beside {units.seconds(steps_s)} "
        f"of steps: over whole epochs it is {units.rate(whole)}, which predictions are compared with."
    ]


def _ceiling_evidence(measured: Measured) -> list[str]:
    if measured.ceiling is None or measured.rate is None:
        return []
    factor = measured.ceiling.value / measured.rate.value
    if factor < 1.05:
        return [f"With data for free it is no faster ({units.rate(measured.ceiling.value)})."]
    reached = units.rate(measured.ceiling.value)
    return [f"With data for free the same script reaches {reached}, {units.times(factor)} as much."]


def _worker_evidence(measured: Measured, bound: Bound) -> list[str]:
    said: list[str] = []
    busy = {n: s for n, s in measured.stages.items() if n != "idle" and s > 0}
    if busy:
        top = sorted(busy, key=lambda name: -busy[name])[:2]
        shares = " and ".join(f"{units.percent(busy[name])} in {_STAGE_WORDS[name]}" for name in top)
        who = "The trainer prepares its batches itself" if measured.workers == 0 else "The workers spend their time"
        idle = f"; they idle {units.percent(measured.stages['idle'])}" if measured.workers else ""
        said.append(f"{who}: {shares}{idle}.")
    if _batches_ready(measured) and measured.shares.data >= THRESHOLDS["data"]:
        said.append(
            "Batches are ready when they are asked for: what the loop waits is their handing over. Fewer and larger "
            "batches cost less of it, num_workers=0 none."
        )
    if measured.unpickling_limits:
        said.append(
            f"Unpickling batches in the training process takes {units.percent(measured.unpickle_share)} of the time."
        )
    if measured.slow_worker:
        worker, factor = measured.slow_worker
        said.append(
            f"Worker {worker.worker} takes {units.times(factor)} as long per sample as the others: all wait for it."
        )
    if measured.slowdown > 1.25 and bound in ("data", "compute") and measured.stages.get("idle", 0.0) < 0.5:
        said.append(
            f"Cores are short: what needs one second of CPU takes the workers {measured.slowdown:.1f} s "
            f"on {measured.cores:g} cores."
        )
    return said


_WORDS = ("reading", "decoding", "transforming", "collating", "sending", "idling", "other work")
_STAGE_WORDS: dict[str, str] = dict(zip(STAGES, _WORDS, strict=True))


def _trainer_evidence(recording: Recording, bound: Bound | None) -> list[str]:
    place = next(iter(own_places(recording)), None)
    if bound != "trainer" or place is None:
        return []
    return [f"Most of the main thread's own time is in {place}."]
