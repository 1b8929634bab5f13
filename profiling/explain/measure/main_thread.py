"""What the training loop's time goes to, how well that is known, and what a sample costs the trainer. Pure.

Seconds are per sample of one rank. Shares are of the time of the measured steps and sum to 1:

    data      blocked on the next batch, unpickling included (CUDA: the device had nothing to do meanwhile); and what
              the script's generators between a loader and the loop take to prepare it
    copy      host-to-device copies the step waited for
    trainer   the main thread's own Python, logging, checkpoints
    other     what nothing decides
    compute   the rest: forward, backward, optimiser, waiting for the device

A watched loader's waits are timed one by one. Where another thread draws the batches, or nobody hands them over that
is watched, data is what looks at the training thread see of waiting for batches and making them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedline.profiling.explain.measure.rates import (
    ERRORS_90,
    Rate,
    evaluations_wait,
    median_rate,
    seconds_of,
    stretches,
    waited_s,
)
from feedline.profiling.explain.measure.workers import FEW_LOOKS, busiest, function_of, looked_error, together
from feedline.profiling.record.recording import Recording, Step, ThreadTime
from feedline.profiling.record.uncertainty import look_error, share_error

OWN = ("python", "logging", "checkpoint")  # parts that are the script's own Python
DATA = ("wait", "load", "draw", "change", "prepare", "unpickle", "pin")  # parts that wait for a batch or make it
LEAST_ERROR = 0.01
"""No share is known better, however many steps were seen: a stopwatch draws its lines elsewhere. By blocks of steps
and 0.005, 203 of the shares of 239 scripts that the rules had not seen lay in their 90 % intervals, by this 207."""
LEAST_KERNEL_SHARE = 0.04
LEAST_FAULTS = 200  # per step; below either, keeping memory would gain nothing that can be told from noise
FAULTS_COST = 1.25
"""Exponent of the share of CPU time that is not the kernel's: threads also wait for the one that faults. The four
models of results/allocation.json (1.2, 1.5, 2.0, 1.2 times as fast) ask for 1.1 to 1.65, other scripts for 1 to 2."""
FAULTS_ERROR, LEAST_FAULTS_ERROR = 0.3, 0.035  # relative standard errors: of that exponent, and at least of the gain
SURE_BYTES, CHANCE = 64 << 20, 0.5
"""Up to so many bytes a step glibc's thresholds, which adapt, may come to keep them by themselves: whether they do
differs from run to run. One script had 2,000 to 2,400 faults a step in four plain runs of eight and 240 to 400 in
the others: of the gain as much as half may be missing, as a standard error. Above, its largest thresholds keep
nothing."""
PAGE_BYTES = 4096
LEAST_BESIDE = 0.1  # share of the time, for sure, from which operations outside the model are worth a word
BESIDE = 0.2  # cores from which the script's other threads are told of
APART_ERROR = 0.05  # of the ratio of two legs whose windows do not take turns: the machine's speed may have changed


@dataclass(frozen=True, kw_only=True)
class Shares:
    data: float = 0.0
    copy: float = 0.0
    trainer: float = 0.0
    compute: float = 0.0
    other: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trainer:
    steps: int
    seconds: float  # of all measured steps, one rank's
    looks: int  # stack samples of the main threads
    sampled: bool  # the share of data is from these looks
    wait_fraction: float | None  # None where nothing saw the loop wait
    shares: Shares
    errors: Shares  # their absolute standard errors
    step_s: float  # main thread outside the wait: copy, compute and Python
    copy_s: float | None  # None where nothing measured it
    unpickle_s: float  # main thread, unpickling batches inside the wait
    unpickle_share: float  # of the loop's time
    unpickle_error: float  # absolute standard error of it
    prepare_share: float  # of the loop's time, in generators between its loader and itself: part of data
    prepare_error: float  # absolute standard error of it
    waits_error: float  # of the waits for a watched loader alone; of the share of data elsewhere
    delay: float | None  # share of the main thread's time beside data that it had no core; None: not told
    cpu_s: float  # CPU time of all its threads, with free data where a leg measured that; 0 where it is not known
    beside: str  # function that the script's other threads compute in most; "" where they take hardly a core
    beside_cores: float  # that they take meanwhile, over all ranks
    aside_cpu_s: float  # what its other threads took while it prepared its batches itself: helping, or spinning
    faults_per_step: float
    """glibc gives a step's activations back to the kernel, and the next step takes them again, zeroed, page by page.
    Counted for a model on the CPU."""
    kernel_share: float  # of the CPU time of such a model
    kept_gain: Rate  # how many times as fast the model is when freed memory is kept; 1 where nothing is gained
    layout_gain: Rate | None  # the ceiling over itself, when batches come in channels_last, from legs
    our_batches: Rate
    """How many times as fast it computes on feedline's batches: they come in channels_last, and the loader keeps
    freed memory."""


def measure_trainer(recording: Recording, steps: Sequence[Step], *, idle: float, start_share: float) -> Trainer:
    """`idle`: share of their time that the workers have nothing to do; `start_share`: of an epoch's time, what it
    begins and ends with, which looks of up to a second may have seen and the steps have not."""
    seconds, samples = seconds_of(steps), max(1, sum(step.samples for step in steps))
    ranks_s = seconds * max(1, len({step.rank for step in steps}))
    loader, looks = recording.train_loader, all_ranks(recording).ticks
    sampled = loader is not None and (loader.background or loader.unwatched)
    shares, errors = _shares(recording, steps, ranks_s, sampled=sampled, start_share=start_share)
    all_waited_s = shares.data * ranks_s
    prepare_share, prepare_error = _prepared(recording, steps, ranks_s) if ranks_s and not sampled else (0.0, 0.0)
    wait_fraction = min(1.0, all_waited_s / ranks_s) if ranks_s and (looks >= FEW_LOOKS or not sampled) else None
    unpickle_share, unpickle_alone = _unpickling(recording, idle)
    copies = [step.copy_s for step in steps if step.copy_s is not None]
    steps_cpu_s, (beside, beside_cores) = _cpu_s(recording, steps), _beside(recording)
    if loader is not None and loader.unwatched:  # they may make its batches
        steps_cpu_s = max(0.0, steps_cpu_s - beside_cores * seconds / samples)
    free_cpu_s = recording.leg("cached").trainer_cpu_s_per_sample
    compute, (layout_gain, of_legs) = recording.compute, _of_legs(recording)
    kernel_share = compute.kernel_cpu_s / max(compute.kernel_cpu_s + compute.user_cpu_s, 1e-9)
    faults_per_step = compute.page_faults / compute.faulty_steps if compute.faulty_steps else 0.0
    notable = compute.device == "cpu" and kernel_share >= LEAST_KERNEL_SHARE and faults_per_step >= LEAST_FAULTS
    kept_gain = _kept_gain(kernel_share, faults_per_step, of_legs) if notable else Rate(value=1.0, error=0.0)
    layout = layout_gain or Rate(value=1.0, error=0.0)
    our_batches = Rate(value=layout.value * kept_gain.value, error=math.hypot(layout.error, kept_gain.error))
    return Trainer(
        steps=len(steps),
        seconds=seconds,
        looks=looks,
        sampled=sampled,
        wait_fraction=wait_fraction,
        shares=shares,
        errors=errors,
        step_s=max(0.0, ranks_s - all_waited_s) / samples,
        copy_s=sum(copies) / samples if copies else None,
        unpickle_s=unpickle_alone * ranks_s / samples,
        unpickle_share=min(wait_fraction or 0.0, unpickle_share),
        unpickle_error=looked(recording, ("unpickle",))[1],
        prepare_share=min(shares.data, prepare_share),
        prepare_error=prepare_error,
        waits_error=math.sqrt(max(0.0, errors.data**2 - prepare_error**2)),
        delay=_delay(recording),
        cpu_s=statistics.median(free_cpu_s) if free_cpu_s else steps_cpu_s,
        beside=beside,
        beside_cores=beside_cores,
        aside_cpu_s=(recording.costs.trainer_cpu_s or 0.0) - steps_cpu_s,
        faults_per_step=faults_per_step,
        kernel_share=kernel_share,
        kept_gain=kept_gain,
        layout_gain=layout_gain,
        our_batches=our_batches,
    )


def parts_of(recording: Recording) -> dict[str, float]:
    """Shares of the main thread's time by `TrainerPart`, the mean over ranks, from its stack samples; the largest
    first."""
    whole = all_ranks(recording)
    ranked = sorted(whole.stages.items(), key=lambda item: -item[1])
    return {name: seconds / whole.seconds for name, seconds in ranked} if whole.seconds else {}


def all_ranks(recording: Recording) -> ThreadTime:
    return ThreadTime(**together(recording.trainers))


def maker(recording: Recording) -> str:
    """The file:function in which other threads of the script mostly work while this one waits for batches; "" where
    they mostly do not: other processes make them, or nobody who is seen."""
    whole = all_ranks(recording)
    place = busiest(whole.functions, "wait")
    seconds = sum(s for name, s in whole.functions.items() if function_of(name) == f"wait {place}")
    return place if place and seconds >= whole.stages.get("wait", 0.0) / 2 else ""


def busiest_places(recording: Recording, parts: Sequence[str] = ()) -> list[str]:
    """Where these parts take the main thread longest: the line, else the function, else the class, else two functions
    that together lead the others; none where no place leads beyond its error (90 %), or none of these functions is
    known. Without `parts`, where the script's own Python does; on a device that is also what its loss asks for there,
    which takes this thread no longer than the asking."""
    parts = parts or (OWN if recording.compute.device == "cpu" else (*OWN, "loss"))
    lines, functions, classes = dict[str, float](), dict[str, float](), dict[str, float]()
    whole = all_ranks(recording)
    for name, seconds in whole.functions.items():
        part, _, place = name.partition(" ")  # the first: a file's name may have more of them
        if part in parts:
            function = function_of(place)
            for places, key in ((lines, place), (functions, function), (classes, class_of(function))):
                places[key] = places.get(key, 0.0) + seconds
    tried = ((lines, 1), (functions, 1), (classes, 1), (functions, 2))
    return next((found for places, count in tried if (found := _leaders(places, count, whole))), [])


def beside_model(recording: Recording) -> tuple[float, float, list[str]]:
    """The share of the main threads' time in what the script's own loss asks of torch, its error, and where most of
    it is; nothing where it may be none, its backward pass included, or on a device, where operations take another
    time."""
    (share, error), places = looked(recording, ("loss",)), busiest_places(recording, ("loss",))
    known = recording.compute.device == "cpu" and share - ERRORS_90 * error > 0
    notable = known and (share - ERRORS_90 * error) * (1 + of_backward(recording)) >= LEAST_BESIDE
    return (share, error, places) if notable else (0.0, 0.0, [])


def of_backward(recording: Recording) -> float:
    """What the backward pass of that loss takes over what the loss does, if all operations go backward alike."""
    parts = parts_of(recording)
    ahead = parts.get("forward", 0.0) + parts.get("loss", 0.0)
    return parts.get("backward", 0.0) / ahead if ahead else 0.0


def class_of(function: str) -> str:
    """file:Class.method -> file:Class; what is no method stays, as "" does."""
    file, _, name = function.rpartition(":")
    return f"{file}:{name.rpartition('.')[0] or name}" if name else ""


def _leaders(places: Mapping[str, float], count: int, whole: ThreadTime) -> list[str]:
    """So many places, the last of which surely takes longer than the next."""
    if len(places) < count or not whole.seconds:
        return []
    ranked = sorted(places, key=lambda place: -places[place])
    last, next_one = (*(min(1.0, places[place] / whole.seconds) for place in ranked[count - 1 : count + 1]), 0.0)[:2]
    unsure = ERRORS_90 * (look_error(last, whole.ticks) + look_error(next_one, whole.ticks))
    return ranked[:count] if last - next_one > unsure and all(ranked[:count]) else []


def _shares(
    recording: Recording, steps: Sequence[Step], ranks_s: float, *, sampled: bool, start_share: float
) -> tuple[Shares, Shares]:
    if not ranks_s:
        return Shares(), Shares()
    blocks = stretches(steps)
    whole_s = [sum(step.duration_s - step.pause_s for step in block) for block in blocks]
    copy = sum(step.copy_s or 0.0 for step in steps) / ranks_s
    copies_s = [sum(step.copy_s or 0.0 for step in block) for block in blocks]
    copy_error = share_error(copies_s, whole_s) if copy else 0.0
    (own, own_error), (other, other_error) = looked(recording, OWN), looked(recording, ("other",))
    data, data_error = seen, seen_error = looked(recording, DATA)
    between, between_error = _prepared(recording, steps, ranks_s)
    if not sampled:
        data = min(1.0, sum(map(waited_s, steps)) / ranks_s + between)
        waits_error = share_error([sum(map(waited_s, block)) for block in blocks], whole_s)
        data_error = math.hypot(waits_error, between_error)
    if all_ranks(recording).ticks < FEW_LOOKS:
        own, other = 0.0, 1.0
    copy = min(1.0 - data, copy)
    if _starves(steps):  # Python is hidden while the device has queued work; it counts as far as the device ran dry
        dry = _dry(steps, ranks_s) - between
        own = min(own, dry)
        other = min(other, dry - own)
    elif not sampled:  # batches made where no loader's clock runs
        waits = sum(map(waited_s, steps)) / sum(step.duration_s for step in steps)
        clocked = waits + evaluations_wait(recording, steps) + between
        clocked = start_share + (1.0 - start_share) * max(data, clocked)
        other += max(0.0, seen - clocked - 2 * seen_error)
    trainer = min(1.0 - data - copy, own)
    other = min(1.0 - data - copy - trainer, other)
    compute = max(0.0, 1.0 - data - copy - trainer - other)
    known = [math.hypot(LEAST_ERROR, error) for error in (data_error, copy_error, own_error, other_error)]
    errors = Shares(data=known[0], copy=known[1], trainer=known[2], other=known[3], compute=math.hypot(*known))
    return Shares(data=data, copy=copy, trainer=trainer, compute=compute, other=other), errors


def _prepared(recording: Recording, steps: Sequence[Step], ranks_s: float) -> tuple[float, float]:
    """What generators between a loader and the loop take of the time, hidden as Python is; and its error."""
    share, error = looked(recording, ("prepare",))
    share = min(share, _dry(steps, ranks_s)) if _starves(steps) else share
    return (share, error) if share else (0.0, 0.0)


def _starves(steps: Sequence[Step]) -> bool:
    """Whether it was seen when the device had nothing to do."""
    return any(step.starved_s is not None for step in steps)


def _dry(steps: Sequence[Step], ranks_s: float) -> float:
    """The share of the time in which the device ran dry beside the wait."""
    return sum(step.idle_s or 0.0 for step in steps) / ranks_s


def looked(recording: Recording, parts: Sequence[str]) -> tuple[float, float]:
    """The share of the main threads' time in these parts, and its standard error."""
    share = min(1.0, sum(parts_of(recording).get(name, 0.0) for name in parts))
    return share, looked_error(all_ranks(recording), share, *parts)


