"""How fast the training loop runs: as it is, over whole epochs, and in the legs. Pure.

Rates are samples per second over the time of the measured steps (warm-up, evaluation and checkpoint pauses left
out), summed over ranks.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profiling.record.recording import Recording, Step

# How many standard errors an interval reaches either way: what was measured is shown with its 95 %, what is predicted
# with its 90 %.
ERRORS_95, ERRORS_90 = 2.0, 1.64
GROUPS = 10  # steps are cut into this many stretches; the spread of their rates is the rate's uncertainty
FEW_STEPS = 8  # fewer measured steps than this give a verdict with a warning
MOSTLY_COLD = 0.9  # a cold leg counts when this share of the data's files was out of memory


@dataclass(frozen=True, kw_only=True)
class Rate:
    """samples/s, or a ratio of two rates, with its relative standard error; `low` to `high` is its 95 % interval."""

    value: float
    error: float

    @property
    def low(self) -> float:
        return self.value * max(0.0, 1.0 - ERRORS_95 * self.error)

    @property
    def high(self) -> float:
        return self.value * (1.0 + ERRORS_95 * self.error)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """samples/s of all ranks; None where it was not measured."""

    now: Rate | None  # between the first and the last batch of an epoch
    ceiling: Rate | None  # with cached batches: data is free
    cold: Rate | None  # with the data's files out of memory; None too where dropping them did not work
    loader_only: dict[int, Rate]  # the loader's own rate by number of workers
    epoch_start_s: float
    """What beginning and ending a pass over the loader takes beside its steps; 0 where no second pass was seen."""
    epoch_samples: float | None  # of one whole pass, all ranks together; None where none was seen


def measure_rates(recording: Recording, steps: Sequence[Step]) -> Rates:
    loader, cold = recording.train_loader, recording.leg("cold")
    current = (loader.num_workers or 0) if loader else 0
    windows: dict[int, list[float]] = {}
    for leg in recording.legs:
        if leg.name == "loader_only":
            workers = current if leg.num_workers is None else leg.num_workers
            windows.setdefault(workers, []).extend(leg.samples_per_s)
    epoch_start_s, epoch_samples = _epoch(recording, steps)
    return Rates(
        now=_rate_now(steps),
        ceiling=median_rate(recording.leg("cached").samples_per_s),
        cold=median_rate(cold.samples_per_s) if (cold.dropped or 0.0) >= MOSTLY_COLD else None,
        loader_only={count: rate for count in sorted(windows) if (rate := median_rate(windows[count]))},
        epoch_start_s=epoch_start_s,
        epoch_samples=epoch_samples,
    )


def measured_steps(recording: Recording) -> tuple[list[Step], list[str]]:
    """The training steps of the training loader; where there are none, the best there is, and a note of it."""
    loader = recording.train_loader
    of_loader = [step for step in recording.steps if loader is None or step.loader == loader.id]
    training = [step for step in of_loader if step.phase == "train"]
    notes: list[str] = []
    if of_loader and not training:
        notes.append("No training step was seen: the numbers are of a loop over a loader.")
    chosen = training or of_loader
    measured = [step for step in chosen if not step.warm_up]
    if chosen and len(measured) < FEW_STEPS:
        notes.append(f"Only {len(measured)} steps after the warm-up: let it run longer for numbers to rely on.")
    return measured or chosen, notes


def seconds_of(steps: Sequence[Step]) -> float:
    """Time of one rank (the mean over ranks), pauses left out."""
    ranks = {step.rank for step in steps}
    return sum(max(0.0, step.duration_s - step.pause_s) for step in steps) / max(len(ranks), 1)


def waited_s(step: Step) -> float:
    """CUDA: the host may wait for a batch while the device still works, so the device's own starvation counts."""
    return step.wait_s if step.starved_s is None else min(step.starved_s, step.duration_s)


def median_rate(values: Sequence[float]) -> Rate | None:
    """None where there is no value above 0."""
    known = [value for value in values if value > 0]
    return Rate(value=statistics.median(known), error=_spread_error(known)) if known else None


def _spread_error(values: Sequence[float]) -> float:
    """Relative standard error of the mean of `values`; a tenth when there are too few to tell."""
    if len(values) < 3 or statistics.fmean(values) <= 0:
        return 0.1
    return statistics.stdev(values) / statistics.fmean(values) / math.sqrt(len(values))


def _rate_now(steps: Sequence[Step]) -> Rate | None:
    """The error is that of the rates of up to ten stretches of equal numbers of steps."""
    seconds, samples = seconds_of(steps), sum(step.samples for step in steps)
    if not seconds or not samples:
        return None
    ordered = sorted(steps, key=lambda step: step.start_s)
    size = max(1, len(ordered) // GROUPS)
    groups = [ordered[at : at + size] for at in range(0, len(ordered) - size + 1, size)]
    rates = [sum(step.samples for step in group) / group_s for group in groups if (group_s := seconds_of(group)) > 0]
    return Rate(value=samples / seconds, error=_spread_error(rates))


def _epoch(recording: Recording, steps: Sequence[Step]) -> tuple[float, float | None]:
    """(seconds that a pass takes beside its steps, samples of a pass).

    From asking for an iterator to its first batch, in second and later passes, and from asking for a batch that is
    not there to being told so; less the wait that the first batch would have had anyway.
    """
    loader = recording.train_loader
    passes = [epoch for epoch in recording.passes if loader is None or epoch.loader == loader.id]
    starts = [epoch.start_s for epoch in passes if epoch.epoch > 0]
    whole = [epoch for epoch in passes if epoch.end_s is not None]
    if not starts or not whole or not steps:
        return 0.0, None
    beside_s = statistics.fmean(starts) + statistics.fmean(epoch.end_s or 0.0 for epoch in whole)
    usual_s = statistics.fmean(waited_s(step) for step in steps)
    ranks = len({epoch.rank for epoch in whole})
    return max(0.0, beside_s - usual_s), statistics.fmean(epoch.samples for epoch in whole) * ranks
