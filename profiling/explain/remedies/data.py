"""The remedies for data: workers, queues, prepared samples, storage, the stages themselves. Pure.

Each is a small function from the situation to changes, also ones that "will not help, because …". Those that touch
copies, the main thread and the model are in `remedies_compute`; `all_predictions` ranks them all.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.measure import Rate
from feedline.profiling.explain.predict import (
    Change,
    Prediction,
    Situation,
    even_worker_s,
    kept_start_s,
    our_batches_error,
    our_batches_times,
    predict,
    with_our_batches,
    with_own_workers,
    with_stall,
    with_trial,
)
from feedline.profiling.explain.remedies import compute
from feedline.profiling.explain.throughput import Throughput
from feedline.profiling.record import units
from feedline.profiling.record.recording import Trial

MOST_WORKERS = 32
HARDLY = 0.03
"""A share of waiting below this is noise."""
IN_VAIN = "this will not help, because"
FREEING = 0.15
"""Of the time that unpickling objects took: 0.12 to 0.23 in runs of tests/profiling/scripts/planted.py serialise."""


def all_predictions(at: Situation) -> list[Prediction]:
    """Ranked: what helps first, by its rate; near ties (3 %) by how little it takes; then what does not help."""
    at = with_stall(at)
    remedies = (
        more_workers,
        prefetch,
        kept_workers,
        prepared,
        storage,
        slow_worker,
        cheaper_stage,
        lighter_batches,
        *compute.REMEDIES,
    )
    found = [predict(at, change) for remedy in remedies for change in remedy(at)]
    step = 0.03 * at.rate.value
    return sorted(found, key=lambda one: (not one.helps, -round(one.samples_per_s / step), _toil(one)))


def _toil(prediction: Prediction) -> int:
    """0 one argument, 1 a change of code, 2 preparing data, 3 hardware."""
    if "hardware" in prediction.cost:
        return 3
    if "prepar" in prediction.cost:
        return 2
    return 0 if "argument" in prediction.cost else 1


def worker_counts(at: Situation) -> list[int]:
    """1, 2, 4, … up to the cores each rank can use; further when the workers mostly wait for storage."""
    share = max(1.0, at.measured.cores / at.now.ranks)
    cpu_share = at.now.worker_cpu_s / at.now.worker_s if at.now.worker_s else 1.0
    waiting = cpu_share < 0.5 and at.measured.slow_worker is None
    top = min(MOST_WORKERS, int(share / max(cpu_share, 0.1)) if waiting else int(share))
    counts = {2**power for power in range(6) if 2**power <= top} | {int(share)}
    return sorted(counts - {at.now.workers})


def more_workers(at: Situation) -> Iterable[Change]:
    for workers in worker_counts(at):
        then = with_own_workers(at, workers)
        why = _why_workers(at, workers, then.binding())
        settings = {"num_workers": workers}
        yield Change(remedy=f"num_workers={workers}", then=then, cost="one argument", why=why, settings=settings)


def _why_workers(at: Situation, workers: int, binding: str) -> str:
    if not at.now.workers:
        return "the training process prepares every batch itself: a worker would prepare the next while it computes"
    if at.measured.shares.data < HARDLY:
        return f"{IN_VAIN} the loop hardly waits for its workers"
    if workers < at.now.workers:
        return f"{IN_VAIN} {at.now.workers} workers are there now"
    if binding == "cores":
        return f"the {at.measured.cores:g} cores are then the limit: workers and trainer share them"
    if binding == "compute":
        return "the workers then keep up with the model"
    return f"each worker prepares {units.rate(1 / at.now.worker_s if at.now.worker_s else None)}"


def prefetch(at: Situation) -> Iterable[Change]:
    """A longer queue smooths; it cannot raise the loader's average."""
    if not at.now.workers:
        return
    now = at.measured.loader.prefetch_factor if at.measured.loader else None
    deeper = max(4, 2 * (now or 2))
    own = at.measured.loader_only.get(at.now.workers)
    room = own.value / at.rate.value if own else 1.0
    then, why, error = at.now, f"{IN_VAIN} the queue is hardly ever empty", 0.0
    if at.measured.shares.data >= HARDLY:
        why = f"{IN_VAIN} a longer queue only evens out: what is missing is the workers' average rate"
    if at.measured.shares.data >= HARDLY and own is not None and room > 1.1:
        # Half of what the loader could do alone: with the model running it will not get all of it back.
        then = replace(at.now, worker_s=at.now.worker_s / (0.5 + 0.5 * room), contention={})
        why, error = f"the loader alone reaches {units.rate(own.value)}: its batches come unevenly", 0.15
    yield Change(remedy=f"prefetch_factor={deeper}", then=then, cost="one argument", why=why,
                 settings={"prefetch_factor": deeper}, extra_error=error)  # fmt: skip


