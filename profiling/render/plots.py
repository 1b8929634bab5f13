"""Charts over time or steps, as pure functions to markup: `curves` (with shaded spans) and `columns` (stacked).

The curves live in a nested viewport of 100 × 100 units that stretches to the width there is, with strokes that do
not; axis labels stand outside it, so that text is never scaled. See `charts` for the shared frame.
"""

from collections.abc import Sequence
from itertools import pairwise

from feedline.profiling.record import units
from feedline.profiling.render.charts import PALETTE, Legend, Scale, drawing, figure, finite, hues_of, swatches
from feedline.profiling.render.markup import Attribute, Markup, tag
from feedline.profiling.render.sections import Columns, Curve, Curves

POINTS = 600  # more points than this are thinned (each kept point is the mean of its group): what a screen can show
MOST_COLUMNS = 150
HEIGHT_PX = 150
STROKES = (("solid", None), ("dashed", "7 4"), ("dotted", "2 3"), ("dashed", "9 3 2 3"))
"""In the legend (CSS) and in the drawing (SVG)."""
SHADES = ("shade", "c6", "c5")


def curves(chart: Curves) -> Markup:
    """Whiskers of several curves stand beside each other."""
    xs = [x for curve in chart.curves for x, _ in curve.points]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    # With whiskers the outer marks would be cut without some room.
    room = 0.03 * (high - low) if any(curve.intervals for curve in chart.curves) else 0.0
    x_scale = Scale.exactly(low - room, high + room)
    tops = [high for curve in chart.curves for _, high in curve.intervals]
    y_scale = Scale.covering([chart.y_max, *tops, *(y for curve in chart.curves for _, y in curve.points)], count=4)
    drawn = [_curve(curve, index, x_scale, y_scale) for index, curve in enumerate(chart.curves)]
    middle = (len(chart.curves) - 1) / 2
    for index, curve in enumerate(chart.curves):
        drawn.append(_whiskers(curve, index, 0.5 * (index - middle), x_scale, y_scale))
    legend = [
        (curve.name, f"border-top: 3px {STROKES[index % 4][0]} var(--{PALETTE[index % 8]})", "line")
        for index, curve in enumerate(chart.curves)
    ]
    ranges = [(curve.name, finite(y for _, y in curve.points)) for curve in chart.curves]
    parts = [f"{name} {units.number(min(ys))} to {units.number(max(ys))}" if ys else name for name, ys in ranges]
    return _plot(chart, drawn, x_scale, y_scale, legend, f"{chart.title}: {'; '.join(parts)}")


