"""Remedies for how the script draws its batches: workers, their queue, their start, or a loader at all. Pure."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from feedline.pipeline.base.settings import TORCH_PREFETCH
from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.main_thread import all_ranks, looked, maker
from feedline.profiling.explain.measure.rates import ERRORS_90, waited_s
from feedline.profiling.explain.measure.situation import DATA_BOUND, HARDLY, SPARE, Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.explain.measure.workers import FEW_LOOKS, busiest
from feedline.profiling.explain.remedies.remedy import (
    AT_MOST,
    ONE_DATASET,
    Change,
    Effort,
    Remedy,
    Vain,
    datasets_anew,
    error_between,
    lines_of,
    loader_line,
    made_anew,
    opened_anew,
)
from feedline.profiling.record import units

MOST_WORKERS = 32
WAITING = 0.5  # share of a sample's time that is waiting for files or servers, from which cores are no limit
EVENLY = 0.5  # of the mean wait, which the median reaches where most steps wait
LOCKED = 0.2  # share of it that is waiting for a lock, from which more workers only wait longer
SOME = 1.02  # less is no gain
MOST_AHEAD = 64  # batches that a worker may be asked to have ready
NUM_SAMPLES = tuple(f"torch.utils.data.sampler:{kind}Sampler." for kind in ("Random", "WeightedRandom"))  # take it
TORCHS_NONE = "DataLoader(…, num_workers=0)"  # which refuses what is of workers
NO_WAIT = Vain("the loop hardly waits for data")


def unwatched(at: Situation) -> bool:
    """Its batches come from no loader that is known: a generator, a queue."""
    return at.measured.loader is None or at.measured.loader.unwatched


def iterates(at: Situation) -> bool:
    """Its dataset is no map of indices but gives its samples in turn."""
    loader = at.measured.loader
    return loader is not None and ".__iter__ is code of its own" in (loader.refused or "")


def share_of(at: Situation, *stages: str) -> float:
    """Of what a sample takes a worker with a core to itself."""
    workers = at.measured.workers
    return sum(workers.stage_alone_s.get(name, 0.0) for name in stages) / workers.alone_s if workers.alone_s else 0.0


def surely(at: Situation, *stages: str) -> float:
    """The lower end (90 %) of that; 0 where too few looks were taken to say anything."""
    workers = at.measured.workers
    if workers.looks < FEW_LOOKS or not workers.busy:
        return 0.0
    error = math.hypot(*(workers.stage_errors.get(name, 0.0) for name in stages)) / workers.busy
    return max(0.0, share_of(at, *stages) - ERRORS_90 * error)


def waiting_outside(at: Situation) -> float:
    """The share of a sample's time, for sure, in which a worker waits for files or servers and needs no core: what
    reading computes (an archive that is unpacked) needs one."""
    workers, names = at.measured.workers, ("blocked", "read")
    alone_s, cpu_s = (sum(of.get(name, 0.0) for name in names) for of in (workers.stage_alone_s, workers.stage_cpu_s))
    return surely(at, *names) * max(0.0, 1.0 - cpu_s / alone_s) if alone_s else 0.0


def handing_over(at: Situation) -> float:
    """The share of the time that the loop waits although batches lie ready: for their handing over; 0 where it is
    not that."""
    share = at.measured.waits - at.measured.rates.start_share
    return share if at.measured.batches_ready and share >= DATA_BOUND else 0.0


def idle_workers(at: Situation) -> Vain | None:
    """Why nothing that workers do would help: a loop that waits in most of its steps although each of them idles.
    Where it waits long now and then, for a batch that takes long, the others idle meanwhile."""
    if waiting_beside(at) < DATA_BOUND or not at.measured.workers.surely_idle or waits_now_and_then(at):
        return None
    idle, unpickles = units.percent(at.measured.workers.stages["idle"]), at.measured.unpickling_limits
    what = "the handing over of batches" if unpickles else "something else than their work"
    return Vain(f"the workers idle {idle} of the time: the loop waits for {what}")


def waits_now_and_then(at: Situation) -> bool:
    """Long, where most steps do not wait."""
    waits = [waited_s(step) for step in at.recording.measured()]
    return statistics.median(waits) < EVENLY * statistics.fmean(waits)


def missing_batches(at: Situation) -> int:
    """How many more would have to be ready so that most of the long waits of a loop are bridged which waits now and
    then, although each of its workers has time to spare; 0 where it is not that, or where other programs took cores:
    then they may have made the waits."""
    workers, steps = at.measured.workers, at.recording.measured()
    spare = min((each.get("idle", 0.0) for _, each in workers.each if each), default=0.0)
    if waiting_beside(at) < DATA_BOUND or spare < SPARE or workers.slow or not waits_now_and_then(at):
        return 0
    measured, lost = at.measured, at.factor * SOME <= 1.0
    if measured.unpickling_limits or measured.own_part_limits or measured.machine.others_cores or not lost:
        return 0
    waits = sorted(map(waited_s, steps))
    longest = [wait for wait in waits if wait > statistics.fmean(waits)]
    step_s = statistics.fmean(step.duration_s - step.pause_s - waited_s(step) for step in steps)
    return math.ceil(longest[3 * len(longest) // 4] / step_s) if step_s > 0 else 0


def even(now: Throughput, factor: float) -> Throughput:
    """So much of the model's whole rate as if that were lost to nothing: the run's own factor is undone by it."""
    times = ("step_s", "worker_s", "worker_cpu_s", "trainer_cpu_s", "handover_s", "own_part_s")
    storage = now.storage_samples_per_s and now.storage_samples_per_s / factor
    return replace(now, storage_samples_per_s=storage, **{name: getattr(now, name) * factor for name in times})


def waiting_beside(at: Situation) -> float:
    """The share of its steps' time that a loop with workers waits; without them the model knows it for itself."""
    waits, starts = at.measured.waits, at.measured.rates.start_share
    return max(0.0, waits - starts) / (1.0 - starts) if at.now.workers and starts < 1.0 else 0.0


