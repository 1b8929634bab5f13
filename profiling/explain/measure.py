"""Recording -> the plain numbers that the verdict and the predictions rest on. Pure.

Rates are samples per second over the time of the measured steps (warm-up, evaluation and checkpoint pauses left
out), summed over ranks. Shares of time are of that same time and sum to 1:

    data      blocked on the next batch, unpickling included (CUDA: the device had run dry for want of it)
    copy      host-to-device copies the step waited for
    trainer   the main thread's own Python, logging, synchronising
    compute   the rest: forward, backward, optimiser
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from feedline.profiling.explain.main_thread import OWN, parts_of, slowdown_of, unpickling_share
from feedline.profiling.explain.neighbours import others_cores
from feedline.profiling.explain.page_faults import left_without
from feedline.profiling.record.recording import (
    STAGES,
    Leg,
    LegName,
    LoaderPass,
    LoaderSeen,
    Recording,
    Step,
    WorkerTime,
)

GROUPS = 10
"""Steps are cut into this many stretches; the spread of their rates is the rate's uncertainty."""
FEW_STEPS = 8
"""Fewer measured steps than this give a verdict with a warning."""
MOSTLY_COLD = 0.9
"""A cold leg counts when this share of the data's files was out of memory."""
CPU_STAGES = ("decode", "transform", "collate")
"""Stages that need a core and nothing else: their wall over CPU time is how much the cores were fought for."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """samples/s with its relative standard error."""

    value: float
    error: float

    @property
    def low(self) -> float:
        return self.value * max(0.0, 1.0 - 2.0 * self.error)

    @property
    def high(self) -> float:
        return self.value * (1.0 + 2.0 * self.error)


@dataclass(frozen=True, kw_only=True)
class Shares:
    data: float = 0.0
    copy: float = 0.0
    trainer: float = 0.0
    compute: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Per sample costs are of one rank; None where they could not be seen."""

    rate: Rate | None
    steps: int
    seconds: float
    wait_fraction: float
    shares: Shares
    ceiling: Rate | None
    cold: Rate | None
    """With the data's files out of memory; None where that was not measured or dropping them did not work."""
    free_trainer_cpu_s: float | None
    """CPU seconds of the trainer per sample when data is free, all its threads."""
    layout_gain: Rate | None
    """The ceiling over itself, when batches come in channels_last, as feedline's loader hands them over."""
    kept_memory_left: float
    """The share of a step's time that is left when freed memory is kept, which feedline's loader sees to as well."""
    stall: dict[int, float]
    """CPU seconds the trainer loses per CPU second of what runs beside it, by how many processes do."""
    loader_only: dict[int, Rate]
    """The loader's own rate by number of workers."""
    loader: LoaderSeen | None
    workers: int
    ranks: int
    cores: float
    """Usable by all ranks and their workers together."""
    stages: dict[str, float]
    """Fractions over all training workers, in the order of `STAGES`, sum 1; empty when no worker was seen."""
    per_worker: list[tuple[WorkerTime, dict[str, float]]]
    worker_wall_s: float | None
    """Busy wall time of a worker per sample, as recorded: fights for cores included."""
    worker_cpu_s: float | None
    worker_alone_s: float | None
    """What one sample takes a worker that has a core to itself: CPU time plus time blocked on storage and pipes."""
    stage_alone_s: dict[str, float]
    """`worker_alone_s` by stage."""
    trainer_cpu_s: float | None
    step_s: float | None
    """Main-thread time per sample outside the wait: copy, compute and Python."""
    unpickle_s: float
    """Main-thread time per sample unpickling batches inside the wait."""
    unpickle_share: float
    """Of the loop's time."""
    copy_s: float
    slowdown: float
    """Wall over CPU time of the workers' CPU-only stages: 1 when nobody fights for cores."""
    slow_worker: tuple[WorkerTime, float] | None
    """One worker that needs far longer per sample than the others, and how many times as long."""
    on_cpu: bool = False
    """The model computes on the same cores as the workers."""
    others_cores: float = 0.0
    """Cores that other programs took from a machine without a free one."""
    epoch_start_s: float = 0.0
    """What beginning and ending a pass over the loader takes beside its steps; 0 where no second pass was seen."""
    epoch_samples: float | None = None
    """Of one whole pass, all ranks together; None where none was seen."""
    notes: list[str] = field(default_factory=list)

    @property
    def unpickling_limits(self) -> bool:
        """The loop waits for its own unpickling more than for its workers, and these have time to spare."""
        spare = self.workers == 0 or self.stages.get("idle", 1.0) >= 0.25
        return spare and self.unpickle_share >= 0.1 and self.unpickle_share > 0.5 * self.wait_fraction


