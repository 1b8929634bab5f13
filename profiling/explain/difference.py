"""Two recordings against each other, with what the noise allows to be said. Pure."""

import math
from dataclasses import dataclass

from feedline.profiling.explain.verdict import Diagnosis
from feedline.profiling.record import units

STANDARD_ERRORS = 1.96


@dataclass(frozen=True, kw_only=True)
class Versus:
    """`after` compared with `before`. The ratio and its 95 % interval are None when either has no rate."""

    ratio: float | None
    low: float | None
    high: float | None
    statement: str
    changes: list[str]
    """What else is different: the bound, the wait, the top stage."""


def versus(before: Diagnosis, after: Diagnosis, names: tuple[str, str] = ("A", "B")) -> Versus:
    changes = _changes(before, after)
    a, b = before.measured.rates.now, after.measured.rates.now
    if a is None or b is None:
        missing = names[0] if a is None else names[1]
        return Versus(ratio=None, low=None, high=None, statement=f"{missing} has no measured rate.", changes=changes)
    ratio = b.value / a.value
    reach = math.exp(STANDARD_ERRORS * math.hypot(a.error, b.error))
    low, high = ratio / reach, ratio * reach
    return Versus(ratio=ratio, low=low, high=high, statement=_statement(ratio, low, high, names), changes=changes)


def _statement(ratio: float, low: float, high: float, names: tuple[str, str]) -> str:
    a, b = names
    interval = f"95 % interval {low:.2f} to {high:.2f}"
    if low <= 1.0 <= high:
        smallest = units.percent(max(high - 1.0, 1.0 - low))
        return (
            f"No difference between {a} and {b} can be told from noise: {b} runs at {ratio:.2f} times the rate of "
            f"{a} ({interval}). A difference of less than {smallest} would not show in runs this short."
        )
    if ratio > 1:
        return f"{b} is {units.times(ratio)} as fast as {a} ({interval}): faster beyond noise."
    return f"{b} runs at {ratio:.2f} times the rate of {a} ({interval}): slower beyond noise."


def _changes(before: Diagnosis, after: Diagnosis) -> list[str]:
    changes: list[str] = []
    if before.bound != after.bound:
        changes.append(f"the bound went from {before.bound or 'unknown'} to {after.bound or 'unknown'}")
    waits = before.measured.trainer.wait_fraction, after.measured.trainer.wait_fraction
    if abs(waits[0] - waits[1]) >= 0.02:
        changes.append(f"waiting for data went from {units.percent(waits[0])} to {units.percent(waits[1])}")
    if before.top_stage != after.top_stage:
        changes.append(
            f"the workers' top stage went from {before.top_stage or 'none'} to {after.top_stage or 'none'}"
        )
    return changes