def columns(chart: Columns) -> Markup:
    """More steps than a screen can show are averaged in groups, so the areas stay true."""
    hues, starts, rows = hues_of(chart.parts), chart.starts or [0.0], chart.parts.values()
    size = -(-len(starts) // MOST_COLUMNS)
    groups = [slice(at, at + size) for at in range(0, len(starts), size)]
    last = (starts[-1] - starts[0]) / max(len(starts) - 1, 1) or 1.0
    edges = [*(float(starts[group.start]) for group in groups), float(starts[-1] + last)]
    heights = [[sum(row[group]) / max(len(row[group]), 1) for group in groups] for row in rows]
    # One checkpoint pause must not flatten every other step: 1.3 × the 98th percentile, if that is far less.
    totals = sorted(sum(column) for column in zip(*heights, strict=True))
    top = min(totals[-1], 1.3 * totals[int(0.98 * (len(totals) - 1))]) or 1.0
    x_scale, y_scale = Scale.exactly(edges[0], edges[-1]), Scale.covering([top], count=4)
    drawn: list[Markup] = []
    for index, (start, end) in enumerate(pairwise(edges)):
        left, right, base = x_scale.percent(start), x_scale.percent(end), 0.0
        boxes: list[Markup] = []
        for hue, row in zip(hues.values(), heights, strict=True):
            low, high = y_scale.percent(base), y_scale.percent(base + row[index])
            place: dict[str, Attribute] = {"x": left, "y": 100 - high, "width": max(0.05, (right - left) * 0.92)}
            boxes.append(tag("rect", **place, height=high - low, style=f"fill: var(--{hue})"))
            base += row[index]
        parts = ", ".join(f"{name} {units.number(row[index])}" for name, row in zip(hues, heights, strict=True))
        drawn.append(tag("g", tag("title", f"at {start:.3g}: {parts}"), boxes))
    summary = f"{chart.title}: {len(chart.starts)} steps, {', '.join(hues)}, in {chart.y_unit}"
    return _plot(chart, drawn, x_scale, y_scale, swatches(hues), summary)


def _plot(
    chart: Curves | Columns, drawn: Sequence[Markup], x_scale: Scale, y_scale: Scale, legend: Legend, summary: str
) -> Markup:
    """Grid, stretched drawing, and labels: y in the margin that `page.css` leaves beside a plot, x below."""
    # By name, the last of the alphabet (warm-up) in grey, so that one page's charts agree.
    names = sorted({shade.name for shade in chart.shades}, reverse=True)
    hues = {name: SHADES[index % len(SHADES)] for index, name in enumerate(names)}
    shades: list[Markup] = []
    for shade in chart.shades:
        left, right = x_scale.percent(shade.start), x_scale.percent(shade.end)
        box: dict[str, Attribute] = {"x": left, "y": 0, "width": max(right - left, 0.15), "height": 100}
        title, style = tag("title", shade.name), f"fill: var(--{hues[shade.name]})"
        shades.append(tag("rect", title, **box, class_="shade", style=style))
    grid: list[Markup] = []
    labels: list[Markup] = []
    for value in y_scale.ticks:
        y = HEIGHT_PX * (1 - y_scale.percent(value) / 100)
        grid.append(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="base" if value == y_scale.low else "grid"))
        labels.append(tag("text", units.tick(value), x=-8, y=y + 4, text_anchor="end"))
    for index, value in enumerate(x_scale.ticks):
        x = x_scale.percent(value)
        anchor = "start" if x < 3 else "end" if x > 95 else "middle"
        text = f"{value:.6g} {chart.x_unit}" if index == len(x_scale.ticks) - 1 else f"{value:.6g}"
        labels.append(tag("line", x1=f"{x:.3f}%", x2=f"{x:.3f}%", y1=HEIGHT_PX, y2=HEIGHT_PX + 5, class_="base"))
        labels.append(tag("text", text, x=f"{x:.3f}%", y=HEIGHT_PX + 19, text_anchor=anchor))
    plane = tag("rect", x=0, y=0, width=100, height=100, fill="none")
    inner = tag("svg", plane, shades, drawn, x=0, y=0, width="100%", height=HEIGHT_PX, viewBox="0 0 100 100",
                preserveAspectRatio="none")  # fmt: skip
    body = drawing(HEIGHT_PX + 24, summary, grid, inner, labels, kind="plot")
    note = chart.note if isinstance(chart, Curves) else ""
    return figure(chart.title, [body], unit=chart.y_unit, legend=[*legend, *swatches(hues, "shade")], note=note)


def _curve(curve: Curve, index: int, x_scale: Scale, y_scale: Scale) -> Markup:
    runs: list[list[str]] = [[]]
    size = -(-len(curve.points) // POINTS) or 1
    for at in range(0, len(curve.points), size):
        group = curve.points[at : at + size]
        x, ys = sum(x for x, _ in group) / len(group), finite(y for _, y in group)
        if ys:
            runs[-1].append(f"{x_scale.percent(x):.2f},{100 - y_scale.percent(sum(ys) / len(ys)):.2f}")
        else:
            runs.append([])
    style, dashes = f"stroke: var(--{PALETTE[index % 8]})", STROKES[index % 4][1]
    drawn = [
        tag("polyline", points=" ".join(run if len(run) > 1 else run * 2), style=style, stroke_dasharray=dashes)
        for run in runs
        if run
    ]
    return tag("g", tag("title", curve.name), drawn, class_="curve")


def _whiskers(curve: Curve, index: int, aside: float, x_scale: Scale, y_scale: Scale) -> Markup:
    """Of a series with intervals, set `aside` a little, or those of several curves would cover each other. Strokes
    keep their width in the stretched plane, so a mark is a stroke without length."""
    style = f"stroke: var(--{PALETTE[index % 8]})"
    drawn: list[Markup] = []
    for (x, y), (low, high) in zip(curve.points, curve.intervals, strict=False):
        if y is None:
            continue
        at, middle = f"{x_scale.percent(x) + aside:.2f}", f"{100 - y_scale.percent(y):.2f}"
        drawn.append(tag("line", x1=at, x2=at, y1=middle, y2=middle, style=style, class_="mark"))
        if low is not None and high is not None:
            ends = {"y1": f"{100 - y_scale.percent(low):.2f}", "y2": f"{100 - y_scale.percent(high):.2f}"}
            drawn.append(tag("line", x1=at, x2=at, **ends, style=style, class_="interval"))
    return tag("g", drawn) if drawn else Markup()
