"""How fast the training loop runs: as it is, over whole epochs, and in the legs; and how well that is known. Pure.

Rates are samples per second over the time of the measured steps (warm-up, evaluation and checkpoint pauses left
out), summed over ranks. In a loop whose batches nobody sees (`LoaderSeen.kind` unwatched) a sample is a step.
"""

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedline.profiling.record import units
from feedline.profiling.record.measurements import MOSTLY_COLD
from feedline.profiling.record.recording import Recording, Step
from feedline.profiling.record.uncertainty import OF_A_MEDIAN, spread_error

# How many standard errors an interval reaches either way: what was measured is shown with its 95 %, what is predicted
# with its 90 %.
ERRORS_95, ERRORS_90 = 2.0, 1.64
GROUPS = 10  # steps are cut into so many stretches or more; their spread is the uncertainty of rates and shares
SCATTERED = 0.25  # a leg whose windows leave its rate a larger error than this says nothing
SEEN_ONCE = 0.25  # relative error of what an epoch begins with, where one beginning was seen
AGREE = 0.1  # rates this close are the same loop's: windows of a second differ by so much on a quiet machine


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
    ceiling: Rate | None  # with cached batches: data is free; None too where that cannot be believed
    doubt: str  # why it cannot, for a reader
    contradicted: bool = False  # without its waiting the loop would be faster than that ceiling: one of them is wrong
    cold: Rate | None  # with the data's files out of memory; None too where dropping them did not work
    loader_only: dict[int, Rate]  # the loader's own rate by number of workers
    epoch_start_s: float
    """What beginning and ending a pass over the loader takes beside its steps; 0 where no second pass was seen."""
    epoch_samples: float | None  # of one whole pass, all ranks together; None where none was seen
    epoch_start_error: float = 0.0  # relative

    @property
    def start_share(self) -> float:
        """Of a whole epoch's time, what it begins and ends with."""
        if self.now is None or not self.epoch_samples:
            return 0.0
        return self.epoch_start_s / (self.epoch_start_s + self.epoch_samples / self.now.value)


def measure_rates(recording: Recording, steps: Sequence[Step]) -> Rates:
    loader, cold = recording.train_loader, recording.leg("cold")
    current = (loader.num_workers or 0) if loader else 0
    windows: dict[int, list[float]] = {}
    for leg in recording.legs:
        if leg.name == "loader_only":
            workers = current if leg.num_workers is None else leg.num_workers
            windows.setdefault(workers, []).extend(leg.samples_per_s)
    window_s = min((seconds for leg in recording.legs for seconds in leg.window_s), default=0.0)
    alone = _window_error(steps, window_s)
    epoch_start_s, epoch_start_error, epoch_samples = _epoch(recording, steps)
    now = _rate_now(steps)
    ceiling, doubt = _ceiling(recording, now)
    return Rates(
        now=now,
        ceiling=ceiling,
        doubt=doubt,
        cold=median_rate(cold.samples_per_s) if (cold.dropped or 0.0) >= MOSTLY_COLD else None,
        loader_only={count: rate for count in sorted(windows) if (rate := median_rate(windows[count], alone))},
        epoch_start_s=epoch_start_s,
        epoch_samples=epoch_samples,
        epoch_start_error=epoch_start_error,
    )


def seconds_of(steps: Sequence[Step]) -> float:
    """Time of one rank (the mean over ranks), pauses left out."""
    ranks = {step.rank for step in steps}
    return sum(max(0.0, step.duration_s - step.pause_s) for step in steps) / max(len(ranks), 1)


def evaluations(recording: Recording, steps: Sequence[Step]) -> list[Step]:
    """Batches of evaluations amid these steps."""
    pauses = sorted((step.rank, step.start_s, step.start_s + step.duration_s) for step in steps if step.pause_s)

    def within(step: Step) -> bool:
        before = bisect.bisect_right(pauses, (step.rank, step.start_s, math.inf)) - 1
        return before >= 0 and pauses[before][0] == step.rank and step.start_s < pauses[before][2]

    return [step for step in recording.steps if step.phase != "train" and within(step)]


def evaluations_wait(recording: Recording, steps: Sequence[Step]) -> float:
    """The share of these steps' whole time, pauses included, that evaluations amid them wait for their batches."""
    waited_s = sum(step.wait_s for step in evaluations(recording, steps))
    return waited_s / sum(step.duration_s for step in steps) if waited_s else 0.0


def waited_s(step: Step) -> float:
    """CUDA: the host may wait for a batch while the device still works, so the device's own starvation counts; but no
    more than the host waits, for a loader may use the device to make its batches (fastai's transforms)."""
    return step.wait_s if step.starved_s is None else min(step.starved_s, step.wait_s)


def median_rate(values: Sequence[float], of_one: float = 0.0) -> Rate | None:
    """None where there is no value above 0, and where they are too far apart to mean anything. `of_one`: the relative
    standard error of one of them, where they are too few to show it."""
    known = [value for value in values if value > 0]
    error = (OF_A_MEDIAN if len(known) > 2 else 1.0) * spread_error(known)  # of two it is the mean
    error = max(error, of_one / math.sqrt(len(known))) if 0 < len(known) < 3 else error
    return Rate(value=statistics.median(known), error=error) if known and error <= SCATTERED else None


