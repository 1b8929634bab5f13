"""Remedies for the script's own loader: its workers, its queue, what its stages cost. Pure."""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.pipeline.base.settings import PREFETCH
from feedline.profiling.explain.measure.situation import HARDLY, Situation
from feedline.profiling.explain.remedies.remedy import Change, Effort, Remedy, Vain
from feedline.profiling.record import units

MOST_WORKERS = 32
MOVING_S_PER_BYTE = 3e-9
"""The most that collating and sending a byte costs: three passes over it at about 1 GB/s, fresh pages included."""
NO_WAIT = Vain("the loop hardly waits for its workers")
HINTS = {
    "collate": " (write samples straight into one batch array, as feedline's loader does)",
    "send": " (hand over tensors rather than objects, uint8 rather than float, few pieces per batch)",
    "decode": " (decode smaller or prepared images)",
}


def more_workers(at: Situation) -> Iterable[Change]:
    """1, 2, 4, … up to the cores each rank can use; further when the workers mostly wait for storage."""
    share = max(1.0, at.measured.machine.cores / at.now.ranks)
    cpu_share = at.now.worker_cpu_s / at.now.worker_s if at.now.worker_s else 1.0
    waiting = cpu_share < 0.5 and at.measured.workers.slow is None
    top = min(MOST_WORKERS, int(share / max(cpu_share, 0.1)) if waiting else int(share))
    counts = {int(share), *at.workers, *(2**power for power in range(6) if 2**power <= top)}
    for count in sorted(counts - {at.now.workers}):
        then = at.with_workers(count)
        yield Change(remedy=f"num_workers={count}", then=then, effort=Effort.SETTING,
                     why=_why_workers(at, count, then.binding()), settings={"num_workers": count})  # fmt: skip


def _why_workers(at: Situation, count: int, binding: str) -> str:
    if not at.now.workers:
        return "the training process prepares every batch itself: a worker would prepare the next while it computes"
    if at.hardly_waits:
        return NO_WAIT
    if count < at.now.workers:
        better = at.with_workers(count).rate() > at.now.rate()
        more = f"{at.now.workers} workers are there now"
        return "fewer workers leave the model more of the cores" if better else Vain(more)
    if binding == "cores":
        return f"the {at.measured.machine.cores:g} cores are then the limit: workers and trainer share them"
    if binding == "compute":
        return "the workers then keep up with the model"
    return f"each worker prepares {units.rate(1 / at.now.worker_s if at.now.worker_s else None)}"


def prefetch(at: Situation) -> Iterable[Change]:
    """A longer queue smooths; it cannot raise the loader's average."""
    if not at.now.workers:
        return
    loader, alone = at.measured.loader, at.measured.rates.loader_only.get(at.now.workers)
    deeper = max(4, 2 * ((loader.prefetch_factor if loader else None) or PREFETCH))
    room = alone.value / at.rate.value if alone else 1.0
    then, error = at.now, 0.0
    why: str = Vain("the queue is hardly ever empty")
    if at.measured.trainer.shares.data >= HARDLY:
        why = Vain("a longer queue only evens out: what is missing is the workers' average rate")
        if alone is not None and room > 1.1:
            # Half of what the loader could do alone: with the model running it will not get all of it back.
            then = replace(at.now, worker_s=at.now.worker_s / (0.5 + 0.5 * room), contention={})
            why, error = f"the loader alone reaches {units.rate(alone.value)}: its batches come unevenly", 0.15
    yield Change(remedy=f"prefetch_factor={deeper}", then=then, effort=Effort.SETTING, why=why,
                 settings={"prefetch_factor": deeper}, extra_error=error)  # fmt: skip


def kept_workers(at: Situation) -> Iterable[Change]:
    """Without persistent_workers every epoch begins by starting processes and filling the queue."""
    loader, now = at.measured.loader, at.now
    if not now.workers or loader is None or loader.persistent_workers is not False or not now.epoch_samples:
        return
    seconds = now.epoch_samples / at.rate.value + now.epoch_start_s
    why = f"starting an epoch takes {units.seconds(now.epoch_start_s)} of its {units.seconds(seconds)}"
    yield Change(remedy="persistent_workers=True", effort=Effort.SETTING, extra_error=0.02,
                 then=replace(now, epoch_start_s=at.kept_start_s(now.worker_s)),
                 why=Vain(why) if now.epoch_start_s < HARDLY * seconds else why,
                 settings={"persistent_workers": True})  # fmt: skip


