"""What limits the data of a loop that waits for it: one cause, or that it cannot be told. Pure.

The first of these that the numbers support: passes that begin slowly, one slow worker, cores that are short (the
workers wait for them, or the model does), batches unpickled or made in the training thread, batches that are ready
and only handed over; else the stage that takes the workers longest. Where the workers lack cores meanwhile, whoever
takes them, that is said beside it: cheaper samples help then.
"""

from dataclasses import dataclass, replace
from typing import Literal

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.bound import stalled
from feedline.profiling.explain.measure.main_thread import all_ranks, looked, maker
from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import DATA_BOUND, Measured
from feedline.profiling.explain.measure.workers import FEW_LOOKS, busiest
from feedline.profiling.record import units
from feedline.profiling.record.stages import STAGES

KINDS = (*STAGES, "draw", "unpickle", "start", "slow-worker", "cores", "main", "handover")
"""Of causes, but for the stages idle and other."""
MOSTLY = 0.5
THREAD = "another thread of the script makes the batches"
ANOTHERS = "waiting for another thread"  # what a lock means where there are no workers: nobody else takes it
AFTERWORDS = {"blocked": ": more workers wait side by side", "lock": ": more workers do not help"}


@dataclass(frozen=True, kw_only=True)
class Cause:
    kind: str | None = None  # one of KINDS; None: it cannot be told, and `words` says why
    where: str = ""  # the function, the place or the worker, where one is known
    share: float | None = None  # of the time that `words` names
    error: float | None = None  # absolute standard error of it
    words: str = ""
    also: Literal["cores"] | None = None  # what limits it as well


def cause_of(measured: Measured) -> Cause:
    ways = (_start, _slow_worker, _own_part, _cores, _unpickling, _main, _handover)
    cause = next((cause for way in ways if (cause := way(measured)) is not None), None) or _stage(measured)
    computes = cause.kind in STAGES and STAGES[cause.kind].computes
    short = measured.workers.lack_cores or measured.uses_all_cores
    return replace(cause, also="cores") if computes and short else cause


def _start(measured: Measured) -> Cause | None:
    rates, waits = measured.rates, measured.trainer.shares.data
    if measured.restart_s:
        words = "each step begins the loader anew: its workers start, and end, for every batch"
        return Cause(kind="start", share=waits, error=measured.trainer.errors.data, words=words)
    if not measured.starts_slowly or measured.drawn_at_start:
        return None
    share = rates.start_share / waits
    words = f"{units.percent(share)} of the waiting is for passes over the loader to begin and end"
    return Cause(kind="start", share=share, error=share * rates.epoch_start_error, words=words)


def _slow_worker(measured: Measured) -> Cause | None:
    if (slow := measured.workers.slow) is None:
        return None
    name, more = f"worker {slow.worker.worker}", 1.0 - 1.0 / slow.factor
    words = f"{name} takes {units.times(slow.factor)} as long per sample as the others: all wait for it"
    return Cause(kind="slow-worker", where=name, share=more, error=slow.error / slow.factor**2, words=words)


def _cores(measured: Measured) -> Cause | None:
    """More than the machine has wants to run, and it is the script's own."""
    workers, machine = measured.workers, measured.machine
    if not workers.count or machine.others_cores:
        return None
    if measured.trainer.shares.data < DATA_BOUND and any(stalled(measured)):
        return Cause(kind="cores", words="the workers take the cores that the model needs")
    if workers.delay is None or workers.delay < MOSTLY:
        return None
    share = units.percent(workers.delay)
    words = f"the workers wait {share} of their busy time for one of the {machine.cores:g} cores"
    return Cause(kind="cores", share=workers.delay, words=words)


def _own_part(measured: Measured) -> Cause | None:
    """A sampler, or a batch sampler, which the training thread asks while it waits; what a loader does with batches
    that its workers have made."""
    if not measured.own_part_limits:
        return None
    part, share, error = measured.own_part
    where, time = busiest(all_ranks(measured.recording).functions, part), f"{units.percent(share)} of its time"
    words = f"the training thread changes batches that are ready {time}"
    if part == "draw":
        waiting = ", and the workers wait for them" if measured.workers.count else ""
        words = f"the training thread draws samples {time}{waiting}"
    words += f" ({where})" if where else ""
    return Cause(kind="draw" if part == "draw" else "main", where=where, share=share, error=error, words=words)