def _delay(recording: Recording) -> float | None:
    whole = all_ranks(recording)
    delays = whole.stages_delay_s
    busy_s = sum(seconds for name, seconds in whole.stages.items() if name not in DATA)
    if delays is None or not busy_s:
        return None
    return min(1.0, sum(seconds for name, seconds in delays.items() if name not in DATA) / busy_s)


def _beside(recording: Recording) -> tuple[str, float]:
    whole = all_ranks(recording)
    cores = sum(whole.beside_cpu_s.values()) * len(recording.trainers) / whole.seconds if whole.seconds else 0.0
    place = max(filter(None, whole.beside_cpu_s), key=whole.beside_cpu_s.__getitem__, default="")
    return (place, cores) if place and cores >= BESIDE else ("", 0.0)


def _cpu_s(recording: Recording, steps: Sequence[Step]) -> float:
    """Per sample, of all the trainer's threads. Where it prepares its batches itself, those of torch that help with a
    batch, or spin behind it, need no core for the model: what its steps took beside the waiting was noted."""
    compute, all_s = recording.compute, recording.costs.trainer_cpu_s or 0.0
    loader = recording.train_loader
    loads = any(worker.in_trainer and loader and worker.loader == loader.id for worker in recording.workers)
    if not (loads and compute.faulty_steps and steps):
        return all_s
    each_s = (compute.user_cpu_s + compute.kernel_cpu_s) / compute.faulty_steps
    return min(all_s, each_s * len(steps) / max(1, sum(step.samples for step in steps)))