def slow_worker(at: Situation) -> Iterable[Change]:
    workers = at.measured.workers
    if workers.slow is None or not at.now.workers:
        return
    worker, factor, _ = workers.slow
    cpu_s = min(at.now.worker_cpu_s, workers.even_s)
    then = replace(at.now, worker_s=workers.even_s, worker_cpu_s=cpu_s, contention={})
    why = f"it takes {units.times(factor)} as long per sample as the others, and batches are taken in turn"
    yield Change(remedy=f"mend worker {worker.worker}", then=then, effort=Effort.CODE, why=why, extra_error=0.05)


def cheaper_stage(at: Situation) -> Iterable[Change]:
    """What taking the top stage (or its top transform) away would give: the upper bound of tuning it."""
    workers = at.measured.workers
    stages = {n: s for n, s in workers.stage_alone_s.items() if n not in ("idle", "other", "read")}
    name = max(stages, key=lambda stage: workers.stages.get(stage, 0.0), default="")
    short = not workers.alone_s or not at.now.worker_s or stages.get(name, 0.0) < 0.15 * workers.alone_s
    if short or workers.slow is not None:  # where one worker is slow, its stages are not those of all
        return
    what, part, transforms = name, 1.0, workers.transforms
    if name == "transform" and sum(transforms.values()) > 0:
        top = max(transforms, key=lambda transform: transforms[transform])
        what, part = f"transform {top}", transforms[top] / sum(transforms.values())
    share = part * stages[name] / workers.alone_s
    left_s = (1.0 - share) * at.now.worker_s
    cpu_s = min(left_s, max(0.0, at.now.worker_cpu_s - part * stages[name]))
    then = replace(at.now, worker_s=left_s, worker_cpu_s=cpu_s, contention={})
    why = f"it takes {units.percent(share)} of a worker's busy time: this is what it would give if it cost nothing"
    yield Change(remedy=f"cheaper {what}", then=then, effort=Effort.CODE, extra_error=0.08,
                 why=NO_WAIT if at.hardly_waits else why + HINTS.get(name, ""))  # fmt: skip


def lighter_batches(at: Situation) -> Iterable[Change]:
    """Batches whose objects take the main thread long to unpickle."""
    if not at.measured.unpickling_limits:
        return
    left_s = max(0.0, at.now.worker_s - at.measured.workers.stage_alone_s.get("send", 0.0))
    then = replace(at.now, handover_s=0.0, worker_s=left_s, worker_cpu_s=min(at.now.worker_cpu_s, left_s))
    share = units.percent(at.measured.trainer.unpickle_share)
    why = f"the training process spends {share} of the time unpickling batches{HINTS['send']}"
    yield Change(remedy="cheaper send: lighter batches", then=then, effort=Effort.CODE, why=why, extra_error=0.08)


def uint8(at: Situation) -> Iterable[Change]:
    """Four times fewer bytes to collate, send, unpickle and copy; made float and normalised on the device."""
    loader, stages, now = at.measured.loader, at.measured.workers.stage_alone_s, at.now
    if loader is None or not any("float32" in kind for kind in loader.batch_dtypes):
        return
    # Only what goes with the bytes gets cheaper: a collate function with costs of its own keeps them.
    per_sample = (loader.batch_bytes or 0) / max(loader.batch_size or 1, 1)
    moving_s = min(stages.get("collate", 0.0) + stages.get("send", 0.0), per_sample * MOVING_S_PER_BYTE)
    saved_s, copy_s = min(now.worker_s, 0.75 * moving_s), 0.75 * (at.measured.trainer.copy_s or 0.0)
    then = replace(now, worker_s=now.worker_s - saved_s, worker_cpu_s=max(0.0, now.worker_cpu_s - saved_s),
                   handover_s=now.handover_s / 4, step_s=max(0.0, now.step_s - copy_s))  # fmt: skip
    why: str = f"collating, sending and copying a quarter of {units.size(loader.batch_bytes)} a batch"
    if saved_s < 0.03 * now.worker_s and copy_s + 0.75 * now.handover_s < 0.03 * now.step_s:
        why = Vain("collating, sending and copying batches takes next to no time")
    yield Change(remedy="uint8 batches", then=then, effort=Effort.CODE, why=why, extra_error=0.05,
                 cost="a change of code: normalise on the device", settings={"dtype": "uint8"},
                 ceiling_times=math.inf if copy_s else 1.0)  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (
    more_workers, prefetch, kept_workers, slow_worker, cheaper_stage, lighter_batches, uint8,
)  # fmt: skip
