"""Remedies for copies, the main thread and the model. Pure.

Factors that no measurement of the run supports (pinned copies, autocast, channels_last, more GPUs) are typical ones,
with the range published for such changes as the interval, and the prediction says so.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from feedline.pipeline.base.process import KEPT_BYTES, OLD_MOST_BYTES
from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.main_thread import beside_model, busiest_places, of_backward, parts_of
from feedline.profiling.explain.measure.rates import ERRORS_90, median_rate
from feedline.profiling.explain.measure.shared_cores import CROWDED
from feedline.profiling.explain.measure.situation import COPY_BOUND, DATA_BOUND, TRAINER_BOUND, Situation
from feedline.profiling.explain.measure.workers import function_of
from feedline.profiling.explain.remedies.own_loader import waiting_beside
from feedline.profiling.explain.remedies.remedy import (
    AT_MOST,
    Change,
    Effort,
    Remedy,
    Vain,
    error_between,
    launcher,
    lines_of,
    loader_line,
    script_command,
)
from feedline.profiling.record import units

PINNED_SPEEDUP = 2.0  # pageable to pinned copies: 1.5 to 3 times on PCIe; they then also overlap the step
TYPICAL = "as is typical{}; not measured here"
ONE_EACH = 1.1  # synchronisations a step, up to which they are one at its end
HALF = "that half of it could overlap is assumed"
LEAST_UNUSED = 0.1  # share of all weights that get gradients, from which these cost what is worth a remedy
SOME = 0.05  # share of the script's own Python, for sure, from which it is worth a word
OF_HALF = 0.55
"""A model takes 2 to the power of that as long alone with half the threads: 1.05 to 1.7 times (NOTES)."""
ONLY_TRAINED = """trained = {id(w) for group in optimizer.param_groups for w in group["params"]}  # of all optimisers
for weight in model.parameters():  # of a teacher, too; before the first step, and before DDP wraps it
    weight.requires_grad_(id(weight) in trained)"""
CHANNELS_LAST = """model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)"""
AUTOCAST = """with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(images), labels)"""
NEEDS = {
    "layout": "reshape or flatten where the model or the loop says view",
    "autocast": "a GPU with bfloat16 (Ampere or later); else float16 and a GradScaler",
}


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
        then, error = replace(at.now, step_s=left_s), 0.15  # unpickling stays under the same lock
        share, faster = units.percent(at.measured.trainer.shares.copy), units.times(PINNED_SPEEDUP)
        why = f"copies take {share} of a step; pinned ones are typically {faster} as fast (not measured here)"
    command = loader_line(at, "pin_memory=True") + "\nimages = images.to(device, non_blocking=True)"
    yield Change(family="pin", remedy="pin_memory=True", then=then, effort=Effort.SETTING, why=why, extra_error=error,
                 command=command.lstrip(),
                 settings={"pin_memory": True}, cause=at.measured.trainer.shares.copy >= COPY_BOUND,
                 ceiling_times=math.inf)  # fmt: skip


def main_thread(at: Situation) -> Iterable[Change]:
    share, places = at.measured.trainer.shares.trainer, busiest_places(at.recording)
    error = at.measured.trainer.errors.trainer
    if share - ERRORS_90 * error < SOME:
        return
    where = f"; most of it in {' and '.join(places)}" if places else ""
    own_s = share * at.now.ranks / at.rate.value
    cpu_s = max(0.0, at.now.trainer_cpu_s - own_s)
    left = 1.0 if at.measured.rates.ceiling else 1.0 - at.measured.crowded  # as of the step
    then = replace(at.now, step_s=max(0.0, at.now.step_s - left * own_s), trainer_cpu_s=cpu_s)
    why = f"the main thread spends {units.percent(share)} of the time in Python of its own{where}: {AT_MOST}"
    functions = [function_of(place) for place in places]
    name = functions[0].rpartition(":")[2] if functions else ""
    yield Change(family="python", remedy="less Python in the training loop", then=then, effort=Effort.CODE, why=why,
                 command=lines_of(at.recording, name), target=" and ".join(functions),
                 needs="the loop in a function: lines are timed there" if name == "<module>" else "",
                 extra_error=math.hypot(0.1, error / (1 - min(share, 0.9))), cause=share >= TRAINER_BOUND,
                 at_most=True,
                 ceiling_times=math.inf)  # fmt: skip


def own_operations(at: Situation) -> Iterable[Change]:
    share, error, places = beside_model(at.recording)
    if not share:
        return
    functions = list(dict.fromkeys(map(function_of, places)))
    name = functions[0].rpartition(":")[2] if functions else ""
    working = 1.0 - min(at.measured.trainer.shares.data, 0.9)
    backward = parts_of(at.recording).get("backward", 0.0)
    alike, most = (min(0.9, (share + each) / working) for each in (share * of_backward(at.recording), backward))
    then, least = (replace(at.now, step_s=(1 - gone) * at.now.step_s, trainer_cpu_s=(1 - gone) * at.now.trainer_cpu_s)
                   for gone in (alike, most))  # fmt: skip
    where = " and ".join(places) or "functions of the script"
    why = (
        f"{units.percent(share)} of the time is in operations that {where} asks torch for, in no module with weights"
    )
    why += (
        f", and their backward pass takes more: a few on whole tensors cost less than many on small ones; {AT_MOST}"
    )
    yield Change(family="loss", remedy="fewer, larger operations", then=then, effort=Effort.CODE, why=why,
                 command=lines_of(at.recording, name), target=" and ".join(functions), at_most=True,
                 extra_error=math.hypot(0.1, error / (1 - min(share, 0.9)), error_between(least, then)),
                 ceiling_times=math.inf)  # fmt: skip


def unused_gradients(at: Situation) -> Iterable[Change]:
    """What frees the backward pass of them, at most all of it. On a device nobody sees how long that takes: of a
    convolutional network it is twice the forward pass, by its multiplications."""
    compute, shares = at.recording.compute, at.measured.trainer.shares
    unused = compute.unused_gradients
    if not unused or unused < LEAST_UNUSED * (unused + (compute.parameters or 0)):
        return
    backward = parts_of(at.recording).get("backward", 0.0) if at.measured.machine.on_cpu else 2 / 3 * shares.compute
    left = 1.0 - min(0.9, backward / (1.0 - min(shares.data, 0.9)))
    where = " and ".join(compute.unused_in)
    yield Change(
        family="gradients", remedy="no gradients that nothing uses", target=where, effort=Effort.CODE, at_most=True,
        then=replace(at.now, step_s=left * at.now.step_s, trainer_cpu_s=left * at.now.trainer_cpu_s),
        why=f"backward passes compute those of {unused:,} weights ({where}), and no optimiser uses them: this is "
        "what it would give if all of the backward pass were for these",
        needs="that these weights shall not be trained: else hand them to an optimiser",
        command=ONLY_TRAINED,
        extra_error=0.1, ceiling_times=math.inf,
    )  # fmt: skip


def hidden_synchronisations(at: Situation) -> Iterable[Change]:
    compute, seconds = at.recording.compute, at.measured.trainer.seconds
    if not compute.items or not seconds:
        return
    share = min(0.95, compute.items_s / seconds / at.now.ranks)
    lines = ", ".join(compute.item_lines[:2])
    where = f" at {lines}" if lines else ""
    why = f"{compute.items:,} of them{where} took {units.percent(share)} of the time"
    # A synchronisation mostly waits for work that something else would wait for: no more is saved than the time in
    # which the device ran dry beside the wait. That is seen at a step's ends behind one in each step, of which half
    # is an even guess, and 0.3 the standard deviation of one between nothing and all. Behind many within a step it
    # is at most all the time in which no kernel ran, as NVML has it.
    steps = at.recording.measured()
    dry = [step.idle_s for step in steps if step.idle_s is not None]
    seen = bool(dry) and compute.items <= ONE_EACH * len(steps)
    most_lost = sum(dry) / seconds / at.now.ranks if seen else 1.0 - _kernels_share(at)
    lost = min(share, most_lost)
    of_step = min(0.95, lost / max(1.0 - at.measured.trainer.shares.data, 0.05))
    notable, most = lost >= 0.02, bool(dry) and not seen
    then = replace(at.now, step_s=at.now.step_s * (1 - (1.0 if most else 0.5) * of_step)) if notable else at.now
    if not notable and most_lost < share:
        dry_words = "the device ran dry" if seen else "no kernel ran on the GPU"
        why += f", but {dry_words} for {units.percent(lost)} of it"
    yield Change(family="sync", remedy="no hidden synchronisations", then=then, effort=Effort.CODE, target=lines,
                 why=f"{why}; {AT_MOST if most else HALF}" if notable else Vain(why),
                 command="total += loss.detach()  # and .item() once, when it is printed",
                 extra_error=0.3 * lost, at_most=most,
                 ceiling_times=math.inf)  # fmt: skip


def _kernels_share(at: Situation) -> float:
    """Of the time, at least, in which a kernel ran, by NVML; 0 where it does not say of which GPU."""
    gpus = at.recording.gpus
    own = [gpu for gpu in gpus if gpu.process_memory_bytes] or (gpus if len(gpus) == 1 else [])
    return max((max(gpu.utilization or 0.0, gpu.sm_active or 0.0) for gpu in own), default=0.0)


def faster_model(at: Situation) -> Iterable[Change]:
    """channels_last for a model of pictures, and on a GPU autocast, where the script does without."""
    compute, shares, gain = at.recording.compute, at.measured.trainer.shares, at.measured.trainer.layout_gain
    on_gpu, shapes = compute.device.startswith("cuda"), at.measured.loader.batch_shapes if at.measured.loader else []
    pictures = not shapes or any(len(shape) == 4 for shape in shapes)
    times, error = (gain.value, gain.error) if gain else (1.3, 0.25) if on_gpu else (1.1, 0.12)
    ways: list[tuple[str, str, str, float, float, bool]] = []
    convolves = not compute.parameters or compute.channels_last is not None
    if not compute.channels_last and pictures and convolves:
        ways.append(("layout", "channels_last", CHANNELS_LAST, times, error, gain is not None))
    if on_gpu and not compute.autocast:
        in_layout = not ways  # else kernels of bfloat16 turn the pictures first: MobileNetV2 on an H200 lost a tenth
        ways.append(("autocast", "autocast bf16", AUTOCAST, 1.5 if in_layout else 1.15, 0.25, False))
    typical = TYPICAL.format(" of a convolutional network" if compute.channels_last is not None else "")
    layout_first = len(ways) == 2 and (gain is None or gain.value > 1.0)
    for family, name, command, times, error, measured in ways:
        limit, then = at.now.binding(), at.now
        why: str = Vain(f"the loop waits for its {limit}, not for the model")
        if limit not in ("workers", "storage") or shares.data < DATA_BOUND:
            # A measured factor is of all that a step does with data for free, another one of the model alone.
            part = 1.0 if measured or shares.data == 1.0 else shares.compute / (1.0 - shares.data)
            left = 1.0 - part * (1.0 - waiting_beside(at)) * (1.0 - 1.0 / times)
            then = replace(at.now, step_s=at.now.step_s * left, trainer_cpu_s=at.now.trainer_cpu_s * left)
            why = f"{units.times(times)} the compute rate, {'measured on cached batches' if measured else typical}"
        yield Change(
            family=family, remedy=name, then=then, effort=Effort.CODE, why=why, command=command, cost="two lines",
            extra_error=error, measured=measured,
            changes="the forward pass computes in bfloat16" if family == "autocast" else "", ceiling_times=math.inf,
            needs=NEEDS[family] + ("; channels_last before it" if family == "autocast" and layout_first else ""),
        )  # fmt: skip


def kept_memory(at: Situation) -> Iterable[Change]:
    trainer = at.measured.trainer
    times = trainer.kept_gain.value
    if times == 1.0:
        return
    then = replace(at.now, step_s=at.now.step_s / times, trainer_cpu_s=at.now.trainer_cpu_s / times)
    share, each = units.percent(trainer.kernel_share), units.number(trainer.faults_per_step)
    why = f"{each} page faults a step: {share} of the model's CPU time is the kernel's"
    cached, kept = (median_rate(at.recording.leg(name).samples_per_s) for name in ("cached", "kept"))
    if kept and cached:
        why += f"; {units.times(kept.value / cached.value)} as fast without them, measured on cached batches"
    yield Change(
        family="memory", remedy="freed memory kept", then=then, effort=Effort.SETTING, why=why, measured=True,
        extra_error=trainer.kept_gain.error,
        command=f"export {_keep_memory(at)}\n{script_command(at.recording)}", cost="two variables of the environment",
        needs="memory: the process stays as large as its largest step", settings={"keep_freed_memory": True},
        ceiling_times=math.inf,
    )  # fmt: skip


def _keep_memory(at: Situation) -> str:
    """What malloc takes: an older one refuses more, and keeps nothing then."""
    glibc = re.search(r"glibc(\d+)\.(\d+)", str(at.recording.host.get("system", "")))
    old = glibc is not None and (int(glibc[1]), int(glibc[2])) < (2, 36)
    return f"MALLOC_TRIM_THRESHOLD_={KEPT_BYTES} MALLOC_MMAP_THRESHOLD_={OLD_MOST_BYTES if old else KEPT_BYTES}"


def fewer_threads(at: Situation) -> Iterable[Change]:
    """For a model on the CPU whose threads wait at every operation for the one that has no core beside workers."""
    threads, count = int(at.measured.threads), at.now.workers
    if threads < 2 or at.measured.crowded < CROWDED or at.measured.machine.others_cores:
        return  # those of other programs make threads wait as well: what fewer give then cannot be told
    beside = f"{count_of(count, 'worker')} and its {threads} threads want the {threads} cores"
    taken = math.ceil(count * at.measured.workers.busy)
    for left in sorted({max(1, threads - taken), max(1, threads - count)}, reverse=True):
        slower, halved = (threads / left) ** OF_HALF, math.log2(threads / left)
        step_s, cpu_s = at.now.step_s * slower, at.now.trainer_cpu_s * slower * left / threads
        then = replace(at.now, step_s=step_s, trainer_cpu_s=cpu_s, stall={})
        yield Change(family="threads", remedy=f"torch.set_num_threads({left})", then=then, effort=Effort.SETTING,
                     why=f"{beside}, and threads wait for each other at every operation",
                     command=f"torch.set_num_threads({left})  # before the first step", extra_error=0.25 * halved,
                     settings={"threads": left}, ceiling_times=math.inf)  # fmt: skip


def more_gpus(at: Situation) -> Iterable[Change]:
    seen = len(at.recording.gpus) or len(at.recording.host.get("gpus") or ())  # of the first none is hidden from it
    alone = at.now.ranks == 1 and not launcher(at.recording)
    used = sum(bool(gpu.process_memory_bytes) for gpu in at.recording.gpus)
    if not at.recording.compute.device.startswith("cuda") or used > at.now.ranks:  # DataParallel, a model in parts
        return
    if any(gpu.mig for gpu in at.recording.gpus):  # CUDA shows a process one slice
        return
    limit, program = at.now.binding(), launcher(at.recording)
    for ranks in (count for count in (2, 4, 8) if at.now.ranks < count <= max(seen, 2 * at.now.ranks)):
        then = replace(at.now, ranks=ranks, step_s=at.now.step_s * 1.05)
        why: str = f"with {count_of(at.now.workers, 'worker')} each; 5 % for all-reduce is assumed, not measured"
        if limit != "compute" and at.measured.trainer.shares.data >= DATA_BOUND:
            why = Vain(f"limited by {limit}, not by the GPUs: mend the data first")
        there, words = ranks <= seen, ("torchrun", "--nproc-per-node", str(ranks))
        command = script_command(at.recording, *words)
        if program == "torchrun":
            command = " ".join([*words, "…"])
        elif program:
            command = f"{program} launch --num_processes {ranks} …" if program == "accelerate" else f"{program} …"
        yield Change(family="gpus", remedy=f"{ranks} GPUs", then=then, why=why, extra_error=0.1, command=command,
                     effort=(Effort.CODE if alone else Effort.SETTING) if there else Effort.HARDWARE,
                     needs="DistributedDataParallel and a DistributedSampler in the script" if alone else "",
                     cost=f"an argument of {program or 'torchrun'}" if there else "",
                     changes="the batches of all GPUs together are larger: another learning rate",
                     settings={"world_size": ranks}, ceiling_times=math.inf)  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (
    pinned, main_thread, own_operations, unused_gradients, hidden_synchronisations, faster_model, kept_memory,
    fewer_threads, more_gpus,
)  # fmt: skip