def other_workers(at: Situation) -> Iterable[Change]:
    """1, 2, 4, … up to the cores each rank can use; further only where workers wait for files or servers. None, where
    handing batches over is what takes the time."""
    if unwatched(at):
        return
    share, waiting = max(1.0, at.measured.machine.cores / at.now.ranks), waiting_outside(at)
    waits = waiting > WAITING and at.measured.workers.slow is None and surely(at, "lock") < LOCKED
    top = min(MOST_WORKERS, int(share / max(1 - waiting, 0.1)) if waits else int(share))
    counts = {int(share), *at.workers, *(2**power for power in range(6) if 2**power <= top)}
    counts |= {0} if handing_over(at) else set()
    for count in sorted(counts - {at.now.workers}):
        then, more = at.with_workers(count), count > at.now.workers
        unknown = 0.0
        if not at.now.workers:
            taken = replace(then, handover_s=at.now.handover_s)
            unknown = math.hypot(error_between(_with_threads(at, then), then), error_between(then, taken))
        if more and missing_batches(at):  # each has batches of its own ahead: some of the long waits, or all
            then, unknown = even(then, math.sqrt(at.factor)), abs(math.log(at.factor)) / 4
        shares_out = iterates(at) and count > 1 and not (at.measured.loader and at.measured.loader.made_by)
        divided = "a dataset that shares its samples out among workers (get_worker_info): else each gives all of them"
        starts, why = not at.now.workers and made_anew(at), _refused(at) or _why_workers(at, then)
        if not more and isinstance(why, Vain) and at.measured.rates.start_share >= DATA_BOUND:
            continue  # what fewer spare as an epoch begins is not known
        once = "the DataLoader made once: workers of one that is made anew start with every epoch"
        once += f"; and {ONE_DATASET}" * datasets_anew(at)
        needs = [divided] * shares_out + [once] * starts + [opened_anew(at)] * (not at.now.workers)
        yield Change(
            family="workers" if more else "fewer-workers", remedy=f"num_workers={count}", then=then,
            effort=Effort.CODE if starts else Effort.SETTING, settings={"num_workers": count},
            why=why, extra_error=unknown,
            command=_workers_line(at, count) + "  # once, before the first epoch" * starts,
            cause=more and (waits or not at.now.workers), needs="; ".join(filter(None, needs)),
        )  # fmt: skip


def _refused(at: Situation) -> Vain | None:
    """Its library makes its loader without workers, whatever it is told."""
    loader = at.measured.loader
    if loader is None or loader.made_by != "ultralytics" or not at.measured.machine.on_cpu or at.now.workers:
        return None
    return Vain("ultralytics takes no workers where it trains on a CPU")