def kept_workers(at: Situation) -> Iterable[Change]:
    """Without persistent_workers every epoch begins by starting processes and filling the queue."""
    loader, now = at.measured.loader, at.now
    if not now.workers or loader is None or loader.persistent_workers is not False or not now.epoch_samples:
        return
    then = replace(now, epoch_start_s=kept_start_s(now, at.measured, now.worker_s))
    seconds = now.epoch_samples / at.rate.value + now.epoch_start_s
    why = f"starting an epoch takes {units.seconds(now.epoch_start_s)} of its {units.seconds(seconds)}"
    if now.epoch_start_s < HARDLY * seconds:
        why = f"{IN_VAIN} {why}"
    yield Change(remedy="persistent_workers=True", then=then, cost="one argument", why=why,
                 settings={"persistent_workers": True}, extra_error=0.02)  # fmt: skip


def prepared(at: Situation) -> Iterable[Change]:
    """One per trial on the user's own samples."""
    as_is = {trial.loader: trial for trial in at.recording.trials if trial.codec == "as-is"}
    for trial in at.recording.trials:
        if trial.codec == "as-is" and trial.loader != "feedline":
            continue
        now = with_our_batches(at.now, at.measured) if trial.loader == "feedline" else at.now
        then = with_trial(now, at.measured, trial, as_is.get(trial.loader))
        if then is not None:
            workers = at.now.workers or max(1, min(2, int(at.measured.cores)))
            limit = from_storage(at, trial)
            yield _with_prepared(at, trial, replace(then, workers=workers, storage_samples_per_s=limit))


def _with_prepared(at: Situation, trial: Trial, then: Throughput) -> Change:
    spread = (trial.load_cpu_s_spread or 0.0) / (trial.load_cpu_s_per_sample or 1.0)
    layout = our_batches_error(at.measured) if trial.loader == "feedline" else 0.0
    return Change(
        remedy=_trial_name(trial, then.workers, at.now.workers),
        then=then,
        cost="a change of code" if trial.codec == "as-is" else "preparing once",
        why=_why_trial(at, trial, then.binding()),
        settings={"codec": trial.codec, "size": trial.size_px, "loader": trial.loader, "num_workers": then.workers},
        trial=trial,
        extra_error=math.hypot(max(0.05, spread), layout),
        ceiling_times=our_batches_times(at.measured) if trial.loader == "feedline" else 1.0,
    )


def _trial_name(trial: Trial, workers: int, workers_now: int) -> str:
    what = "your files as they are" if trial.codec == "as-is" else f"prepared {trial.size_px} px {trial.codec} shards"
    whose = "feedline's loader" if trial.loader == "feedline" else "your own loader"
    return f"{what}, {whose}" + ("" if workers == workers_now else f", {workers} worker{'s' if workers > 1 else ''}")


def _why_trial(at: Situation, trial: Trial, binding: str) -> str:
    if at.measured.shares.data < HARDLY and at.now.binding() == "compute":
        return f"{IN_VAIN} the loop hardly waits for data"
    cost, before = units.seconds(trial.load_cpu_s_per_sample), units.seconds(at.now.worker_s or None)
    text = f"one sample then takes {cost} of a core instead of {before}, measured on {trial.samples} of yours"
    limits = {
        "compute": "; the model is then the limit",
        "cores": "; the cores are then the limit",
        "storage": "; the storage, at the bytes/s your files came at when cold, is then the limit",
    }
    return text + limits.get(binding, "")


def data_bytes(at: Situation) -> float:
    """Of the dataset as the script reads it; 0 where that is not known."""
    return (at.recording.costs.read_bytes or 0.0) * (at.dataset_samples or 0)


def outgrows_memory(at: Situation, size_bytes: float) -> bool:
    memory = float(at.recording.host.get("memory_bytes") or 0)
    return bool(size_bytes and memory and size_bytes > 0.7 * memory)


def slower_when_cold(at: Situation) -> Rate | None:
    """The cold leg's rate, where it is clearly below the measured one: storage is the limit then."""
    cold = at.measured.cold
    return cold if cold is not None and cold.high < at.rate.low else None


def from_storage(at: Situation, trial: Trial) -> float | None:
    """samples/s of a trial's samples at the bytes/s the cold leg got; None where they are read from memory."""
    cold, now_bytes = slower_when_cold(at), at.recording.costs.read_bytes
    size = trial.bytes_per_sample if trial.codec != "as-is" else now_bytes
    if cold is None or not now_bytes or not size or not outgrows_memory(at, size * (at.dataset_samples or 0)):
        return None
    return cold.value * now_bytes / size