def _unpickling(recording: Recording, idle: float) -> tuple[float, float]:
    """The share of the main thread's time in which it receives and unpickles, and what that would be with a core to
    itself.

    What it is blocked meanwhile, for the worker that has the bytes, is waiting for the worker as far as that is busy
    (it answers late when its memory is asked for); an idle one is at work on nothing but the same batch.
    """
    whole = all_ranks(recording)
    cpu_s, wall_s = whole.stages_cpu_s, whole.stages.get("unpickle", 0.0)
    delay_s = min(wall_s, (whole.stages_delay_s or {}).get("unpickle", 0.0))
    alone_s = wall_s - delay_s
    if any(cpu_s.values()):
        alone_s -= (1.0 - idle) * max(0.0, alone_s - cpu_s.get("unpickle", 0.0))
    return ((alone_s + delay_s) / whole.seconds, alone_s / whole.seconds) if whole.seconds else (0.0, 0.0)


def _kept_gain(kernel_share: float, faults_per_step: float, of_legs: Rate | None) -> Rate:
    """What the kernel's share of the CPU time lets expect, and what the legs say, by their errors; for another run of
    the script."""
    expected = -FAULTS_COST * math.log(1.0 - min(kernel_share, 0.95))
    error = max(LEAST_FAULTS_ERROR, FAULTS_ERROR * expected)
    if of_legs is not None:
        ours, theirs = error**-2, of_legs.error**-2
        expected = (ours * expected + theirs * math.log(of_legs.value)) / (ours + theirs)
        error = (ours + theirs) ** -0.5
    by_chance = CHANCE * max(0.0, expected) if faults_per_step * PAGE_BYTES < SURE_BYTES else 0.0
    return Rate(value=math.exp(max(0.0, expected)), error=math.hypot(error, by_chance))


def _of_legs(recording: Recording) -> tuple[Rate | None, Rate | None]:
    """How many times as fast the model is on batches in channels_last, and when memory is kept; None where it was not
    measured."""
    cached, kept = (recording.leg(name).samples_per_s for name in ("cached", "kept"))
    laid_out, slow, fast = recording.leg("laid_out").samples_per_s, median_rate(cached), median_rate(kept)
    # Pair by pair: a machine that is slower for a while is slower for both. The windows of the other two do not take
    # turns.
    layout = median_rate([b / a for a, b in zip(kept, laid_out, strict=False) if a > 0])
    if slow is None or fast is None:
        return layout, None
    error = math.hypot(slow.error, fast.error, APART_ERROR)
    return layout, Rate(value=fast.value / slow.value, error=error)