def _unpickling(measured: Measured) -> Cause | None:
    if not measured.unpickling_limits:
        return None
    share, error = measured.trainer.unpickle_share, measured.trainer.unpickle_error
    words = f"unpickling batches takes the training thread {units.percent(share)} of its time"
    return Cause(kind="unpickle", share=share, error=error, words=words)


def _main(measured: Measured) -> Cause | None:
    """Batches are made in the training thread; by looks at it where no loader is watched."""
    recording, trainer, loader = measured.recording, measured.trainer, measured.loader
    if measured.workers.count or (loader is not None and loader.background):
        return None
    share, error = trainer.shares.data, trainer.errors.data
    if trainer.sampled:
        (share, error), (waits, waits_error) = looked(recording, ("load",)), looked(recording, ("wait",))
        if share - waits <= ERRORS_90 * (error + waits_error):
            words = "the batches come out of something that is not watched: what makes them cannot be seen"
            where = maker(recording)
            return Cause(where=where, words=f"{THREAD}, mostly in {where}" if where else words)
    else:
        waits, waits_error = looked(recording, ("wait",))
        if waits - ERRORS_90 * waits_error > MOSTLY * share:
            others = "the training thread waits for batches that others make"
            return Cause(words=f"{others}, and not for those of the loader that its steps are told by")
    top, where = measured.workers.top, ""
    words = f"the training thread prepares its batches itself, {units.percent(share)} of its time"
    if top is not None:
        where, doing = _place(measured, top), ANOTHERS if top == "lock" else STAGES[top].words
        words += f", most of it in {doing}" + (f" ({where})" if where else "")
    kind = "blocked" if top in ("blocked", "lock") else "main"
    return Cause(kind=kind, where=where, share=share, error=error, words=words)


def _handover(measured: Measured) -> Cause | None:
    if not measured.batches_ready:
        return None
    rates, shares, errors = measured.rates, measured.trainer.shares, measured.trainer.errors
    if rates.start_share * (1.0 + ERRORS_90 * rates.epoch_start_error) > MOSTLY * shares.data:
        return Cause(words="passes take long to begin, and their batches are ready: which of the two costs more "
                     "cannot be told")  # fmt: skip
    words = "batches are ready when they are asked for: the loop waits for their handing over, less with larger ones"
    return Cause(kind="handover", share=shares.data, error=errors.data, words=words)


def _stage(measured: Measured) -> Cause:
    workers, name = measured.workers, measured.workers.top
    if not workers.each:
        where = measured.trainer.beside if measured.loader and measured.loader.background else ""
        seen = f"{THREAD}; what its other threads compute is mostly in {where}"
        return Cause(where=where, words=seen if where else "what the workers do was not seen")
    if name is None and workers.looks < FEW_LOOKS:
        seen = count_of(workers.looks, "look")
        return Cause(words=f"{seen} at the workers are too few to say what they do: {measured.longer}")
    if name is None and workers.leader is not None:
        where, share = _place(measured, "other"), units.percent(workers.stages["other"] / workers.busy)
        unknown = f"{share} of the workers' busy time is in what no rule knows"
        return Cause(where=where, words=unknown + (f" ({where})" if where else ""))
    if name is None:
        return Cause(words="no stage of the workers leads the others beyond its error")
    share, error = (of[name] / workers.busy for of in (workers.stages, workers.stage_errors))
    where = _place(measured, name)
    words = f"the workers spend {units.percent(share)} of their busy time {spent_in(name)}"
    words += f" ({where})" if where else ""
    return Cause(kind=name, where=where, share=share, error=error, words=words + AFTERWORDS.get(name, ""))


def spent_in(stage: str) -> str:
    words = STAGES[stage].words
    return words if words.startswith("waiting") else f"in {words}"


def _place(measured: Measured, stage: str) -> str:
    """Where the workers are busiest in a stage; "" where nothing was recorded of it."""
    named = measured.workers.transforms if stage == "transform" else {}
    return busiest(measured.workers.functions, stage) or max(named, key=lambda name: named[name], default="")
