"""Medians, intervals and comparisons of rates, from few and noisy repeats.

All of it happens on logarithms, since what disturbs a rate multiplies it. The interval of a median of n values is
t(n − 1) · s · √(π/2) / √n around it: the factor is what a median costs against a mean under normal noise. Two cells
are compared through the differences within rounds, so that a machine that is slower for a minute is slower for both.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

CONFIDENCE = 0.95
MARGIN = 0.04
"""Differences up to this share are nobody's business. An interval of a ratio wholly within it is "no difference", one
wholly beyond it a difference. One border for both: no true ratio can be called the one today and the other tomorrow
without one of the two intervals being wrong."""
LARGEST_LOG = 700.0

Outcome = Literal["faster", "slower", "same", "open"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median with its confidence interval, which is unknown from one value."""

    value: float
    low: float | None
    high: float | None
    n: int

    def record(self, name: str = "samples_per_s") -> dict[str, Any]:
        return {name: self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Cell a against cell b."""

    ratio: Estimate
    """Rate of a by rate of b."""
    outcome: Outcome
    """faster and slower only where the whole interval is beyond the margin; same where it is wholly within; open
    where more rounds may decide."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far two cells' rates differ by chance from round to round, pooled over many pairs of cells."""

    deviation: float
    """Of the logarithm of a ratio within a round."""
    freedom: int


def pool(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Noise | None:
    """From the rates of pairs of cells, by round; None where there are not enough. Pairs share a cell, so that their
    noise is half common: the degrees of freedom count half."""
    squares, freedom = 0.0, 0
    for a, b in pairs:
        logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
        if len(logs) > 1:
            squares += statistics.variance(logs) * (len(logs) - 1)
            freedom += len(logs) - 1
    return Noise(deviation=math.sqrt(squares / freedom), freedom=max(1, freedom // 2)) if freedom else None


def estimate(values: Sequence[float]) -> Estimate:
    """Of positive values, at least one."""
    if len(values) < 2:
        return Estimate(value=values[0], low=None, high=None, n=1)
    logs = [math.log(value) for value in values]
    return _around(logs, statistics.stdev(logs), len(logs) - 1, CONFIDENCE)


def compare(
    a: Sequence[float], b: Sequence[float], *, comparisons: int = 1, noise: Noise | None = None
) -> Comparison:
    """Paired by round. `comparisons` made together share the 5 % of error among them (Bonferroni).

    With `noise` the interval is never narrower than the pooled noise makes it, and takes its degrees of freedom.
    """
    confidence = 1 - (1 - CONFIDENCE) / max(comparisons, 1)
    logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
    deviation = statistics.stdev(logs) if len(logs) > 1 else None
    freedom = len(logs) - 1
    if noise is not None:
        deviation, freedom = max(deviation or 0.0, noise.deviation), max(freedom, noise.freedom)
    if deviation is None:
        ratio = Estimate(value=math.exp(statistics.median(logs)), low=None, high=None, n=len(logs))
        return Comparison(ratio=ratio, outcome="open")
    ratio = _around(logs, deviation, freedom, confidence)
    return Comparison(ratio=ratio, outcome=_outcome(ratio))


def _around(logs: Sequence[float], deviation: float, freedom: int, confidence: float) -> Estimate:
    middle, n = statistics.median(logs), len(logs)
    reach = student_t(freedom, confidence) * deviation * math.sqrt(math.pi / 2 / n)
    high = math.exp(min(middle + reach, LARGEST_LOG))
    return Estimate(value=math.exp(middle), low=math.exp(middle - reach), high=high, n=n)


def _outcome(ratio: Estimate) -> Outcome:
    assert ratio.low is not None and ratio.high is not None
    if ratio.low > 1 + MARGIN:
        return "faster"
    if ratio.high < 1 / (1 + MARGIN):
        return "slower"
    return "same" if ratio.low > 1 / (1 + MARGIN) and ratio.high < 1 + MARGIN else "open"


@cache
def student_t(freedom: int, confidence: float) -> float:
    """The two-sided quantile, e.g. 12.7 for one degree and 95 %: with t = √ν·tan θ the density is cosᵛ⁻¹ θ, whose
    integral is a sum over fine steps (error below 1e-4 up to thousands of degrees)."""
    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle[:-1] + angle[1] / 2) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return float(math.sqrt(freedom) * np.tan(np.interp(confidence, below, angle)))