def measure(recording: Recording) -> Measured:
    loader = recording.train_loader
    steps, notes = _steps(recording, loader)
    seconds = _seconds(steps)
    workers = _training_workers(recording, loader)
    samples = sum(step.samples for step in steps)
    rate = _rate(steps)
    ranks_s = seconds * max(1, len({step.rank for step in steps}))
    waited_s = sum(_waited(step) for step in steps)
    wait_fraction = waited_s / ranks_s if ranks_s else 0.0
    cores = float(recording.host.get("affinity") or recording.host.get("cores") or 1)
    # Every worker and every thread of the trainer may want a core at once; more than that is sleep, not contention.
    stage_alone_s, slowdown = _alone(workers, most=1.0 + (len(workers) + cores) / cores)
    wall_s = _per_sample(sum(w.seconds - w.stages.get("idle", 0.0) for w in workers), workers)
    cpu_s = recording.costs.worker_cpu_s or _per_sample(_sum_known([w.cpu_s for w in workers]), workers)
    parts, unpickling = parts_of(recording), unpickling_share(recording)
    own_cpu_s = (cpu_s or 0.0) + (recording.costs.trainer_cpu_s or 0.0)
    own_cores = (rate.value if rate else 0.0) * own_cpu_s
    epoch_start_s, epoch_samples = _epoch(recording, loader, steps)
    return Measured(
        rate=rate,
        steps=len(steps),
        seconds=seconds,
        wait_fraction=min(1.0, wait_fraction),
        shares=_shares(steps, seconds, parts),
        ceiling=_leg_rate(recording, "cached"),
        cold=_leg_rate(recording, "cold", at_least_dropped=MOSTLY_COLD),
        free_trainer_cpu_s=_median_or_none(_leg(recording, "cached").trainer_cpu_s_per_sample),
        layout_gain=_layout_gain(recording),
        kept_memory_left=_kept_memory_left(recording),
        stall=_stall(recording, cores),
        loader_only=_loader_only(recording, loader),
        loader=loader,
        workers=_workers_now(loader, workers),
        ranks=max(1, recording.compute.world_size),
        cores=cores,
        stages=_fractions(workers),
        per_worker=[(worker, _fractions([worker])) for worker in workers],
        worker_wall_s=recording.costs.worker_wall_s or wall_s,
        worker_cpu_s=cpu_s,
        worker_alone_s=sum(stage_alone_s.values()) or recording.costs.worker_wall_s or wall_s,
        stage_alone_s=stage_alone_s,
        trainer_cpu_s=recording.costs.trainer_cpu_s,
        step_s=max(0.0, ranks_s - waited_s) / samples if samples else None,
        unpickle_s=unpickling * ranks_s / samples / slowdown_of(recording) if samples else 0.0,
        unpickle_share=min(wait_fraction, unpickling),
        copy_s=sum(step.copy_s for step in steps) / samples if samples else 0.0,
        slowdown=slowdown,
        slow_worker=_slow_worker(workers),
        on_cpu=recording.compute.device == "cpu",
        others_cores=others_cores(recording, steps, own_cores=own_cores, cores=cores) or 0.0,
        epoch_start_s=epoch_start_s,
        epoch_samples=epoch_samples,
        notes=notes,
    )


