"""The numbers behind `parts.html`: scales, colours, legends, and which of many points are drawn. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from feedline.profiling.record import units
from feedline.profiling.record.stages import STAGES
from feedline.profiling.render.sections import CEILING, PREDICTED, Bar, Bars, Columns, Curve, Curves, Remedies, Shade

PALETTE = tuple(f"c{number}" for number in range(1, 11))
"""CSS variables of the categorical palette (Okabe and Ito: safe for colour-blind eyes), in order of use."""
TIMES = {
    "data": ("waiting for data", "c4"), "copy": ("copying", "c6"), "trainer": ("own Python", "c2"),
    "compute": ("computing", "c3"), "rest": ("the rest", "c3"), "other": ("cannot be told", "c8"),
}  # fmt: skip
"""Where a loop's time goes, by field of `Shares` (`rest`: all but waiting and copying): its words and its colour."""
OF_STEP = {name: words for name, (words, _) in TIMES.items()}
HUES = {**dict(TIMES.values()), **{name: stage.hue for name, stage in STAGES.items()}}
"""One colour through all charts: parts of a loop's time, a worker's stages."""
SHADES = ("shade", "c6", "c5")
STROKES = (("solid", None), ("dashed", "7 4"), ("dotted", "2 3"), ("dashed", "9 3 2 3"))
"""In the legend (CSS) and in the drawing (SVG)."""
POINTS = 600  # more points than this are thinned (each kept point is the mean of its group): what a screen can show
MOST_COLUMNS = 150

Legend = list[tuple[str, str, str]]  # name, CSS of the swatch, and its shape: block, line, diamond, whisker …


def finite(values: Iterable[float | None]) -> list[float]:
    """What is known of them, in order."""
    return [value for value in values if units.known(value)]


# --- scales -------------------------------------------------------------------------------------------


def round_ticks(low: float, high: float, count: int) -> list[float]:
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


def scale_of_bars(chart: Bars) -> Scale:
    values = [v for row in chart.rows for v in (row.value, row.high, row.predicted, row.predicted_high)]
    return Scale.covering([*values, chart.reference[1] if chart.reference else None])


def scale_of_remedies(chart: Remedies) -> Scale:
    """From nothing: as fast as now is 1."""
    return Scale(low=0.0, high=max(1.0, chart.most, chart.ceiling or 0.0), ticks=())


def scales_of_curves(chart: Curves) -> tuple[Scale, Scale]:
    xs = [x for curve in chart.curves for x, _ in curve.points]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    # With whiskers the outer marks would be cut without some room.
    room = 0.03 * (high - low) if any(curve.intervals for curve in chart.curves) else 0.0
    tops = [high for curve in chart.curves for _, high in curve.intervals]
    values = [chart.y_max, *tops, *(y for curve in chart.curves for _, y in curve.points)]
    return Scale.exactly(low - room, high + room), Scale.covering(values, count=4)


def anchor(percent: float, first: float, last: float) -> str:
    """Labels at the ends of an axis stay inside it."""
    return "start" if percent < first else "end" if percent > last else "middle"


# --- colours and legends ------------------------------------------------------------------------------


def hues_of(groups: Iterable[Iterable[str]]) -> dict[str, str]:
    """Their own colours, and for the others what the palette has left, in order."""
    known = list(dict.fromkeys(name for names in groups for name in names))
    left = [hue for hue in PALETTE if hue not in {HUES.get(name) for name in known}] or PALETTE
    others = [name for name in known if name not in HUES]
    return {name: HUES[name] for name in known if name in HUES} | {
        name: left[index % len(left)] for index, name in enumerate(others)
    }


def shade_hues(shades: Iterable[Shade]) -> dict[str, str]:
    """By name, the last of the alphabet (warm-up) in grey, so that one page's charts agree."""
    names = sorted({shade.name for shade in shades}, reverse=True)
    return {name: SHADES[index % len(SHADES)] for index, name in enumerate(names)}


def stroke(index: int) -> tuple[str, str | None]:
    """CSS and dashes of a chart's n-th curve."""
    return f"stroke: var(--{PALETTE[index % 8]})", STROKES[index % 4][1]


def swatches(hues: Mapping[str, str], shape: str = "block") -> Legend:
    return [(name, f"background: var(--{hue})", shape) for name, hue in hues.items()]


def legend_of_bars(chart: Bars) -> Legend:
    legend = [(chart.value_name, "background: var(--c1)", "block")]
    if chart.staircase:
        legend.append(("as much as the row before", "background: var(--pale)", "block"))
    if any(units.known(row.low) and units.known(row.high) for row in chart.rows):
        legend.append((chart.interval, "", "whisker"))
    if any(row.predicted is not None for row in chart.rows):
        legend.append((PREDICTED, "", "diamond"))
    if chart.reference is not None and units.known(chart.reference[1]):
        legend.append((f"{chart.reference[0]}: {units.number(chart.reference[1])}", "", "dashed"))
    return legend


def legend_of_remedies(chart: Remedies) -> Legend:
    ceiling = [(f"{CEILING}: {units.times(chart.ceiling)}", "", "dashed")] if units.known(chart.ceiling) else []
    return [(PREDICTED, "", "hollow"), *ceiling]