def _with_threads(at: Situation, then: Throughput) -> Throughput:
    """If all that the trainer's other threads did while it prepared its batches were work, and they did not spin:
    work that a worker, which has one thread, does by itself."""
    aside_s = at.measured.trainer.aside_cpu_s
    return replace(then, worker_s=then.worker_s + aside_s, worker_cpu_s=then.worker_cpu_s + aside_s)


def _workers_line(at: Situation, count: int) -> str:
    line = loader_line(at, f"num_workers={count}", ", persistent_workers=True" if count else "")
    return f"{line}  # without persistent_workers and prefetch_factor" if line == TORCHS_NONE else line


def _why_workers(at: Situation, then: Throughput) -> str:
    if at.hardly_waits and then.workers < at.now.workers:
        return Vain("nothing shows that the workers take cores which the model needs")
    unmeasured = at.measured.rates.ceiling is None and at.measured.trainer.shares.data < HARDLY
    if at.hardly_waits or (unmeasured and then.workers > at.now.workers):
        return NO_WAIT
    if surely(at, "lock") >= LOCKED:
        locked, who = units.percent(share_of(at, "lock")), "a worker" if at.now.workers else "the training thread"
        return Vain(f"{who} waits for a lock or another thread {locked} of its time, and more workers wait longer")
    if at.measured.loader and not at.now.workers and then.handover_s - at.now.handover_s > at.now.worker_s:
        size = units.size(at.measured.loader.batch_bytes)
        tensors = count_of(at.measured.loader.batch_tensors or 0, "tensor")
        return Vain(f"a batch has {tensors}, {size}: a worker sends each on its own, longer than making them takes")
    if not at.now.workers and at.measured.loader and at.measured.loader.background:
        return "a thread of the training process prepares every batch: a worker does not share Python's lock with it"
    if not at.now.workers:
        return "the training process prepares every batch itself: a worker would prepare the next while it computes"
    gains, binding, cores = then.rate() > SOME * at.now.rate(), then.binding(), at.measured.machine.cores
    if not then.workers:
        return "batches are ready when they are asked for: without workers nothing has to be handed over"
    if then.workers < at.now.workers:
        no_more = Vain(f"fewer than {count_of(at.now.workers, 'worker')} are no faster")
        return "fewer workers leave the model more of the cores" if gains else no_more
    if handing_over(at):
        return Vain("batches are ready when they are asked for")
    if why := idle_workers(at):
        return why
    if binding == "cores":
        limit = f"the {cores:g} cores are then the limit: workers and trainer share them"
        return limit if gains else Vain(limit)
    if waiting_outside(at) > WAITING:
        outside = units.percent(share_of(at, "blocked", "read"))
        return f"a worker waits for something outside {outside} of its time, and needs no core meanwhile"
    if binding == "compute":
        return "the workers then keep up with the model"
    return f"each worker prepares {units.rate(1 / at.now.worker_s if at.now.worker_s else None)}"


def prefetch(at: Situation) -> Iterable[Change]:
    """A longer queue smooths; it cannot raise the loader's average."""
    if not at.now.workers:
        return
    loader, alone = at.measured.loader, at.measured.rates.loader_only.get(at.now.workers)
    queue = (loader.prefetch_factor if loader else None) or TORCH_PREFETCH
    deeper = max(4, 2 * queue)
    room = alone.value / at.rate.value if alone else 1.0
    then, error, needs = at.now, 0.0, ""
    why: str = Vain("the queue is hardly ever empty")
    if at.measured.trainer.shares.data >= HARDLY:
        why = Vain("a longer queue only evens out, and nothing shows that batches come unevenly")
        if at.measured.workers.stages.get("idle", 1.0) < SPARE:
            why = Vain("a longer queue only evens out: what is missing is the workers' average rate")
        why = idle_workers(at) or why
        missing = missing_batches(at)
        if missing and (needed := queue + missing / at.now.workers) <= MOST_AHEAD:
            deeper = 2 ** math.ceil(math.log2(needed))
            then, error = even(at.now, at.factor), 0.1
            needs = f"memory for {count_of(deeper * at.now.workers, 'batch')}"
            why = "the loop waits long now and then, and the workers have time to spare: they can work that far ahead"
        elif alone is not None and room > 1.1:
            # Half of what the loader could do alone: with the model running it will not get all of it back.
            then = replace(at.now, worker_s=at.now.worker_s / (0.5 + 0.5 * room), contention={})
            why, error = f"the loader alone reaches {units.rate(alone.value)}: its batches come unevenly", 0.15
    yield Change(
        family="prefetch", remedy=f"prefetch_factor={deeper}", then=then, effort=Effort.SETTING, why=why,
        command=loader_line(at, f"prefetch_factor={deeper}"), settings={"prefetch_factor": deeper}, extra_error=error,
        needs=needs,
    )  # fmt: skip