def _steps(recording: Recording, loader: LoaderSeen | None) -> tuple[list[Step], list[str]]:
    """The training steps of the training loader; failing those, the best there is, and a note of what it is."""
    of_loader = [step for step in recording.steps if loader is None or step.loader == loader.id]
    training = [step for step in of_loader if step.phase == "train"]
    notes = (
        [] if training or not of_loader else ["No training step was seen: the numbers are of a loop over a loader."]
    )
    chosen = training or of_loader
    measured = [step for step in chosen if not step.warm_up]
    if chosen and len(measured) < FEW_STEPS:
        notes.append(f"Only {len(measured)} steps after the warm-up: let it run longer for numbers to rely on.")
    return measured or chosen, notes


def _seconds(steps: Sequence[Step]) -> float:
    """Time of one rank (the mean over ranks)."""
    ranks = {step.rank for step in steps}
    return sum(step.duration_s - step.pause_s for step in steps) / max(len(ranks), 1)


def _rate(steps: Sequence[Step]) -> Rate | None:
    seconds, samples = _seconds(steps), sum(step.samples for step in steps)
    if not seconds or not samples:
        return None
    return Rate(value=samples / seconds, error=_error_of_rate(steps))


def _error_of_rate(steps: Sequence[Step]) -> float:
    """Relative standard error from the rates of up to ten stretches of equal numbers of steps."""
    ordered = sorted(steps, key=lambda step: step.start_s)
    size = max(1, len(ordered) // GROUPS)
    groups = [ordered[at : at + size] for at in range(0, len(ordered) - size + 1, size)]
    rates = [sum(s.samples for s in group) / seconds for group in groups if (seconds := _seconds(group)) > 0]
    return spread_error(rates)


def spread_error(values: Sequence[float]) -> float:
    """Relative standard error of the mean of `values`; a tenth when there are too few to tell."""
    if len(values) < 3 or statistics.fmean(values) <= 0:
        return 0.1
    return statistics.stdev(values) / statistics.fmean(values) / math.sqrt(len(values))


def _leg_rate(recording: Recording, name: str, at_least_dropped: float = 0.0) -> Rate | None:
    legs = [leg for leg in recording.legs if leg.name == name and (leg.dropped or 0.0) >= at_least_dropped]
    windows = [rate for leg in legs for rate in leg.samples_per_s if rate > 0]
    return Rate(value=statistics.median(windows), error=spread_error(windows)) if windows else None


def _leg(recording: Recording, name: LegName) -> Leg:
    """Empty where it was not measured."""
    return next((leg for leg in recording.legs if leg.name == name), Leg(name=name))


def _median_or_none(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _layout_gain(recording: Recording) -> Rate | None:
    """Pair by pair: a machine that is slower for a while is slower for both."""
    cached, ours = _leg(recording, "kept"), _leg(recording, "laid_out")
    pairs = zip(cached.samples_per_s, ours.samples_per_s, strict=False)
    gains = [mine / theirs for theirs, mine in pairs if mine > 0 and theirs > 0]
    return Rate(value=statistics.median(gains), error=spread_error(gains)) if gains else None


def _kept_memory_left(recording: Recording) -> float:
    """As the legs have it, but no less than page faults explain: these windows do not take turns with the others."""
    least, cached, kept = (
        left_without(recording.compute),
        _leg_rate(recording, "cached"),
        _leg_rate(recording, "kept"),
    )
    if cached is None or kept is None:
        return least
    return min(1.0, max(least, cached.value / kept.value))


def _stall(recording: Recording, cores: float) -> dict[int, float]:
    """What the trainer needs beside busy processes beyond what it needs alone, over what these took meanwhile; the
    median of the rounds."""
    alone_s, ranks = _leg(recording, "cached").trainer_cpu_s_per_sample, max(1, recording.compute.world_size)
    found: dict[int, float] = {}
    for leg in recording.legs:
        if leg.name != "crowded" or not leg.num_workers:
            continue
        rounds: list[float] = []
        for alone, mine, rate in zip(alone_s, leg.trainer_cpu_s_per_sample, leg.samples_per_s, strict=False):
            theirs = min(float(leg.num_workers), (cores - mine * rate) / ranks)
            rounds += [max(0.0, (mine - alone) * rate / ranks / theirs)] if theirs > 0 else []
        if rounds:
            found[leg.num_workers] = statistics.median(rounds)
    return found


def _loader_only(recording: Recording, loader: LoaderSeen | None) -> dict[int, Rate]:
    now = loader.num_workers or 0 if loader else 0
    by_workers: dict[int, list[float]] = {}
    for leg in recording.legs:
        if leg.name == "loader_only":
            workers = now if leg.num_workers is None else leg.num_workers
            by_workers.setdefault(workers, []).extend(rate for rate in leg.samples_per_s if rate > 0)
    return {
        workers: Rate(value=statistics.median(rates), error=spread_error(rates))
        for workers, rates in sorted(by_workers.items())
        if rates
    }


def _waited(step: Step) -> float:
    """CUDA: the host may wait for a batch while the device still works, so the device's own starvation counts."""
    return step.wait_s if step.starved_s is None else min(step.starved_s, step.duration_s)


def _shares(steps: Sequence[Step], seconds: float, parts: dict[str, float]) -> Shares:
    """The four shares. Unpickling a batch is part of waiting for it, whoever's thread does it."""
    if not seconds:
        return Shares()
    ranks = max(1, len({step.rank for step in steps}))
    data = min(1.0, sum(_waited(step) for step in steps) / ranks / seconds)
    copy = min(1.0 - data, sum(step.copy_s for step in steps) / ranks / seconds)
    on_device = any(step.starved_s is not None for step in steps)
    # On a GPU the main thread synchronises because it waits for the device: that is compute, not Python.
    own = sum(parts.get(name, 0.0) for name in OWN if not (on_device and name == "synchronise"))
    trainer = min(1.0 - data - copy, own)
    if on_device:
        # Python is hidden while the device has queued work; it counts as far as the device ran dry beyond the wait.
        dry = sum(max(0.0, (step.starved_s or 0.0) - step.wait_s) for step in steps) / ranks / seconds
        trainer, data = min(own, dry), max(0.0, data - min(own, dry))
    return Shares(data=data, copy=copy, trainer=trainer, compute=max(0.0, 1.0 - data - copy - trainer))


def _epoch(recording: Recording, loader: LoaderSeen | None, steps: Sequence[Step]) -> tuple[float, float | None]:
    """(seconds that a pass takes beside its steps, samples of a pass).

    From asking for an iterator to its first batch, in second and later passes, and from asking for a batch that is
    not there to being told so; less the wait that the first batch would have had anyway.
    """
    mine = [one for one in recording.passes if loader is None or one.loader == loader.id]
    later: list[LoaderPass] = [one for one in mine if one.epoch > 0]
    whole = [one for one in mine if one.end_s is not None]
    if not later or not whole or not steps:
        return 0.0, None
    ranks = len({one.rank for one in whole})
    usual_s = statistics.fmean(_waited(step) for step in steps)
    start_s = statistics.fmean(one.start_s for one in later) + statistics.fmean(one.end_s or 0.0 for one in whole)
    return max(0.0, start_s - usual_s), statistics.fmean(one.samples for one in whole) * ranks


def _training_workers(recording: Recording, loader: LoaderSeen | None) -> list[WorkerTime]:
    mine = [worker for worker in recording.workers if loader is None or worker.loader == loader.id]
    training = [worker for worker in mine if worker.phase == "train"] or mine
    groups: dict[tuple[int, int, bool], list[WorkerTime]] = {}
    for worker in training:
        groups.setdefault((worker.rank, worker.worker, worker.in_trainer), []).append(worker)
    return [_merged(group) for _, group in sorted(groups.items())]


def _merged(group: Sequence[WorkerTime]) -> WorkerTime:
    """One worker number over its processes: without persistent_workers every epoch starts new ones."""
    if len(group) == 1:
        return group[0]
    return replace(
        group[-1],
        seconds=sum(one.seconds for one in group),
        cpu_s=_sum_known([one.cpu_s for one in group]),
        stages=_sums([one.stages for one in group]),
        stages_cpu_s=_sums([one.stages_cpu_s for one in group]),
        transforms=_sums([one.transforms for one in group]),
        functions=_sums([one.functions for one in group]),
        batches=sum(one.batches for one in group),
        samples=sum(one.samples for one in group),
        ticks=sum(one.ticks for one in group),
        ended="killed" if any(one.ended == "killed" for one in group) else group[-1].ended,
    )


def _sums(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0.0) for table in tables) for name in names}