def stretches(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """Ten to nineteen of equal numbers of steps, as time went on; of fewer than twenty steps, one each. What is left
    behind the last is in none."""
    ordered = sorted(steps, key=lambda step: step.start_s)
    size = max(1, len(ordered) // GROUPS)
    return [ordered[at : at + size] for at in range(0, len(ordered) - size + 1, size)]


def _window_error(steps: Sequence[Step], window_s: float) -> float:
    """Relative standard error of the rate in one window so long, by how the stretches of the loop differ; 0 where
    these are too few. Pictures of all sizes make a second's work differ by a third."""
    rates = _stretch_rates(steps)
    if len(rates) < GROUPS or window_s <= 0 or not sum(rates):
        return 0.0
    spread = statistics.stdev(rates) / statistics.fmean(rates)
    return spread * math.sqrt(seconds_of(steps) / len(rates) / window_s)


def _rate_now(steps: Sequence[Step]) -> Rate | None:
    """The error is that of the rates of its stretches."""
    seconds, samples = seconds_of(steps), sum(step.samples for step in steps)
    if not seconds or not samples:
        return None
    return Rate(value=samples / seconds, error=spread_error(_stretch_rates(steps)))


def _stretch_rates(steps: Sequence[Step]) -> list[float]:
    """samples/s in each; none of those that took no time."""
    groups = stretches(steps)
    return [sum(step.samples for step in group) / group_s for group in groups if (group_s := seconds_of(group)) > 0]


def _ceiling(recording: Recording, now: Rate | None) -> tuple[Rate | None, str]:
    """The cached leg's rate, or None and why it is not believed: its windows scatter, or the machine was not the same
    as before, for the loop as it is ran at another rate among them."""
    windows = recording.leg("cached").samples_per_s
    ceiling, normal = median_rate(windows), median_rate(recording.leg("normal").samples_per_s)
    if ceiling is None and any(windows):
        spread = units.ends(min(windows), max(windows))
        return None, f"The ceiling is not claimed: with data for free, windows ran at {spread} samples/s."
    if ceiling is None or now is None:
        return ceiling, ""
    if normal and _apart(normal, now):
        ran = f"the loop as it is ran at {units.rate(normal.value)}, before them at {units.rate(now.value)}"
        return None, f"The ceiling is not claimed: among its windows {ran}. Something else was using the machine."
    if ceiling.value < now.value and _apart(ceiling, now):
        ran = f"ran at {units.rate(ceiling.value)}, slower than the loop before at {units.rate(now.value)}"
        return None, f"The ceiling is not claimed: with data for free it {ran}. Something else was using the machine."
    return ceiling, ""


def believed(rates: Rates, data: float, error: float) -> Rates:
    """The same, without a ceiling that contradicts what the loop waits between its steps, a share with its absolute
    error."""
    now, ceiling, surely = rates.now, rates.ceiling, min(0.9, data - ERRORS_90 * error)
    if now is None or ceiling is None or ceiling.high * (1.0 + AGREE) >= now.low / (1.0 - surely):
        return rates
    waitless = now.value / (1.0 - min(data, 0.99))
    doubt = (
        f"The ceiling is not claimed: with data for free it ran at {units.rate(ceiling.value)}, but without the "
        f"{units.percent(data)} of its time that it waits it would run at {units.rate(waitless)}."
    )
    return replace(rates, ceiling=None, doubt=doubt, contradicted=True)


def _apart(one: Rate, other: Rate) -> bool:
    return abs(one.value / other.value - 1.0) > max(AGREE, ERRORS_95 * math.hypot(one.error, other.error))


def _epoch(recording: Recording, steps: Sequence[Step]) -> tuple[float, float, float | None]:
    """(seconds that a pass takes beside its steps, their relative error, samples of a pass).

    From asking for an iterator to its first batch, in passes behind the first that trains, and from asking for a
    batch that is not there to being told so (which a loop that breaks off each pass never does); less the wait that
    the first batch would have had anyway.
    """
    loader = recording.train_loader
    passes = [epoch for epoch in recording.passes if loader is None or epoch.loader == loader.id]
    first = min((step.epoch for step in steps), default=0)
    starts = [epoch.start_s for epoch in passes if epoch.epoch > first]
    behind = max((epoch.epoch for epoch in passes), default=0)  # it may have ended with the script
    broken_off = [epoch for epoch in passes if first <= epoch.epoch < behind]
    whole = [epoch for epoch in passes if epoch.end_s is not None] or broken_off
    if not starts or not whole or not steps:
        return 0.0, 0.0, None
    beside_s = statistics.fmean(starts) + statistics.fmean(epoch.end_s or 0.0 for epoch in whole)
    usual_s = statistics.fmean(step.wait_s for step in steps)  # of the host, as the starts are
    ranks = len({epoch.rank for epoch in whole})
    samples = statistics.fmean(epoch.samples for epoch in whole) * ranks
    error = spread_error(starts) if len(starts) > 1 else SEEN_ONCE
    return max(0.0, beside_s - usual_s), error, samples
