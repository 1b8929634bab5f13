"""Recording -> Diagnosis: what the training loop waits for, with the evidence, and what each remedy would give. Pure.

The rule, in order (shares as in `measure.main_thread`; one below its threshold is no candidate, the largest wins):

    data      the loop is blocked on batches the share `DATA_BOUND` of the time or more; or the ceiling leg
              is 1.5 times as fast although it hardly waits: workers and model fight for the same cores
    copy      15 % or more in host-to-device copies
    trainer   25 % or more in the main thread's own Python, logging, synchronising
    compute   none of these: the model is the limit

Waiting for batches that are ready is not a lack of data: where the workers idle four fifths of the time, none of them
is slow, and neither unpickling nor pinning explains it, the loop waits for the handing over (tiny batches, or other
programs on the cores), and data is a candidate only if it is half of the time or more.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from feedline.profiling.explain.measure.main_thread import busiest_place, parts_of
from feedline.profiling.explain.measure.situation import DATA_BOUND, Measured, measure
from feedline.profiling.explain.predict import Prediction, all_predictions
from feedline.profiling.record import units
from feedline.profiling.record.recording import Line, Recording
from feedline.profiling.record.stages import STAGES

Bound = Literal["data", "copy", "compute", "trainer"]
THRESHOLDS: dict[Bound, float] = {"data": DATA_BOUND, "copy": 0.15, "trainer": 0.25}
STALLED = 1.5  # the ceiling over the measured rate from which data is to blame even if the loop hardly waits
HANDOVER = 0.8  # workers that idle more than this share of the time have batches ready
EPOCH_START = 0.03  # share of an epoch from which its beginning is worth a sentence


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    bound: Bound | None  # None: no step was seen, and `headline` says so
    headline: str  # the verdict in one short sentence
    evidence: list[str]  # sentences that carry it, the strongest first
    measured: Measured
    predictions: list[Prediction]

    @property
    def recording(self) -> Recording:
        return self.measured.recording

    @property
    def lines(self) -> list[Line]:
        """Those that took most first."""
        return sorted(self.recording.lines, key=lambda line: -line.seconds)

    @property
    def notes(self) -> list[str]:
        return [*self.measured.notes, *self.recording.notes]

    @property
    def samples_per_s(self) -> float | None:
        rate = self.measured.rates.now
        return rate.value if rate else None

    @property
    def ceiling_samples_per_s(self) -> float | None:
        ceiling = self.measured.rates.ceiling
        return ceiling.value if ceiling else None

    @property
    def top_stage(self) -> str | None:
        """Where the workers spend most of their busy time."""
        busy = {name: share for name, share in self.measured.workers.stages.items() if name not in ("idle", "other")}
        return max(busy, key=lambda name: busy[name]) if any(busy.values()) else None


def diagnose(recording: Recording) -> Diagnosis:
    measured = measure(recording)
    bound = _bound(measured)
    headline, evidence = _verdict(measured, bound) if bound else _without_loader(recording)
    predictions = all_predictions(measured)
    return Diagnosis(bound=bound, headline=headline, evidence=evidence, measured=measured, predictions=predictions)


def record_keys(diagnosis: Diagnosis) -> dict[str, Any]:
    """The keys of a `profile` record: verdict, stages, workers, predictions, gpu, lines. JSON-ready."""
    measured = diagnosis.measured
    now, rates, workers, trainer = measured.now, measured.rates, measured.workers, measured.trainer
    named = ("worker", "rank", "pid", "samples", "in_trainer")
    return {
        "verdict": {
            "bound": diagnosis.bound,
            "headline": diagnosis.headline,
            "evidence": diagnosis.evidence,
            "wait_fraction": trainer.wait_fraction,
            "samples_per_s": diagnosis.samples_per_s,
            "low": now.low if now else None,
            "high": now.high if now else None,
            "ceiling_samples_per_s": diagnosis.ceiling_samples_per_s,
            "overhead_fraction": diagnosis.recording.overhead.fraction,
            "shares": asdict(trainer.shares),
            "steps": trainer.steps,
            "others_cores": measured.machine.others_cores,
            "epoch_start_s": rates.epoch_start_s,
            "epoch_samples": rates.epoch_samples,
        },
        "stages": workers.stages,
        "workers": [{**{name: getattr(w, name) for name in named}, **stages} for w, stages in workers.each],
        "predictions": [{**asdict(p), "effort": p.effort.name.lower()} for p in diagnosis.predictions],
        "gpu": [asdict(gpu) for gpu in diagnosis.recording.gpus],
        "lines": [asdict(line) for line in diagnosis.lines],
        "notes": diagnosis.notes,
    }


def _bound(measured: Measured) -> Bound | None:
    now, ceiling = measured.rates.now, measured.rates.ceiling
    if now is None:
        return None
    shares = asdict(measured.trainer.shares)
    least = {**THRESHOLDS, "data": 0.5} if _batches_ready(measured) else THRESHOLDS
    candidates: dict[Bound, float] = {name: shares[name] for name in THRESHOLDS if shares[name] >= least[name]}
    if candidates:
        return max(candidates, key=lambda name: candidates[name])
    # Data for free would be far faster although the loop hardly waits: its workers take the cores that the model
    # needs. Where other programs take more of them than the workers do, it is not the data.
    workers_cores = now.value * (measured.workers.cpu_s or 0.0)
    stalled = ceiling is not None and ceiling.value > STALLED * now.value
    return "data" if stalled and measured.machine.others_cores <= workers_cores else "compute"


def _batches_ready(measured: Measured) -> bool:
    workers = measured.workers
    pinned = measured.loader is not None and measured.loader.pin_memory and not measured.machine.on_cpu
    explained = pinned or workers.slow is not None or measured.unpickling_limits
    return workers.count > 0 and workers.stages.get("idle", 0.0) > HANDOVER and not explained


def _without_loader(recording: Recording) -> tuple[str, list[str]]:
    """What the main thread did in a loop whose batches come from no loader that is known."""
    evidence = ["No loader of a known kind was iterated, so there is nothing to measure a rate by."]
    if not recording.optimizer_steps:
        return "No training step was seen.", evidence
    seconds = max((trainer.seconds for trainer in recording.trainers), default=0.0)
    parts = sorted(parts_of(recording).items(), key=lambda item: -item[1])
    words = [f"{units.percent(share)} {name}" for name, share in parts if share >= 0.01]
    if seconds and words:
        rate = units.rate(recording.optimizer_steps / seconds, "optimiser steps/s")
        evidence.append(f"At {rate}, the main thread's time was {', '.join(words)}.")
    return f"{units.count(recording.optimizer_steps, 'optimiser step')} seen, but no loader.", evidence


def _verdict(measured: Measured, bound: Bound) -> tuple[str, list[str]]:
    """The headline and its evidence."""
    now, ceiling, shares = measured.rates.now, measured.rates.ceiling, measured.trainer.shares
    others, cores = measured.machine.others_cores, measured.machine.cores
    assert now is not None
    headline = {
        "data": f"Data-bound: the model waits for data {units.percent(shares.data)} of the time.",
        "copy": f"Copy-bound: {units.percent(shares.copy)} of the time goes into copies to the device.",
        "trainer": f"Trainer-bound: {units.percent(shares.trainer)} of the time is the script's own Python.",
        "compute": f"Compute-bound: the model computes {units.percent(shares.compute)} of the time.",
    }[bound]
    if bound == "data" and shares.data < THRESHOLDS["data"]:
        who = "the workers and other programs" if others else "the workers"
        headline = f"Data-bound: {who} take the cores that the model needs."
    words = {"waiting for the next batch": shares.data, "copying": shares.copy, "in its own Python": shares.trainer,
             "computing": shares.compute}  # fmt: skip
    parts = [f"{units.percent(share)} {word}" for word, share in words.items() if share >= 0.005]
    spent = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    steps = units.count(measured.trainer.steps, "step")
    evidence = [f"Over {steps} at {units.rate(now.value)}, the loop spent {spent}."]
    if others:
        evidence.append(
            f"Other programs took {units.number(others, 2)} of the {cores:g} cores meanwhile: without them the "
            "script is faster, whatever bounds it. The intervals are wider for it."
        )
    if ceiling is not None:
        reached, factor = units.rate(ceiling.value), ceiling.value / now.value
        faster = f"With data for free the same script reaches {reached}, {units.times(factor)} as much."
        evidence.append(faster if factor >= 1.05 else f"With data for free it is no faster ({reached}).")
    evidence += [*_of_epochs(measured), *_of_the_workers(measured, bound)]
    if bound == "trainer" and (place := busiest_place(measured.recording)):
        evidence.append(f"Most of the main thread's own time is in {place}.")
    return headline, evidence


def _of_epochs(measured: Measured) -> list[str]:
    """Short epochs whose beginning and end take a notable share."""
    rates, whole = measured.rates, measured.over_epochs
    if rates.now is None or whole is None or not rates.epoch_samples:
        return []
    steps_s = rates.epoch_samples / rates.now.value
    if rates.epoch_start_s < EPOCH_START * steps_s:
        return []
    return [
        f"Each epoch takes {units.seconds(rates.epoch_start_s)} to begin and end beside {units.seconds(steps_s)} "
        f"of steps: over whole epochs it is {units.rate(whole.value)}, "
        "which predictions are compared with."
    ]


def _of_the_workers(measured: Measured, bound: Bound) -> list[str]:
    workers, trainer, sentences = measured.workers, measured.trainer, list[str]()
    busy = {name: share for name, share in workers.stages.items() if name != "idle" and share > 0}
    if busy:
        top = sorted(busy, key=lambda name: -busy[name])[:2]
        shares = " and ".join(f"{units.percent(busy[name])} in {STAGES[name].words}" for name in top)
        who = "The workers spend their time" if workers.count else "The trainer prepares its batches itself"
        idle = f"; they idle {units.percent(workers.stages['idle'])}" if workers.count else ""
        sentences.append(f"{who}: {shares}{idle}.")
    if _batches_ready(measured) and trainer.shares.data >= THRESHOLDS["data"]:
        sentences.append(
            "Batches are ready when they are asked for: the loop waits for their handing over. Fewer and larger "
            "batches cost less of it, num_workers=0 none."
        )
    if measured.unpickling_limits:
        share = units.percent(trainer.unpickle_share)
        sentences.append(f"Unpickling batches in the training process takes {share} of the time.")
    if workers.slow:
        worker, factor = workers.slow
        sentences.append(
            f"Worker {worker.worker} takes {units.times(factor)} as long per sample as the others: all wait for it."
        )
    if workers.slowdown > 1.25 and bound in ("data", "compute") and workers.stages.get("idle", 0.0) < 0.5:
        sentences.append(
            f"Cores are short: what needs one second of CPU takes the workers {workers.slowdown:.1f} s "
            f"on {measured.machine.cores:g} cores."
        )
    return sentences
