"""Remedies for copies, the main thread and the model. Pure.

Factors that no measurement of the run supports (pinned copies, autocast, channels_last, more GPUs) are typical ones,
with the range published for such changes as the interval, and the prediction says so.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.measure.main_thread import busiest_place
from feedline.profiling.explain.measure.situation import DATA_BOUND, Situation
from feedline.profiling.explain.remedies.remedy import Change, Effort, Remedy, Vain
from feedline.profiling.record import units

PINNED_SPEEDUP = 2.0  # pageable to pinned copies: 1.5 to 3 times on PCIe; they then also overlap the step
TYPICAL = "as is typical of a convolutional network; not measured here"
KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=1073741824"


def pinned(at: Situation) -> Iterable[Change]:
    loader, copy_s = at.measured.loader, at.measured.trainer.copy_s
    if loader is not None and loader.pin_memory:
        return
    then, error = at.now, 0.0
    why: str = Vain("copies to the device take no time worth saving")
    if at.measured.machine.on_cpu:
        why = Vain("the model runs on the CPU: nothing is copied to a device")
    elif copy_s is None:  # a device whose copies nothing measures
        return
    elif copy_s:
        left_s = max(0.0, at.now.step_s - copy_s * (1 - 1 / PINNED_SPEEDUP))
        then, error = replace(at.now, step_s=left_s, handover_s=0.0), 0.15
        share, faster = units.percent(at.measured.trainer.shares.copy), units.times(PINNED_SPEEDUP)
        why = f"copies take {share} of a step; pinned ones are typically {faster} as fast (not measured here)"
    yield Change(remedy="pin_memory=True", then=then, effort=Effort.SETTING, why=why, extra_error=error,
                 settings={"pin_memory": True}, ceiling_times=math.inf)  # fmt: skip


def main_thread(at: Situation) -> Iterable[Change]:
    share, place = at.measured.trainer.shares.trainer, busiest_place(at.recording)
    if share < 0.1:
        return
    where = f"; most of it in {place}" if place else ""
    then = replace(at.now, step_s=max(0.0, at.now.step_s - share * at.now.ranks / at.rate.value))
    why = f"the main thread spends {units.percent(share)} of the time in Python of its own{where}"
    yield Change(remedy="less Python in the training loop", then=then, effort=Effort.CODE, why=why, extra_error=0.1,
                 ceiling_times=math.inf)  # fmt: skip


def hidden_synchronisations(at: Situation) -> Iterable[Change]:
    compute, seconds = at.recording.compute, at.measured.trainer.seconds
    if not compute.items or not seconds:
        return
    share = min(0.95, compute.items_s / seconds / at.now.ranks)
    where = f" at {', '.join(compute.item_lines[:2])}" if compute.item_lines else ""
    why = f"{compute.items:,} of them{where} took {units.percent(share)} of the time"
    notable = share >= 0.02
    # A synchronisation mostly waits for work that something else would wait for: half is an even guess.
    then = replace(at.now, step_s=at.now.step_s * (1 - 0.5 * share)) if notable else at.now
    yield Change(remedy="no hidden synchronisations", then=then, effort=Effort.CODE, extra_error=0.5 * share,
                 why=f"{why}; that half of it could overlap is assumed" if notable else Vain(why),
                 ceiling_times=math.inf)  # fmt: skip


def faster_model(at: Situation) -> Iterable[Change]:
    """channels_last, and on a GPU autocast, where the script does without."""
    compute, shares, gain = at.recording.compute, at.measured.trainer.shares, at.measured.trainer.layout_gain
    ways: list[tuple[str, float, float, str]] = []
    if not compute.channels_last and gain is not None:
        ways.append(("channels_last", gain.value, gain.error, "measured"))
    elif not compute.channels_last:
        ways.append(("channels_last", 1.1 if at.measured.machine.on_cpu else 1.15, 0.12, TYPICAL))
    if compute.device.startswith("cuda") and not compute.autocast:
        ways.append(("autocast bf16", 1.5, 0.25, TYPICAL))
    for name, times, error, source in ways:
        then, why = at.now, Vain("the model is not what the loop waits for")
        if shares.compute > 0.5 and shares.data < DATA_BOUND:
            then = replace(at.now, step_s=at.now.step_s / times, trainer_cpu_s=at.now.trainer_cpu_s / times)
            why = f"{units.times(times)} the compute rate, {source}"
        yield Change(remedy=name, then=then, effort=Effort.CODE, why=why, extra_error=error, ceiling_times=math.inf)


def kept_memory(at: Situation) -> Iterable[Change]:
    trainer = at.measured.trainer
    left = trainer.kept_left
    if left == 1.0:
        return
    then = replace(at.now, step_s=at.now.step_s * left, trainer_cpu_s=at.now.trainer_cpu_s * left)
    share, each = units.percent(trainer.kernel_share), units.number(trainer.faults_per_step)
    why = f"{each} page faults a step: {share} of the model's CPU time is the kernel's"
    yield Change(remedy="freed memory kept", then=then, effort=Effort.SETTING, why=why, extra_error=0.15,
                 cost=f"environment: {KEEP_MEMORY}; feedline's loader does it by itself",
                 settings={"keep_freed_memory": True}, ceiling_times=math.inf)  # fmt: skip


def more_gpus(at: Situation) -> Iterable[Change]:
    seen = max(len(at.recording.host.get("gpus") or ()), len(at.recording.gpus))
    if not at.recording.compute.device.startswith("cuda"):
        return
    for ranks in (count for count in (2, 4, 8) if at.now.ranks < count <= max(seen, 2 * at.now.ranks)):
        then = replace(at.now, ranks=ranks, step_s=at.now.step_s * 1.05)
        why = f"with {at.now.workers} workers each; 5 % for all-reduce is assumed, not measured"
        if then.binding() != "compute":
            why = f"limited by {then.binding()}, not by the GPUs: mend the data first"
        there = ranks <= seen
        yield Change(remedy=f"{ranks} GPUs", then=then, effort=Effort.SETTING if there else Effort.HARDWARE,
                     cost="an argument of torchrun" if there else "", why=why, extra_error=0.1,
                     settings={"world_size": ranks}, ceiling_times=math.inf)  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (pinned, main_thread, hidden_synchronisations, faster_model, kept_memory, more_gpus)