def in_order(chart: Curves) -> list[Curve]:
    """As they are drawn: those that stand out over those that do not."""
    return sorted(chart.curves, key=lambda curve: not curve.faint)


def legend_of_curves(chart: Curves) -> Legend:
    legend = [
        (curve.name, f"border-top: 3px {STROKES[index % 4][0]} var(--{PALETTE[index % 8]})", "line")
        for index, curve in enumerate(curve for curve in chart.curves if not curve.faint)
    ]
    return [*legend, (chart.interval, "", "whisker")] if any(curve.intervals for curve in chart.curves) else legend


def summary_of_curves(chart: Curves) -> str:
    ranges = [(curve.name, finite(y for _, y in curve.points)) for curve in chart.curves if not curve.faint]
    parts = [f"{name} {units.number(min(ys))} to {units.number(max(ys))}" if ys else name for name, ys in ranges]
    return f"{chart.title}: {'; '.join(parts)}"


# --- what is drawn ------------------------------------------------------------------------------------


def climbed(chart: Bars) -> Iterable[tuple[Bar, float, float | None]]:
    """Each bar; in a staircase with the value of the one before and its own factor over the first."""
    first, before = None, 0.0
    for row in chart.rows:
        yield row, before, row.value / first if chart.staircase and first and row.value else None
        if chart.staircase:
            before, first = row.value or before, first or row.value


def across(places: Sequence[float | None]) -> str:
    """A line over parallel axes, as its points in the plane."""
    last = max(len(places) - 1, 1)
    return " ".join(f"{100 * at / last:.2f},{100 - 100 * y:.2f}" for at, y in enumerate(places) if units.known(y))


def runs(curve: Curve, x_scale: Scale, y_scale: Scale) -> list[str]:
    """The stretches without a gap, as the points of a line each."""
    lines: list[list[str]] = [[]]
    size = -(-len(curve.points) // POINTS) or 1
    for at in range(0, len(curve.points), size):
        group = curve.points[at : at + size]
        x, ys = sum(x for x, _ in group) / len(group), finite(y for _, y in group)
        if ys:
            lines[-1].append(f"{x_scale.percent(x):.2f},{100 - y_scale.percent(sum(ys) / len(ys)):.2f}")
        else:
            lines.append([])
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]


def whiskers(curve: Curve, x_scale: Scale, y_scale: Scale) -> Iterable[tuple[float, float, Sequence[float]]]:
    """(x, y, ends of the interval) in the plane, of each point that has one; no ends where they are not known."""
    for (x, y), interval in zip(curve.points, curve.intervals, strict=False):
        if y is not None:
            ends = [100 - y_scale.percent(end) for end in interval if end is not None]
            yield x_scale.percent(x), 100 - y_scale.percent(y), ends if len(ends) == 2 else ()


@dataclass(frozen=True, kw_only=True)
class Stacked:
    x: Scale
    y: Scale
    hues: Mapping[str, str]
    columns: Sequence[tuple[str, Sequence[tuple[float, float, float, float, str]]]]
    """What is said of it, and the (x, y, width, height, colour) of its boxes."""
    summary: str


def stacked(chart: Columns) -> Stacked:
    """More steps than a screen can show are averaged in groups, so the areas stay true."""
    hues, starts, rows = hues_of([chart.parts]), chart.starts or [0.0], chart.parts.values()
    size = -(-len(starts) // MOST_COLUMNS)
    groups = [slice(at, at + size) for at in range(0, len(starts), size)]
    last = (starts[-1] - starts[0]) / max(len(starts) - 1, 1) or 1.0
    edges = [*(float(starts[group.start]) for group in groups), float(starts[-1] + last)]
    heights = [[sum(row[group]) / max(len(row[group]), 1) for group in groups] for row in rows]
    # One checkpoint pause must not flatten every other step: 1.3 × the 98th percentile, if that is far less.
    totals = sorted(sum(column) for column in zip(*heights, strict=True))
    top = min(totals[-1], 1.3 * totals[int(0.98 * (len(totals) - 1))]) or 1.0
    x_scale, y_scale = Scale.exactly(edges[0], edges[-1]), Scale.covering([top], count=4)
    drawn: list[tuple[str, list[tuple[float, float, float, float, str]]]] = []
    for (start, end), column in zip(pairwise(edges), zip(*heights, strict=True), strict=True):
        left, right, base = x_scale.percent(start), x_scale.percent(end), 0.0
        boxes: list[tuple[float, float, float, float, str]] = []
        for hue, height in zip(hues.values(), column, strict=True):
            low, high = y_scale.percent(base), y_scale.percent(base + height)
            boxes.append((left, 100 - high, max(0.05, (right - left) * 0.92), high - low, hue))
            base += height
        parts = ", ".join(f"{name} {units.number(height)}" for name, height in zip(hues, column, strict=True))
        drawn.append((f"at {start:.3g}: {parts}", boxes))
    summary = f"{chart.title}: {len(chart.starts)} steps, {', '.join(hues)}, in {chart.y_unit}"
    return Stacked(x=x_scale, y=y_scale, hues=hues, columns=drawn, summary=summary)
