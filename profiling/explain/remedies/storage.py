"""Remedies for where samples come from: feedline's loader, prepared shards, memory, faster storage. Pure."""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.measure.rates import Rate
from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.explain.remedies.remedy import Change, Effort, Remedy, Vain
from feedline.profiling.record import units
from feedline.profiling.record.recording import Trial
from feedline.profiling.record.stages import STAGES

NO_WAIT = Vain("the loop hardly waits for data")
NOTABLE = 1.05  # a model that is faster by less on feedline's batches is as fast as before
LIMITS = {
    "compute": "; the model is then the limit",
    "cores": "; the cores are then the limit",
    "storage": "; the storage, at the bytes/s your files came at when cold, is then the limit",
}


def prepared(at: Situation) -> Iterable[Change]:
    """One per trial on the user's own samples, and number of workers."""
    as_is = {trial.loader: trial for trial in at.recording.trials if trial.codec == "as-is"}
    usual = at.now.workers or max(1, min(2, int(at.measured.machine.cores)))
    for trial in at.recording.trials:
        if trial.codec == "as-is" and trial.loader != "feedline":
            continue
        for count in sorted({usual, *at.workers}):
            then = _with_trial(at, at.with_workers(count), trial, as_is.get(trial.loader))
            if then is not None:
                yield _prepared(at, trial, replace(then, storage_samples_per_s=_from_storage(at, trial)))


def _with_trial(at: Situation, now: Throughput, trial: Trial, as_is: Trial | None) -> Throughput | None:
    """The model with the costs of prepared samples.

    feedline's loader: the trial's own cost, nothing to collate, serialise or unpickle, and the model computes on its
    batches. The script's own loader: its reading, decoding and transforming shrink by the ratio of the trial to the
    same trial on the samples as they are.
    """
    cost_s = trial.load_cpu_s_per_sample
    if cost_s is None:
        return None
    if trial.loader == "feedline":
        times = at.measured.trainer.our_batches.value
        return replace(
            now, worker_s=cost_s, worker_cpu_s=cost_s, handover_s=0.0, contention={},
            epoch_start_s=at.kept_start_s(cost_s), step_s=now.step_s / times, trainer_cpu_s=now.trainer_cpu_s / times,
        )  # fmt: skip
    if as_is is None or not as_is.load_cpu_s_per_sample:
        return None
    stages = at.measured.workers.stage_alone_s
    shrinking_s = sum(stages.get(name, 0.0) for name in STAGES if STAGES[name].shrinks) or now.worker_s
    share = min(1.0, shrinking_s / now.worker_s) if now.worker_s else 1.0
    scale = 1.0 - share + share * (cost_s / as_is.load_cpu_s_per_sample)
    return replace(now, worker_s=now.worker_s * scale, worker_cpu_s=now.worker_cpu_s * scale)


def _prepared(at: Situation, trial: Trial, then: Throughput) -> Change:
    as_is, ours, count = trial.codec == "as-is", trial.loader == "feedline", then.workers
    batches = at.measured.trainer.our_batches if ours else Rate(value=1.0, error=0.0)
    spread = (trial.load_cpu_s_spread or 0.0) / (trial.load_cpu_s_per_sample or 1.0)
    what = "your files as they are" if as_is else f"prepared {trial.size_px} px {trial.codec} shards"
    whose = "feedline's loader" if ours else "your own loader"
    workers = "" if count == at.now.workers else f", {units.count(count, 'worker')}"
    cost, before = units.seconds(trial.load_cpu_s_per_sample), units.seconds(at.now.worker_s or None)
    why: str = (
        f"one sample then takes {cost} of a core instead of {before}, measured on {trial.samples} of yours"
        + LIMITS.get(then.binding(), "")
    )
    if at.hardly_waits:
        faster = f"the model is {units.times(batches.value)} as fast on batches as feedline's loader hands them over"
        why = faster if batches.value > NOTABLE else NO_WAIT
    return Change(
        remedy=f"{what}, {whose}{workers}", then=then, effort=Effort.CODE if as_is else Effort.PREPARING, why=why,
        settings={"codec": trial.codec, "size": trial.size_px, "loader": trial.loader, "num_workers": count},
        trial=trial, extra_error=math.hypot(max(0.05, spread), batches.error), ceiling_times=batches.value,
    )  # fmt: skip


def _from_storage(at: Situation, trial: Trial) -> float | None:
    """samples/s of a trial's samples at the bytes/s the cold leg got; None where they are read from memory."""
    cold, now_bytes = _slower_when_cold(at), at.recording.costs.read_bytes
    size = trial.bytes_per_sample if trial.codec != "as-is" else now_bytes
    if cold is None or not now_bytes or not size or not _outgrows_memory(at, size * (at.dataset_samples or 0)):
        return None
    return cold.value * now_bytes / size


def _slower_when_cold(at: Situation) -> Rate | None:
    """The cold leg's rate, where it is clearly below the measured one: storage is the limit then."""
    cold = at.measured.rates.cold
    return cold if cold is not None and cold.high < at.rate.low else None


def _outgrows_memory(at: Situation, size_bytes: float) -> bool:
    memory = float(at.recording.host.get("memory_bytes") or 0)
    return bool(size_bytes and memory and size_bytes > 0.7 * memory)


def without_reading(at: Situation) -> Iterable[Change]:
    """Memory and faster storage both take away the time blocked in reads, no more."""
    now, memory = at.now, units.size(float(at.recording.host.get("memory_bytes") or 0))
    read_s = at.measured.workers.stage_alone_s.get("read", 0.0)
    share = read_s / now.worker_s if now.worker_s else 0.0
    reason = f"reading is {units.percent(share)} of a worker's busy time"
    then, why = now, NO_WAIT if share >= 0.05 else Vain(reason)
    if share >= 0.05 and not at.hardly_waits:
        left_s = max(0.0, now.worker_s - 0.9 * read_s)
        cpu_s = min(now.worker_cpu_s, left_s)
        then = replace(now, worker_s=left_s, worker_cpu_s=cpu_s, storage_samples_per_s=None)
        why = reason
    whole = (at.recording.costs.read_bytes or 0.0) * (at.dataset_samples or 0)
    outgrown = _outgrows_memory(at, whole)
    no_room = outgrown and not isinstance(why, Vain)
    cost = f"{units.size(whole)} of memory" if whole else "memory for the whole dataset"
    yield Change(remedy="cache in RAM", then=now if no_room else then, effort=Effort.CODE, extra_error=0.05,
                 why=Vain(f"{units.size(whole)} of data do not fit into {memory} of memory") if no_room else why,
                 cost=f"{cost}, from the second epoch on")  # fmt: skip
    if cold := _slower_when_cold(at):
        when = "in a first epoch and all others" if outgrown else "in a first epoch"
        from_storage = f"; from storage itself, as {when}, the loop runs at {units.rate(cold.value)}"
        why = type(why)(why + from_storage)
    yield Change(remedy="faster storage", then=then, effort=Effort.HARDWARE, why=why, extra_error=0.05)


REMEDIES: tuple[Remedy, ...] = (prepared, without_reading)
