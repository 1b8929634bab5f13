"""What bounds a training loop, by the intervals of its shares. Pure.

The rule (shares as in `measure.main_thread`; of those that reach their threshold, the largest):

    data      the loop is blocked on batches the share `DATA_BOUND` of the time or more; or the ceiling leg
              is 1.5 times as fast although it hardly waits: workers and model fight for the same cores
    copy      15 % or more in host-to-device copies
    trainer   25 % or more in the main thread's own Python, logging, saving
    compute   none of these: the model is the limit

Each share has its 90 % interval. Where a threshold lies inside it, or within three points of it, the verdict says
which other one it is close to; where the interval is so wide that either may be, too little was seen, or nothing
decides what much of the time is, it cannot tell; nor where a model on the CPU seems to be the limit while workers
wait for its cores, unless the ceiling was measured. Beside other programs on all cores, waiting for batches that are
ready is data only if it is half of the time or more; with less, the verdict is another one that is close to data.
"""

from dataclasses import asdict
from typing import Literal, NamedTuple

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.rates import ERRORS_90, ERRORS_95
from feedline.profiling.explain.measure.situation import COPY_BOUND, DATA_BOUND, TRAINER_BOUND, Measured
from feedline.profiling.explain.measure.workers import FEW_LOOKS
from feedline.profiling.record import units

Bound = Literal["data", "copy", "compute", "trainer"]
THRESHOLDS: dict[Bound, float] = {"data": DATA_BOUND, "copy": COPY_BOUND, "trainer": TRAINER_BOUND}
CLOSE = 0.03  # a threshold this near to the interval of a share is close
MOST = 0.5  # a share from which no other is larger
WIDE = 0.1  # an interval that reaches further than this and holds the threshold decides nothing
FEW_STEPS = 8  # fewer measured steps than this give no verdict, unless they are long: `too_few`
LEAST_STEPS, LONG_S = 3, 10.0
STALLED = 1.5  # the ceiling over the measured rate from which data is to blame even if the loop hardly waits
WORDS = {
    "data": "waiting for the next batch", "copy": "copying", "trainer": "in its own Python", "compute": "computing",
    "other": "in what nothing decides",
}  # fmt: skip
"""What the loop does in a share of its time."""


class Judged(NamedTuple):
    bound: Bound | None  # None: it cannot be told
    close: list[Bound]  # others that it may be
    why: str  # it cannot be told


def judged(measured: Measured) -> Judged:
    trainer, workers, machine = measured.trainer, measured.workers, measured.machine
    shares, errors = asdict(trainer.shares), asdict(trainer.errors)
    least: dict[Bound, float] = dict(THRESHOLDS)
    if why := unseen(measured):
        return Judged(None, [], why)
    if measured.batches_ready and machine.others_cores and measured.rates.start_share < DATA_BOUND:
        least["data"] = MOST
    reach = {name: ERRORS_90 * errors[name] for name in least}
    unknown = {name: shares["other"] if name == "trainer" or trainer.sampled else 0.0 for name in least}
    high = {name: shares[name] + reach[name] + unknown[name] + CLOSE for name in least}
    possible: list[Bound] = [name for name in least if high[name] >= least[name] or shares[name] >= THRESHOLDS[name]]
    claimed: list[Bound] = [name for name in least if shares[name] >= least[name]]
    claimed.sort(key=lambda name: -shares[name])
    starved, nearly = stalled(measured)
    bound: Bound = claimed[0] if claimed else "data" if starved else "compute"
    close: list[Bound] = [name for name in possible if name != bound]
    rival: Bound | None = ("compute" if starved else "data") if nearly else None
    if claimed:
        low = shares[bound] - reach[bound]
        close = [name for name in close if min(high[name], 1.0 - low) > low]
        near = low - CLOSE < least[bound]
        rival = (claimed[1] if len(claimed) > 1 else "compute") if near else None
    if bound == "data" and measured.rates.contradicted:
        rival = "compute"
    if rival is not None and rival not in close:
        close.append(rival)
    for name in least:
        if name in (bound, *close) and reach[name] > (most := max(WIDE, abs(shares[name] - least[name]))):
            return Judged(None, [], _too_wide(measured, name, most))
    if bound == "compute" and shares["other"] >= THRESHOLDS["trainer"]:
        lost = units.percent(shares["other"])
        return Judged(None, [], f"nothing decides what the training thread does {lost} of the time")
    shared = machine.on_cpu and workers.count and not machine.others_cores  # by model and workers alone
    if bound == "compute" and shared and workers.lack_cores and measured.rates.ceiling is None:
        lacked = units.percent(workers.delay)
        wait = f"the workers wait {lacked} of their busy time for a core, and so may the model"
        tells = "--legs tells" if not measured.rates.doubt else "--legs on a quiet machine tells"
        return Judged(None, [], f"{wait}: {tells} how fast it is with data for free")
    return Judged(bound, close, "")


