"""Recording -> Diagnosis: what the training loop waits for, the evidence, and what each remedy would give. Pure."""

from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from feedline.profiling.explain.bound import Bound, judged, too_few, unseen
from feedline.profiling.explain.cause import Cause, cause_of
from feedline.profiling.explain.measure.main_thread import busiest_places
from feedline.profiling.explain.measure.situation import Measured, measure
from feedline.profiling.explain.measure.workers import FEW_LOOKS
from feedline.profiling.explain.predict import Prediction, all_predictions, cold_epoch
from feedline.profiling.explain.remedies.remedy import Effort
from feedline.profiling.explain.wording import evidence, headline
from feedline.profiling.record.recording import Line, Recording


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    bound: Bound | None  # None: it cannot be told, and `headline` says why
    close: list[Bound]  # others that it may be, for their thresholds are close
    headline: str  # the verdict in one short sentence
    evidence: list[str]  # sentences that carry it, the strongest first
    cause: Cause  # what limits the data, where the loop waits for it
    measured: Measured
    predictions: list[Prediction]

    @property
    def certain(self) -> bool:
        return self.bound is not None and not self.close

    @property
    def first(self) -> Prediction | None:
        """The first thing to do: what helps, and that with a line to write or to type where there is one; for a loop
        that waits for data else what may mend that, short of hardware. None where there is none, or the bound cannot
        be told."""
        written = (one for one in self.predictions if one.helps and one.command)
        best = next(chain(written, self.predictions), None) if self.bound else None
        if best is None or best.helps:
            return best
        tried = self.bound == "data" and best.in_doubt and best.of_data and best.effort < Effort.HARDWARE
        return best if tried else None

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


def diagnose(recording: Recording) -> Diagnosis:
    measured = measure(recording)
    verdict = judged(measured)
    cause = Cause()
    if "data" in (verdict.bound, *verdict.close):
        cause = cause_of(measured)
    elif verdict.bound == "trainer":
        shares, errors = measured.trainer.shares, measured.trainer.errors
        cause = Cause(where=" and ".join(busiest_places(recording)), share=shares.trainer, error=errors.trainer)
    return Diagnosis(
        bound=verdict.bound,
        close=verdict.close,
        headline=headline(measured, verdict),
        evidence=evidence(measured, verdict, cause),
        cause=cause,
        measured=measured,
        predictions=[] if unseen(measured) else all_predictions(measured),
    )


def record_keys(diagnosis: Diagnosis) -> dict[str, Any]:
    """The keys of a `profile` record: verdict, storage, stages, workers, predictions, gpu, lines. JSON-ready."""
    measured = diagnosis.measured
    now, rates, workers, trainer = measured.now, measured.rates, measured.workers, measured.trainer
    named = ("worker", "rank", "pid", "samples", "in_trainer")
    return {
        "verdict": {
            "bound": diagnosis.bound,
            "close": diagnosis.close,
            "certain": diagnosis.certain,
            "headline": diagnosis.headline,
            "evidence": diagnosis.evidence,
            "wait_fraction": None if too_few(measured) else trainer.wait_fraction,
            "samples_per_s": None if too_few(measured) else diagnosis.samples_per_s,
            "low": now.low if now else None,
            "high": now.high if now else None,
            "ceiling_samples_per_s": diagnosis.ceiling_samples_per_s,
            "overhead_fraction": diagnosis.recording.overhead.fraction,
            "shares": known_shares(measured),
            "errors": asdict(trainer.errors),
            "cause": asdict(diagnosis.cause),
            "first": diagnosis.first and diagnosis.first.remedy,
            "steps": trainer.steps,
            "unit": measured.unit,
            "others_cores": measured.machine.others_cores,
            "epoch_start_s": rates.epoch_start_s,
            "epoch_samples": rates.epoch_samples,
        },
        "storage": storage_keys(measured),
        "stages": workers.stages if workers.looks >= FEW_LOOKS else dict.fromkeys(workers.stages),
        "stage_errors": workers.stage_errors,
        "workers": [{**{name: getattr(w, name) for name in named}, **stages} for w, stages in workers.each],
        "predictions": [{**asdict(p), "effort": p.effort.name.lower()} for p in diagnosis.predictions],
        "gpu": [asdict(gpu) for gpu in diagnosis.recording.gpus],
        "lines": [asdict(line) for line in diagnosis.lines],
        "notes": diagnosis.notes,
    }


def storage_keys(measured: Measured) -> dict[str, Any]:
    """What reads waited for (`limits`: the workers wait for storage; `source`: where the bytes came from), what they
    got, what the storage gives by itself, and a first epoch. None where it cannot be told."""
    storage, now, seen = measured.storage, measured.rates.now, measured.workers.looks >= FEW_LOOKS
    rate, cold = now.value if now else None, cold_epoch(measured)
    per_s = {"bytes_per_s": storage.sample_bytes, "reads_per_s": storage.calls}
    return {
        "limits": storage.limits if seen and storage.source is not None else None,
        "source": storage.source if seen else None,
        "blocked_share": storage.share if seen else None,
        "blocked_error": storage.error if seen else None,
        **{name: rate * each if rate and each else None for name, each in per_s.items()},
        "from_disk": storage.device,
        "gives": storage.gives and asdict(storage.gives),
        "cold": cold and cold._asdict(),
    }


def known_shares(measured: Measured) -> dict[str, float | None]:
    """The shares, None where they were not measured, or over too few steps to say anything."""
    trainer, shares = measured.trainer, asdict(measured.trainer.shares)
    hidden = {"data"} if trainer.wait_fraction is None else set[str]()
    if trainer.looks < FEW_LOOKS:
        hidden |= {"trainer", "compute", "other"}
    if trainer.copy_s is None and not measured.machine.on_cpu:
        hidden.add("copy")
    if too_few(measured):
        hidden = {*shares}
    return {name: None if name in hidden else share for name, share in shares.items()}
