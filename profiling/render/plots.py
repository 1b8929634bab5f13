"""Charts over time or steps, as pure functions to markup: `curves` (with shaded spans) and `columns` (stacked).

The curves live in a nested viewport of 100 × 100 units that stretches to the width there is, with strokes that do
not; axis labels stand outside it, so that text is never scaled. See `charts` for the shared frame.
"""

from collections.abc import Mapping, Sequence

from feedline.profiling.record import units
from feedline.profiling.render.charts import PALETTE, figure, hues_of
from feedline.profiling.render.markup import Markup, tag
from feedline.profiling.render.scale import Scale, finite
from feedline.profiling.render.sections import Columns, Curve, Curves, Shade

POINTS = 600
"""More points than this are thinned (each kept point is the mean of its group): what a screen can show."""
MOST_COLUMNS = 150
HEIGHT_PX = 150
STROKES = (("solid", None), ("dashed", "7 4"), ("dotted", "2 3"), ("dashed", "9 3 2 3"))
"""In the legend (CSS) and in the drawing (SVG)."""


def curves(chart: Curves) -> Markup:
    """Whiskers of several curves stand beside each other."""
    xs = [x for one in chart.curves for x, _ in one.points]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    # With whiskers the outer marks would be cut without some room.
    room = 0.03 * (high - low) if any(one.intervals for one in chart.curves) else 0.0
    x_scale = Scale.exactly(low - room, high + room)
    tops = [high for one in chart.curves for _, high in one.intervals]
    y_scale = Scale.covering([chart.y_max, *tops, *(y for one in chart.curves for _, y in one.points)], count=4)
    drawn = [_curve(one, index, x_scale, y_scale) for index, one in enumerate(chart.curves)]
    drawn += [_whiskers(one, index, len(chart.curves), x_scale, y_scale) for index, one in enumerate(chart.curves)]
    legend = [
        (one.name, f"border-top: 3px {STROKES[index % 4][0]} var(--{PALETTE[index % 8]})", "line")
        for index, one in enumerate(chart.curves)
    ]
    return _plot(chart, drawn, x_scale, y_scale, legend, _ranges(chart))


def columns(chart: Columns) -> Markup:
    """More steps than a screen can show are averaged in groups, so the areas stay true."""
    hues = hues_of(chart.parts)
    edges, heights = _grouped(chart.starts, list(chart.parts.values()))
    x_scale = Scale.exactly(edges[0], edges[-1])
    y_scale = Scale.covering([_robust_top([sum(column) for column in zip(*heights, strict=True)])], count=4)
    drawn = [
        _column(edges[index], edges[index + 1], [row[index] for row in heights], hues, (x_scale, y_scale))
        for index in range(len(edges) - 1)
    ]
    said = f"{chart.title}: {len(chart.starts)} steps, {', '.join(hues)}, in {chart.y_unit}"
    legend = [(name, f"background: var(--{hue})", "block") for name, hue in hues.items()]
    return _plot(chart, drawn, x_scale, y_scale, legend, said)


def _plot(
    chart: Curves | Columns,
    drawn: Sequence[Markup],
    x_scale: Scale,
    y_scale: Scale,
    legend: Sequence[tuple[str, str, str]],
    said: str,
) -> Markup:
    """Grid, stretched drawing, and labels: y in the margin, x below."""
    plane = tag("rect", x=0, y=0, width=100, height=100, fill="none")
    inner = tag(
        "svg", plane, _shades(chart.shades, x_scale), drawn, x=0, y=0, width="100%", height=HEIGHT_PX,
        viewBox="0 0 100 100", preserveAspectRatio="none",
    )  # fmt: skip
    body = tag(
        "svg", tag("title", said), _grid(y_scale), inner, _y_labels(y_scale), _x_labels(x_scale, chart.x_unit),
        class_="drawing plot", width="100%", height=HEIGHT_PX + 24, role="img",
    )  # fmt: skip
    spans = [(name, f"background: var(--{hue})", "shade") for name, hue in shade_hues(chart.shades).items()]
    note = chart.note if isinstance(chart, Curves) else ""
    return figure(chart.title, [body], unit=chart.y_unit, legend=[*legend, *spans], note=note)


def _grid(y_scale: Scale) -> list[Markup]:
    marks: list[Markup] = []
    for value in y_scale.ticks:
        y = HEIGHT_PX * (1 - y_scale.percent(value) / 100)
        marks.append(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="base" if value == y_scale.low else "grid"))
    return marks


def _y_labels(y_scale: Scale) -> list[Markup]:
    """In the margin that `page.css` leaves beside a plot."""
    heights = [(value, HEIGHT_PX * (1 - y_scale.percent(value) / 100)) for value in y_scale.ticks]
    return [tag("text", units.tick(value), x=-8, y=y + 4, text_anchor="end") for value, y in heights]


def _x_labels(x_scale: Scale, unit: str) -> list[Markup]:
    marks: list[Markup] = []
    for index, value in enumerate(x_scale.ticks):
        x = x_scale.percent(value)
        anchor = "start" if x < 3 else "end" if x > 95 else "middle"
        text = f"{value:.6g} {unit}" if index == len(x_scale.ticks) - 1 else f"{value:.6g}"
        marks.append(tag("line", x1=f"{x:.3f}%", x2=f"{x:.3f}%", y1=HEIGHT_PX, y2=HEIGHT_PX + 5, class_="base"))
        marks.append(tag("text", text, x=f"{x:.3f}%", y=HEIGHT_PX + 19, text_anchor=anchor))
    return marks


