"""Numbers as people read them. None and NaN are a dash: what is unknown is never shown as 0."""

import math
from typing import TypeGuard

UNKNOWN = "–"
NOTHING_SAID = 10.0
"""By which an interval's ends differ that is not worth its figures: two windows 16 % apart have it."""
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, all digits of integers of a thousand and more: 0.0123, 4.57, 812, 12,431."""
    if not known(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(value: float | None, unit: str = "samples/s") -> str:
    return f"{number(value)} {unit}" if known(value) else UNKNOWN


def percent(fraction: float | None) -> str:
    """0.8234 -> 82 %; below ten per cent one decimal is kept: 0.0312 -> 3.1 %."""
    if not known(fraction):
        return UNKNOWN
    value = fraction * 100
    if abs(value) < 0.05:
        return "0 %"
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"


def share(fraction: float | None, error: float | None) -> str:
    """With half of its 95 % interval, in points: 62 % ± 3; `error` is its standard error, and ± ? that of none."""
    if not known(fraction):
        return UNKNOWN
    if not known(error):
        return f"{percent(fraction)} ± ?"
    points = 200 * error
    words = percent(fraction) if points < 0.95 else f"{100 * fraction:.0f} %"
    return f"{words} ± {points:.0f}" if points < 0.05 or points >= 0.95 else f"{words} ± {points:.1f}"


def times(factor: float | None) -> str:
    """2.34 -> 2.3×."""
    return f"{number(factor, 2)}×" if known(factor) else UNKNOWN


def gain(factor: float, low: float, high: float, *, at_most: bool = False) -> str:
    """2.9× (2.5–3.3); where a factor is close to 1, the second decimal counts: 1.08× (1.01–1.16). An upper
    bound is told by its own upper end: up to 3.3×."""
    if at_most:
        return f"up to {times(high)}"
    best, *ends = (number(value, 2) if value >= 1.95 else f"{value:.2f}" for value in (factor, low, high))
    return f"{best}× ({'–'.join(ends)})"


def seconds(value_s: float | None) -> str:
    """0.00042 -> 420 µs, 75 -> 1 min 15 s, 7260 -> 2 h 1 min."""
    if not known(value_s):
        return UNKNOWN
    if value_s == 0:
        return "0 s"
    if abs(value_s) < 60:
        scale, unit = next(
            ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if abs(value_s) >= s), (1e-9, "ns")
        )
        return f"{number(value_s / scale)} {unit}"
    minutes, rest = divmod(round(value_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def size(value_bytes: float | None) -> str:
    """27_600 -> 27.6 kB; decimal, as disks and links are sold."""
    if not known(value_bytes):
        return UNKNOWN
    for scale, prefix in ((1e12, "T"), *_SCALES):
        if abs(value_bytes) >= scale:
            return f"{number(value_bytes / scale)} {prefix}B"
    return f"{value_bytes:.0f} B"


NOISY = "too noisy to tell"
FREE_AT_MOST = 1.1  # of a ceiling: a loop that reaches more has shown that it was measured wrongly


def spread(low: float | None, high: float | None) -> str:
    """The interval in words: 1,190–1,260; one that says next to nothing is said to."""
    if not known(low) or not known(high):
        return ""
    return ends(low, high) if high < NOTHING_SAID * low else NOISY


def ends(low: float, high: float) -> str:
    return f"{number(low)}–{number(high)}"


def tick(value: float) -> str:
    """An axis label: 2k, 1.5M, 0.25."""
    for scale, prefix in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.4g}{prefix}"
    return f"{value:.4g}"
