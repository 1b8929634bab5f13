"""Axes: round ticks, and values as percentages of a chart's width or height. Pure arithmetic."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def finite(values: Iterable[float | None]) -> list[float]:
    """What is known of them, in order."""
    return [value for value in values if value is not None and math.isfinite(value)]


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Between three and about `count` + 2 multiples of 1, 2 or 5 × 10^n that cover [low, high]."""
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-200):
        high = low + (abs(low) if abs(low) > 1e-200 else 1.0)
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw * 0.999), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values of [low, high] to 0…100 (per cent of a viewport), clamped."""

    low: float
    high: float
    ticks: Sequence[float]

    @classmethod
    def covering(cls, values: Iterable[float | None], *, count: int = 5) -> "Scale":
        """A scale with round ends over everything known and zero."""
        known = finite(values) or [0.0, 1.0]
        low = min(0.0, *known)
        ticks = round_ticks(low, max(*known, low), count)
        return cls(low=ticks[0], high=ticks[-1], ticks=ticks)

    @classmethod
    def exactly(cls, low: float, high: float) -> "Scale":
        """A scale with the given ends and the round ticks inside them: time axes."""
        high = high if high > low else low + 1.0
        ticks = [tick for tick in round_ticks(low, high, 6) if low <= tick <= high]
        return cls(low=low, high=high, ticks=ticks or [low])

    def percent(self, value: float) -> float:
        return 100.0 * min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