def cheaper_own_part(at: Situation) -> Iterable[Change]:
    """A sampler, or what is done to batches that workers have made."""
    limits = at.measured.own_part_limits
    if not limits and not at.measured.draws_too:
        return
    part, share, error = at.measured.own_part
    place = busiest(all_ranks(at.recording).functions, part)
    part_s, now = share * at.now.ranks / at.rate.value, at.now
    if part == "prepare" and at.measured.machine.on_cpu:  # launching work on a device says nothing of workers
        yield from _by_workers(at, place, share, error)
    function = place.rpartition(":")[2] if ".py:" in place else place  # of a package: with its module
    does = "draws samples" if part == "draw" else "changes batches that are ready, where workers could,"
    left_s, left_cpu_s = max(0.0, now.own_part_s - part_s), max(0.0, now.trainer_cpu_s - part_s)
    then, command = replace(now, own_part_s=left_s, trainer_cpu_s=left_cpu_s), lines_of(at.recording, function)
    if at.measured.drawn_at_start:
        does = "draws samples as epochs begin,"
        start_share = at.measured.rates.start_share
        share = share if now.workers else max(share, start_share)  # nothing else begins there
        drawn = min(1.0, share / start_share)
        then = replace(now, epoch_start_s=(1.0 - drawn) * now.epoch_start_s)
        loader = at.measured.loader
        ended = any(loader and one.loader == loader.id and one.end_s is not None for one in at.recording.passes)
        if not ended and place.startswith(NUM_SAMPLES):
            command = "sampler = …Sampler(…, num_samples=…)  # no more than an epoch takes: it draws them all at once"
    yield Change(
        family="stage", remedy="a cheaper sampler" if part == "draw" else "cheaper work on whole batches",
        target=place, effort=Effort.CODE, at_most=True,
        cause=limits and (part != "prepare" or not at.measured.machine.on_cpu),
        then=then, ceiling_times=math.inf, command=command, extra_error=error / (1 - min(share, 0.9)),
        why=f"the training thread {does} {units.percent(share)} of its time ({place}): {AT_MOST}",
    )  # fmt: skip


def _by_workers(at: Situation, place: str, share: float, error: float) -> Iterable[Change]:
    """What a generator does behind the loader, so much of the time, in its Dataset. There torch has one thread; how
    many the generator's part has is between that and the whole process's mean."""
    now, most_threads = at.now, max(1.0, at.measured.trainer.cpu_s * at.rate.value / at.now.ranks)

    def then(count: int, share: float, threads: float) -> Throughput:
        part_s = share * now.ranks / at.rate.value
        worker_s, worker_cpu_s = now.worker_s + threads * part_s, now.worker_cpu_s + threads * part_s
        trainer_cpu_s, own_part_s = max(0.0, now.trainer_cpu_s - threads * part_s), max(0.0, now.own_part_s - part_s)
        return at.sending(replace(now, workers=count, own_part_s=own_part_s, worker_s=worker_s,
                                  worker_cpu_s=worker_cpu_s, trainer_cpu_s=trainer_cpu_s))  # fmt: skip

    for count in [now.workers] if now.workers else sorted({1, 2, int(max(1.0, now.cores / now.ranks))}):
        changed = then(count, share, math.sqrt(most_threads))
        of_threads = error_between(then(count, share, 1.0), then(count, share, most_threads))
        of_share = error / (1.0 - min(share, 0.9)) if changed.binding() == "compute" else error / share
        yield Change(
            family="dataloader", remedy=f"in the Dataset, by {count_of(count, 'worker')}", target=place,
            effort=Effort.CODE, cause=True, ceiling_times=math.inf, then=changed,
            extra_error=math.hypot(0.1, of_threads, of_share),
            why=f"the training thread makes batches of what its loader hands over ({place}), which workers could do "
            "for the next ones",
            command=f"DataLoader(dataset, num_workers={count}, persistent_workers=True)",
            needs=f"a Dataset whose __getitem__ (or a collate_fn) does what {place} does",
        )  # fmt: skip