SHADES = ("shade", "c6", "c5")


def shade_hues(shades: Sequence[Shade]) -> dict[str, str]:
    """By name, the last of the alphabet (warm-up) in grey, so that one page's charts agree."""
    names = sorted({shade.name for shade in shades}, reverse=True)
    return {name: SHADES[index % len(SHADES)] for index, name in enumerate(names)}


def _shades(shades: Sequence[Shade], x_scale: Scale) -> list[Markup]:
    drawn: list[Markup] = []
    hues = shade_hues(shades)
    for shade in shades:
        left, right = x_scale.percent(shade.start), x_scale.percent(shade.end)
        box = {"x": left, "y": 0, "width": max(right - left, 0.15), "height": 100}
        drawn.append(
            tag("rect", tag("title", shade.name), **box, class_="shade", style=f"fill: var(--{hues[shade.name]})")
        )
    return drawn


def _curve(one: Curve, index: int, x_scale: Scale, y_scale: Scale) -> Markup:
    runs: list[list[str]] = [[]]
    for x, y in thinned(one.points):
        if y is None:
            runs.append([])
        else:
            runs[-1].append(f"{x_scale.percent(x):.2f},{100 - y_scale.percent(y):.2f}")
    style = f"stroke: var(--{PALETTE[index % 8]})"
    drawn = [
        tag("polyline", points=" ".join(run if len(run) > 1 else run * 2), style=style,
            stroke_dasharray=STROKES[index % 4][1])
        for run in runs if run
    ]  # fmt: skip
    return tag("g", tag("title", one.name), drawn, class_="curve")


def _whiskers(one: Curve, index: int, count: int, x_scale: Scale, y_scale: Scale) -> Markup:
    """Of a series with intervals. Strokes keep their width in the stretched plane, so a mark is a stroke without
    length; curves are set apart by half a unit of width, or their whiskers would cover each other."""
    style = f"stroke: var(--{PALETTE[index % 8]})"
    drawn: list[Markup] = []
    for (x, y), (low, high) in zip(one.points, one.intervals, strict=False):
        if y is None:
            continue
        at = f"{x_scale.percent(x) + 0.5 * (index - (count - 1) / 2):.2f}"
        middle = f"{100 - y_scale.percent(y):.2f}"
        drawn.append(tag("line", x1=at, x2=at, y1=middle, y2=middle, style=style, class_="mark"))
        if low is not None and high is not None:
            ends = {"y1": f"{100 - y_scale.percent(low):.2f}", "y2": f"{100 - y_scale.percent(high):.2f}"}
            drawn.append(tag("line", x1=at, x2=at, **ends, style=style, class_="interval"))
    return tag("g", drawn) if drawn else Markup()


def _column(
    start: float, end: float, heights: Sequence[float], hues: Mapping[str, str], scales: tuple[Scale, Scale]
) -> Markup:
    x_scale, y_scale = scales
    left, right = x_scale.percent(start), x_scale.percent(end)
    drawn: list[Markup] = []
    base = 0.0
    for hue, height in zip(hues.values(), heights, strict=True):
        low, high = y_scale.percent(base), y_scale.percent(base + height)
        box = {"x": left, "y": 100 - high, "width": max(0.05, (right - left) * 0.92), "height": high - low}
        drawn.append(tag("rect", **box, style=f"fill: var(--{hue})"))
        base += height
    said = ", ".join(f"{name} {units.number(value)}" for name, value in zip(hues, heights, strict=True))
    return tag("g", tag("title", f"at {start:.3g}: {said}"), drawn)


def thinned(points: Sequence[tuple[float, float | None]], most: int = POINTS) -> list[tuple[float, float | None]]:
    """At most about `most` points; each is the mean of its group's known values, None where none is known."""
    size = -(-len(points) // most) if points else 1
    if size == 1:
        return list(points)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), _mean(finite(y for _, y in group))) for group in groups]


def _grouped(starts: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Edges of at most `MOST_COLUMNS` groups of steps (one more than groups) and each row's mean per group."""
    if not starts:
        return [0.0, 1.0], [[0.0] for _ in rows]
    size = -(-len(starts) // MOST_COLUMNS)
    edges = [float(starts[at]) for at in range(0, len(starts), size)]
    last = (starts[-1] - starts[0]) / max(len(starts) - 1, 1) or 1.0
    means = [
        [sum(row[at : at + size]) / len(row[at : at + size]) for at in range(0, len(starts), size)] for row in rows
    ]
    return [*edges, float(starts[-1] + last)], means


def _robust_top(totals: Sequence[float]) -> float:
    """One checkpoint pause must not flatten every other step: 1.3 × the 98th percentile, if that is far less."""
    ordered = sorted(totals)
    usual = ordered[int(0.98 * (len(ordered) - 1))]
    return min(ordered[-1], 1.3 * usual) or 1.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ranges(chart: Curves) -> str:
    """What a screen reader says of it."""
    ranges = ((one.name, finite(y for _, y in one.points)) for one in chart.curves)
    named = (f"{name} {units.number(min(ys))} to {units.number(max(ys))}" if ys else name for name, ys in ranges)
    return f"{chart.title}: {'; '.join(named)}"