def _workers_now(loader: LoaderSeen | None, workers: Sequence[WorkerTime]) -> int:
    if loader is not None and loader.num_workers is not None:
        return loader.num_workers
    return len({worker.worker for worker in workers if not worker.in_trainer})


def _fractions(workers: Sequence[WorkerTime]) -> dict[str, float]:
    """Shares of the workers' wall time by stage; what is not accounted for is `other`; they sum to 1."""
    seconds = {name: sum(worker.stages.get(name, 0.0) for worker in workers) for name in STAGES}
    total = max(sum(worker.seconds for worker in workers), sum(seconds.values()))
    if total <= 0:
        return {}
    seconds["other"] += total - sum(seconds.values())
    return {name: value / total for name, value in seconds.items()}


def _alone(workers: Sequence[WorkerTime], most: float) -> tuple[dict[str, float], float]:
    """Seconds per sample by stage of a worker with a core to itself, and how far the recorded ones were from that.

    A stage that only computes takes `slowdown` times its CPU time when cores are fought for. What a stage took
    beyond that, it was blocked: on storage, a pipe, a sleep.
    """
    samples = sum(worker.samples for worker in workers)
    if not samples:
        return {}, 1.0
    wall = {n: sum(w.stages.get(n, 0.0) for w in workers) / samples for n in STAGES if n != "idle"}
    if not any(worker.stages_cpu_s for worker in workers):
        return wall, 1.0
    cpu = {n: min(wall[n], sum(w.stages_cpu_s.get(n, 0.0) for w in workers) / samples) for n in wall}
    slowdown = _slowdown(wall, cpu, most)
    return {n: cpu[n] + max(0.0, wall[n] - slowdown * cpu[n]) for n in wall}, slowdown