def unseen(measured: Measured) -> str:
    """Why there is nothing to judge by, nor to predict from; "" where there is."""
    recording, trainer = measured.recording, measured.trainer
    if measured.uncounted:
        return "how many samples a batch has could not be seen"
    if measured.rates.now is None and recording.optimizer_steps:
        return f"{count_of(recording.optimizer_steps, 'optimiser step')} seen, but no loader"
    if measured.rates.now is None:
        failed = " before the script failed" if recording.script.ended_by == "error" else ""
        return f"no training step was seen{failed}"
    if too_few(measured):
        seen = f"{count_of(trainer.steps, 'step')} {'of' if _warming(measured) else 'behind'} the warm-up"
        return f"only {seen}: {measured.longer}"
    blind = trainer.shares.other >= THRESHOLDS["trainer"] and trainer.shares.data < MOST
    if trainer.looks < FEW_LOOKS and (trainer.sampled or blind):
        return f"only {count_of(trainer.looks, 'look')} at the training thread: {measured.longer}"
    return ""


def too_few(measured: Measured) -> bool:
    """Whether the steps say nothing. A few long ones do, where no queue that is still emptied hides what follows: the
    loop is held up for most of their time, makes its batches itself, or has workers that idle."""
    trainer, workers, loader = measured.trainer, measured.workers, measured.loader
    if trainer.steps >= FEW_STEPS:
        return False
    if trainer.steps < LEAST_STEPS or trainer.seconds < LONG_S or _warming(measured):
        return True
    if max(trainer.shares.data, trainer.shares.trainer) >= MOST:
        return False
    idle = workers.stages.get("idle", 0.0) - ERRORS_95 * workers.stage_errors.get("idle", 0.0)
    ahead = loader is not None and (loader.num_workers == 0 or idle >= MOST)
    return trainer.sampled or not ahead


def _warming(measured: Measured) -> bool:
    return all(step.warm_up for step in measured.recording.measured())


def _too_wide(measured: Measured, name: Bound, most: float) -> str:
    """Other programs are blamed where without them the interval would reach no further than that."""
    trainer, others = measured.trainer, measured.machine.others_cores
    share, points = getattr(trainer.shares, name), 100 * ERRORS_95 * getattr(trainer.errors, name)
    known = f"{WORDS[name]} is {units.percent(share)} of the time, give or take {points:.0f} points"
    taken = f"other programs took {units.number(others, 2)} of the {measured.machine.cores:g} cores"
    blamed = others and ERRORS_90 * getattr(measured.errors_alone, name) <= most
    return f"{known}, for {taken}: run it alone" if blamed else f"{known}: {measured.longer}"


def stalled(measured: Measured) -> tuple[bool, bool]:
    """Whether data for free would be far faster although the loop hardly waits, for its workers take the cores that
    the model needs; and whether that is close. Where other programs take more of them, it is not the data."""
    now, free = measured.rates.now, measured.free
    if now is None or free is None or measured.machine.others_cores > now.value * (measured.workers.cpu_s or 0.0):
        return False, False
    return free.value > STALLED, abs(free.value - STALLED) <= ERRORS_90 * free.error * free.value
