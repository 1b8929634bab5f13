"""Two recordings against each other, with what the noise allows to be said. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profiling.explain.measure.rates import ERRORS_95, Rate
from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units


@dataclass(frozen=True, kw_only=True)
class Versus:
    """`after` compared with `before`. The ratio and its 95 % interval are None when either has no rate."""

    ratio: float | None
    low: float | None
    high: float | None
    statement: str
    changes: list[str]  # what else is different: the bound, the wait, the top stage


def rates_of(diagnoses: Sequence[Diagnosis]) -> list[Rate | None]:
    """Over whole epochs where all of them have these, for what an epoch begins with may be what was mended."""
    measured = [one.measured for one in diagnoses]
    whole = all(one.rates.epoch_samples for one in measured)
    return [one.over_epochs if whole else one.now for one in measured]


def versus(before: Diagnosis, after: Diagnosis, names: tuple[str, str] = ("A", "B")) -> Versus:
    a, b = rates_of([before, after])
    first, second = (one.measured.unit.removesuffix("/s") for one in (before, after))
    changes = _changes(before, after)
    if a is None or b is None or first != second:
        apart = f"{names[0]} counts {first} and {names[1]} {second}: their rates cannot be compared."
        statement = apart if a and b else f"{names[0] if a is None else names[1]} has no measured rate."
        return Versus(ratio=None, low=None, high=None, statement=statement, changes=changes)
    ratio = b.value / a.value
    reach = math.exp(ERRORS_95 * math.hypot(a.error, b.error))
    low, high = ratio / reach, ratio * reach
    interval = f"95 % interval {low:.2f} to {high:.2f}"
    surely = "beyond noise"
    for name, one in zip(names, (before, after), strict=True):
        if taken := one.measured.machine.others_cores:
            cores = f"{units.number(taken, 2)} of the {one.measured.machine.cores:g} cores"
            surely = f"but beside {name} other programs took {cores}, so it may not be the script's doing"
    if low <= 1.0 <= high:
        statement = (
            f"No difference between {names[0]} and {names[1]} can be told from noise: {names[1]} runs at {ratio:.2f} "
            f"times the rate of {names[0]} ({interval}). A difference of less than "
            f"{units.percent(max(high - 1.0, 1.0 - low))} would not show in runs this short."
        )
    elif ratio > 1:
        statement = f"{names[1]} is {units.times(ratio)} as fast as {names[0]} ({interval}): faster {surely}."
    else:
        statement = f"{names[1]} runs at {ratio:.2f} times the rate of {names[0]} ({interval}): slower {surely}."
    return Versus(ratio=ratio, low=low, high=high, statement=statement, changes=changes)


def _changes(before: Diagnosis, after: Diagnosis) -> list[str]:
    """Those that are larger than their errors."""
    changes: list[str] = []
    if before.bound != after.bound and not {before.bound, after.bound} <= {*before.close, *after.close}:
        changes.append(f"the bound went from {before.bound or 'unknown'} to {after.bound or 'unknown'}")
    (a, a_error), (b, b_error) = (
        (one.measured.trainer.wait_fraction, one.measured.trainer.errors.data) for one in (before, after)
    )
    if a is not None and b is not None and abs(a - b) >= max(0.02, ERRORS_95 * math.hypot(a_error, b_error)):
        changes.append(f"waiting for data went from {units.percent(a)} to {units.percent(b)}")
    stages = before.measured.workers.top, after.measured.workers.top
    if None not in stages and stages[0] != stages[1]:
        changes.append(f"the workers' top stage went from {stages[0]} to {stages[1]}")
    return changes