def storage(at: Situation) -> Iterable[Change]:
    """A RAM cache and faster storage both take away the time blocked in reads, no more."""
    read_s = at.measured.stage_alone_s.get("read", 0.0)
    share = read_s / at.now.worker_s if at.now.worker_s else 0.0
    left_s = max(0.0, at.now.worker_s - 0.9 * read_s)
    then = replace(at.now, worker_s=left_s, worker_cpu_s=min(at.now.worker_cpu_s, left_s), storage_samples_per_s=None)
    why = f"reading is {units.percent(share)} of a worker's busy time"
    whole, memory = data_bytes(at), float(at.recording.host.get("memory_bytes") or 0)
    too_big = outgrows_memory(at, whole)
    useless = share < 0.05 or at.measured.shares.data < HARDLY
    refusal = f"{IN_VAIN} {why}" if share < 0.05 else f"{IN_VAIN} the loop hardly waits for data"
    full = f"{IN_VAIN} {units.size(whole)} of data do not fit into {units.size(memory)} of memory"
    cost = f"{units.size(whole)} of memory" if whole else "memory for the whole dataset"
    cached, words = (at.now, refusal) if useless else (at.now, full) if too_big else (then, why)
    yield Change(
        remedy="cache in RAM", then=cached, cost=f"{cost}, from the second epoch on", why=words, extra_error=0.05
    )
    faster, words = (at.now, refusal) if useless else (then, why)
    if cold := slower_when_cold(at):
        when = "in a first epoch and all others" if too_big else "in a first epoch"
        words += f"; from storage itself, as {when}, the loop runs at {units.rate(cold.value)}"
    yield Change(remedy="faster storage", then=faster, cost="hardware", why=words, extra_error=0.05)


def slow_worker(at: Situation) -> Iterable[Change]:
    if at.measured.slow_worker is None or not at.now.workers:
        return
    worker, factor = at.measured.slow_worker
    even_s = even_worker_s(at.measured)
    then = replace(at.now, worker_s=even_s, worker_cpu_s=min(at.now.worker_cpu_s, even_s), contention={})
    why = f"it takes {units.times(factor)} as long per sample as the others, and batches are taken in turn"
    yield Change(remedy=f"mend worker {worker.worker}", then=then, cost="a change of code", why=why, extra_error=0.05)


def cheaper_stage(at: Situation) -> Iterable[Change]:
    """What taking the top stage (or its top transform) away would give: the upper bound of tuning it."""
    if at.measured.slow_worker is not None:
        return  # whose stages these are is the question then
    stages = {n: s for n, s in at.measured.stage_alone_s.items() if n not in ("idle", "other", "read")}
    name = max(stages, key=lambda one: at.measured.stages.get(one, 0.0), default="")
    busy_s = at.measured.worker_alone_s or 0.0
    if not busy_s or not at.now.worker_s or stages.get(name, 0.0) < 0.15 * busy_s:
        return
    what, part = _top_transform(at) if name == "transform" else (name, 1.0)
    share = part * stages[name] / busy_s
    left = 1.0 - share
    cpu_s = min(left * at.now.worker_s, max(0.0, at.now.worker_cpu_s - part * stages[name]))
    then = replace(at.now, worker_s=left * at.now.worker_s, worker_cpu_s=cpu_s, contention={})
    why = f"it takes {units.percent(share)} of a worker's busy time: this is what it would give if it cost nothing"
    if at.measured.shares.data < HARDLY:
        why = f"{IN_VAIN} the loop hardly waits for its workers"
    yield Change(remedy=f"cheaper {what}", then=then, cost="a change of code", why=why + _HINTS.get(name, ""),
                 extra_error=0.08)  # fmt: skip


def lighter_batches(at: Situation) -> Iterable[Change]:
    """Batches whose objects take the main thread long to unpickle."""
    share = at.measured.unpickle_share
    if not at.measured.unpickling_limits:
        return
    send_s = at.measured.stage_alone_s.get("send", 0.0)
    left_s = max(0.0, at.now.worker_s - send_s)
    # Objects that were unpickled are freed again, by the loop's own line: that looks like Python of the script.
    own_s = at.measured.shares.trainer * at.measured.ranks / at.rate.value
    step_s = max(0.0, at.now.step_s - min(FREEING * at.now.handover_s, own_s))
    then = replace(
        at.now, handover_s=0.0, step_s=step_s, worker_s=left_s, worker_cpu_s=min(at.now.worker_cpu_s, left_s)
    )
    why = f"the training process spends {units.percent(share)} of the time unpickling batches"
    yield Change(remedy="cheaper send: lighter batches", then=then, cost="a change of code", why=why + _HINTS["send"],
                 extra_error=0.08)  # fmt: skip


_HINTS = {
    "collate": " (write samples straight into one batch array, as feedline's loader does)",
    "send": " (hand over tensors rather than objects, uint8 rather than float, few pieces per batch)",
    "decode": " (decode smaller or prepared images)",
}


def _top_transform(at: Situation) -> tuple[str, float]:
    """The transform that takes most, and its share of all transforms."""
    totals: dict[str, float] = {}
    for worker, _ in at.measured.per_worker:
        for name, seconds in worker.transforms.items():
            totals[name] = totals.get(name, 0.0) + seconds
    if sum(totals.values()) <= 0:
        return "transform", 1.0
    name = max(totals, key=lambda one: totals[one])
    return f"transform {name}", totals[name] / sum(totals.values())