def _slowdown(wall: dict[str, float], cpu: dict[str, float], most: float) -> float:
    """The least of the CPU stages' ratios; stages too short to tell are left out. One stage alone may sleep on
    purpose, so it is believed up to `most` only; when several agree, cores are short, however much."""
    busy = sum(wall.values())
    ratios = [wall[name] / cpu[name] for name in CPU_STAGES if wall[name] > 0.05 * busy and cpu[name] > 0]
    least = max(1.0, min(ratios, default=1.0))
    return least if len(ratios) > 1 else min(least, most)


def _slow_worker(workers: Sequence[WorkerTime]) -> tuple[WorkerTime, float] | None:
    """A worker that takes 1.6 times or more the time per sample of the median of the others."""
    costs = [
        (w, (w.seconds - w.stages.get("idle", 0.0)) / w.samples) for w in workers if w.samples and not w.in_trainer
    ]
    if len(costs) < 2:
        return None
    slowest, cost = max(costs, key=lambda pair: pair[1])
    usual = statistics.median(other for worker, other in costs if worker is not slowest)
    busy = 1.0 - slowest.stages.get("idle", 0.0) / slowest.seconds if slowest.seconds else 0.0
    return (slowest, cost / usual) if usual > 0 and cost / usual >= 1.6 and busy > 0.5 else None


def _per_sample(seconds: float | None, workers: Sequence[WorkerTime]) -> float | None:
    samples = sum(worker.samples for worker in workers)
    return seconds / samples if seconds is not None and samples else None


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
