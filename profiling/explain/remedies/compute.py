"""The remedies for copies, the main thread and the model. Pure; see `remedies` for how they are ranked.

Factors that no measurement of the run supports (pinned copies, autocast, channels_last, more GPUs) are typical ones,
with the range published for such changes as the interval, and the prediction says so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from feedline.profiling.explain.main_thread import own_places
from feedline.profiling.explain.page_faults import faults_per_step, kernel_share, left_without
from feedline.profiling.explain.predict import Change, Situation
from feedline.profiling.record import units

PINNED_SPEEDUP = 2.0
"""Pageable to pinned copies: 1.5 to 3 times on PCIe; they then also overlap the step."""
MOVING_S_PER_BYTE = 3e-9
"""The most that collating and sending a byte costs: three passes over it at about 1 GB/s, fresh pages included."""
KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=1073741824"
IN_VAIN = "this will not help, because"


def pinned(at: Situation) -> Iterable[Change]:
    loader = at.measured.loader
    if loader is not None and loader.pin_memory:
        return
    then, error, device = at.now, 0.0, at.recording.compute.device
    why = f"{IN_VAIN} copies to the device take no time worth saving"
    if device == "cpu":
        why = f"{IN_VAIN} the model runs on the CPU: nothing is copied to a device"
    elif at.measured.copy_s:
        saved_s = at.measured.copy_s * (1 - 1 / PINNED_SPEEDUP)
        then, error = replace(at.now, step_s=max(0.0, at.now.step_s - saved_s), handover_s=0.0), 0.15
        share = units.percent(at.measured.shares.copy)
        faster = units.times(PINNED_SPEEDUP)
        why = f"copies take {share} of a step; pinned ones are typically {faster} as fast (not measured here)"
    yield Change(remedy="pin_memory=True", then=then, cost="one argument", why=why, settings={"pin_memory": True},
                 extra_error=error, may_raise_ceiling=True)  # fmt: skip


def uint8(at: Situation) -> Iterable[Change]:
    """Four times fewer bytes to collate, send, unpickle and copy; made float and normalised on the device."""
    loader = at.measured.loader
    if loader is None or not any("float32" in kind for kind in loader.batch_dtypes):
        return
    stages = at.measured.stage_alone_s
    # Only what goes with the bytes gets cheaper: a collate function with costs of its own keeps them.
    per_sample = (loader.batch_bytes or 0) / max(loader.batch_size or 1, 1)
    moving_s = min(stages.get("collate", 0.0) + stages.get("send", 0.0), per_sample * MOVING_S_PER_BYTE)
    saved_s = min(at.now.worker_s, 0.75 * moving_s)
    copy_s = 0.75 * at.measured.copy_s
    then = replace(
        at.now,
        worker_s=at.now.worker_s - saved_s,
        worker_cpu_s=max(0.0, at.now.worker_cpu_s - saved_s),
        handover_s=at.now.handover_s / 4,
        step_s=max(0.0, at.now.step_s - copy_s),
    )
    why = f"collating, sending and copying a quarter of {units.size(loader.batch_bytes)} a batch"
    if saved_s < 0.03 * at.now.worker_s and copy_s < 0.03 * at.now.step_s:
        why = f"{IN_VAIN} collating, sending and copying batches takes next to no time"
    yield Change(remedy="uint8 batches", then=then, cost="a change of code: normalise on the device", why=why,
                 settings={"dtype": "uint8"}, extra_error=0.05, may_raise_ceiling=copy_s > 0)  # fmt: skip


def main_thread(at: Situation) -> Iterable[Change]:
    share = at.measured.shares.trainer
    if share < 0.1:
        return
    place = next(iter(own_places(at.recording)), None)
    where = f"; most of it in {place}" if place else ""
    own_s = share * at.measured.ranks / at.rate.value
    then = replace(at.now, step_s=max(0.0, at.now.step_s - own_s))
    why = f"the main thread spends {units.percent(share)} of the time in Python of its own{where}"
    yield Change(remedy="less Python in the training loop", then=then, cost="a change of code", why=why,
                 extra_error=0.1, may_raise_ceiling=True)  # fmt: skip


def hidden_synchronisations(at: Situation) -> Iterable[Change]:
    compute = at.recording.compute
    if not compute.items or not at.measured.seconds:
        return
    share = min(0.95, compute.items_s / at.measured.seconds / at.measured.ranks)
    where = f" at {', '.join(compute.item_lines[:2])}" if compute.item_lines else ""
    seen = f"{compute.items:,} of them{where} took {units.percent(share)} of the time"
    then, why = at.now, f"{IN_VAIN} {seen}"
    if share >= 0.02:
        # A synchronisation mostly waits for work that something else would wait for: half is an even guess.
        then = replace(at.now, step_s=at.now.step_s * (1 - 0.5 * share))
        why = f"{seen}; that half of it could overlap is assumed, not measured"
    yield Change(remedy="no hidden synchronisations", then=then, cost="a change of code", why=why,
                 extra_error=0.5 * share, may_raise_ceiling=True)  # fmt: skip


def faster_compute(at: Situation) -> Iterable[Change]:
    compute = at.recording.compute
    on_gpu = compute.device.startswith("cuda")
    typical = "typically {} the compute rate of a convolutional network; not measured here"
    offers = [("channels_last", compute.channels_last, 1.15 if on_gpu else 1.1, 0.12, typical)]
    if at.measured.layout_gain is not None:
        gain = at.measured.layout_gain
        offers = [("channels_last", compute.channels_last, gain.value, gain.error, "{} the compute rate, measured")]
    if on_gpu:
        offers.append(("autocast bf16", compute.autocast, 1.5, 0.25, typical))
    for name, already, factor, error, words in offers:
        if already:
            continue
        then, why = at.now, f"{IN_VAIN} the model is not what the loop waits for"
        if at.measured.shares.compute > 0.5 and at.measured.shares.data < 0.1:
            then = replace(at.now, step_s=at.now.step_s / factor, trainer_cpu_s=at.now.trainer_cpu_s / factor)
            why = words.format(units.times(factor))
        yield Change(
            remedy=name, then=then, cost="a change of code", why=why, extra_error=error, may_raise_ceiling=True
        )


def more_gpus(at: Situation) -> Iterable[Change]:
    found = max(len(at.recording.host.get("gpus") or ()), len(at.recording.gpus))
    if not at.recording.compute.device.startswith("cuda"):
        return
    for ranks in (count for count in (2, 4, 8) if at.now.ranks < count <= max(found, 2 * at.now.ranks)):
        then = replace(at.now, ranks=ranks, step_s=at.now.step_s * 1.05)
        why = f"with {at.now.workers} workers each; 5 % for all-reduce is assumed, not measured"
        if then.binding() != "compute":
            why = f"limited by {then.binding()}, not by the GPUs: mend the data first"
        cost = "an argument of torchrun" if ranks <= found else "hardware"
        yield Change(remedy=f"{ranks} GPUs", then=then, cost=cost, why=why, settings={"world_size": ranks},
                     extra_error=0.1, may_raise_ceiling=True)  # fmt: skip


def kept_memory(at: Situation) -> Iterable[Change]:
    """glibc gives a step's activations back to the kernel; the next step takes them again as page faults."""
    compute, left = at.recording.compute, left_without(at.recording.compute)
    if left == 1.0:
        return
    then = replace(at.now, step_s=at.now.step_s * left, trainer_cpu_s=at.now.trainer_cpu_s * left)
    faults, share = units.number(faults_per_step(compute)), units.percent(kernel_share(compute))
    why = f"{faults} page faults a step: {share} of the model's CPU time is the kernel's"
    cost = f"environment: {KEEP_MEMORY}; feedline's loader does it by itself"
    yield Change(remedy="freed memory kept", then=then, cost=cost, why=why, settings={"keep_freed_memory": True},
                 extra_error=0.15, may_raise_ceiling=True)  # fmt: skip


REMEDIES: Sequence[Callable[[Situation], Iterable[Change]]] = (
    pinned, uint8, main_thread, hidden_synchronisations, faster_compute, kept_memory, more_gpus,
)  # fmt: skip