def larger_batches(at: Situation) -> Iterable[Change]:
    """Half as many to hand over."""
    batch, data = at.measured.loader and at.measured.loader.batch_size, handing_over(at)
    if not batch or not data:
        return
    yield Change(
        family="batch", remedy=f"batch_size={2 * batch}", then=replace(at.now, step_s=at.now.step_s * (1 - data / 2)),
        effort=Effort.CODE, command=loader_line(at, f"batch_size={2 * batch}"), extra_error=0.1,
        why=f"batches are ready, and handing over takes {units.percent(data)} of the time: half as many take half",
        changes="twice the batch: fewer optimiser steps an epoch, another learning rate",
    )  # fmt: skip


def a_loader_at_all(at: Situation) -> Iterable[Change]:
    """For a loop of its own generator, or one that draws from a queue."""
    if not unwatched(at):
        return
    cores = at.measured.machine.cores / at.now.ranks
    seen = [(part, *looked(at.recording, (part,))) for part in ("load", "wait")]
    part, share, error = max(seen, key=lambda one: one[1])
    if share - ERRORS_90 * error < HARDLY:
        yield from _cheaper_threads(at)
        return
    if part == "wait":
        then, extra = _without(at, share, error)
        place = maker(at.recording)
        made = (
            f"another thread makes, mostly in {place}" if place else "others make: processes of the script, perhaps"
        )
        line = f"DataLoader(dataset, batch_size=…, num_workers={int(max(1.0, cores))}, persistent_workers=True)"
        yield Change(
            family="stage", remedy="a faster source of batches", target=place, then=then, effort=Effort.CODE,
            why=f"the loop waits {units.percent(share)} of the time for batches that {made}: "
            "this is what it would give if they were always ready", extra_error=extra, cause=True, at_most=True,
            command=lines_of(at.recording, place.rpartition(":")[2]) if place else line,
            needs="" if place else "a Dataset that makes one sample: then its workers are looked into",
        )  # fmt: skip
        return
    place = busiest(all_ranks(at.recording).functions, part)
    most_of_it = f", most of it in {place}" if place else ""
    for count in sorted({1, 2, int(max(1.0, cores))}):
        then, extra = _without(at, share, error, count)
        yield Change(
            family="dataloader", remedy=f"a DataLoader with {count_of(count, 'worker')}", target=place,
            then=then, cause=True, effort=Effort.CODE, extra_error=extra,
            why=f"the training thread makes its batches itself, {units.percent(share)} of its time{most_of_it}",
            command=f"DataLoader(dataset, batch_size=…, num_workers={count}, persistent_workers=True)",
            needs=f"a Dataset whose __getitem__ does what {place or 'the loop'} does for one sample",
        )  # fmt: skip


def _cheaper_threads(at: Situation) -> Iterable[Change]:
    """Batches are always ready, but the threads that make them take the model's cores."""
    place, stalled = at.measured.trainer.beside, at.measured.stalled_beside
    if stalled >= HARDLY:
        yield Change(
            family="stage", remedy="cheaper work in other threads", target=place, effort=Effort.CODE, at_most=True,
            then=replace(at.now, step_s=at.now.step_s * (1.0 - stalled), worker_cpu_s=0.0,
                         trainer_cpu_s=at.now.trainer_cpu_s * (1.0 - stalled)),
            extra_error=0.5 * stalled, ceiling_times=math.inf,
            why=f"the model waits up to {units.percent(stalled)} of its time for the cores that {place} takes: "
            "this is what it would give if that cost nothing",
            command=lines_of(at.recording, place.rpartition(":")[2]),
        )  # fmt: skip


def _without(at: Situation, share: float, error: float, workers: int = 0) -> tuple[Throughput, float]:
    """The model when this share of the loop's time is left to so many workers, or to nobody; and what the share's
    error makes of its rate, beside 10 % for what is not measured."""
    sample_s = at.now.ranks / at.rate.value

    def then(share: float) -> Throughput:
        loading_s = share * sample_s if workers else 0.0
        return replace(at.now, workers=workers, step_s=sample_s - share * sample_s, worker_s=loading_s,
                       worker_cpu_s=loading_s, trainer_cpu_s=max(0.0, at.now.trainer_cpu_s - loading_s))  # fmt: skip

    least, most = (then(min(max(share + off, 0.0), 0.99)) for off in (-error, error))
    return then(share), math.hypot(0.1, error_between(least, most))


REMEDIES: tuple[Remedy, ...] = (
    other_workers, prefetch, cheaper_own_part, larger_batches, a_loader_at_all,
)  # fmt: skip
