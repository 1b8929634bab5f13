"""Charts as pure functions to self-contained markup: `bars`, `stacks`, `heat`; over time see `plots`.

Every chart is a `<figure>` with a caption and a unit. Lengths are percentages of the width there is, so nothing is
scaled: the same markup is sharp and its text readable on a phone, a wide screen and paper, without JavaScript.
Labels and values are HTML beside the drawings (they wrap, and screen readers read them); colours are the variables
of `page.css`, which knows dark, light and print. All text is escaped by `markup`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from feedline.profiling.record import units
from feedline.profiling.record.stages import STAGES
from feedline.profiling.render.markup import Attribute, Markup, join, tag
from feedline.profiling.render.sections import Bar, Bars, Heat, Stack, Stacks

BAR_PX = 20
STACK_PX = 26
CELL_PX = 38
HEAD_PX = 24  # above the cells of a heat map; an axis is as high
GUTTER = 18.0  # left of them, in per cent of the width
PALETTE = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
"""CSS variables of the categorical palette (Okabe and Ito: safe for colour-blind eyes), in order of use."""
HUES = {
    "data": "c4", "copy": "c6", "trainer": "c2", "compute": "c3",
    "waiting": "c4", "copying": "c6", "computing": "c3",
    **{name: stage.hue for name, stage in STAGES.items()},
}  # fmt: skip
"""One colour through all charts: shares of the loop, parts of a step, a worker's stages."""

Legend = Sequence[tuple[str, str, str]]  # name, CSS of the swatch, and its shape: block, line, diamond


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


def hues_of(names: Iterable[str]) -> dict[str, str]:
    """Their own colours, and for the others what the palette has left, in order."""
    known = list(dict.fromkeys(names))
    left = [hue for hue in PALETTE if hue not in {HUES.get(name) for name in known}] or PALETTE
    others = [name for name in known if name not in HUES]
    return {name: HUES[name] for name in known if name in HUES} | {
        name: left[index % len(left)] for index, name in enumerate(others)
    }


def swatches(hues: Mapping[str, str], shape: str = "block") -> Legend:
    return [(name, f"background: var(--{hue})", shape) for name, hue in hues.items()]


def figure(
    title: str, body: Sequence[Markup], *, unit: str = "", legend: Legend = (), note: str = "",
) -> Markup:  # fmt: skip
    """The frame all charts share."""
    keys = [tag("li", tag("i", class_=f"swatch {kind}", style=css, aria_hidden="true"), name)
            for name, css, kind in legend]  # fmt: skip
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", unit, class_="unit") if unit else None),
        tag("ul", *keys, class_="legend") if len(keys) > 1 else None,
        tag("div", *body, class_="rows"),
        tag("p", note, class_="note") if note else None,
        class_="chart",
    )


def drawing(height_px: float, summary: str, *body: object, kind: str = "") -> Markup:
    """`summary` is what a screen reader says of it."""
    kinds = f"drawing {kind}" if kind else "drawing"
    return tag("svg", tag("title", summary), *body, class_=kinds, width="100%", height=height_px, role="img")


def bars(chart: Bars) -> Markup:
    """Predictions are diamonds."""
    values = [v for row in chart.rows for v in (row.value, row.high, row.predicted, row.predicted_high)]
    scale = Scale.covering([*values, chart.reference[1] if chart.reference else None])
    body: list[Markup] = []
    first, before = None, 0.0
    for row in chart.rows:
        predicted = f"predicted {units.number(row.predicted)}" if row.predicted is not None else ""
        small = " · ".join(part for part in (units.spread(row.low, row.high), predicted) if part)
        words = [tag("b", units.number(row.value)), tag("span", f" {chart.unit}", class_="unit"),
                 tag("small", small) if small else None]  # fmt: skip
        if chart.staircase and first and row.value:
            words += [Markup(" "), tag("b", units.times(row.value / first), class_="factor")]
        bar = _bar(row, scale, chart.reference, floor=before if chart.staircase else 0.0)
        body.append(_row(row.label, words, bar, row.note))
        before, first = row.value or before, first or row.value
    legend = [(chart.value_name, "background: var(--c1)", "block")]
    if any(row.predicted is not None for row in chart.rows):
        legend.append(("predicted before", "", "diamond"))
    if chart.reference is not None and units.known(chart.reference[1]):
        legend.append((f"{chart.reference[0]}: {units.number(chart.reference[1])}", "", "dashed"))
    return figure(chart.title, [*body, _axis(scale, chart.unit)], unit=chart.unit, legend=legend, note=chart.note)


def stacks(chart: Stacks) -> Markup:
    """Each row is drawn to its own whole; parts keep one colour through all rows."""
    rows = [*([chart.total] if chart.total else []), *chart.rows]
    hues = hues_of(name for row in rows for name in row.parts)
    body = [_row(row.label, row.note, _segments(row, hues)) for row in rows]
    return figure(chart.title, body, unit=chart.unit, legend=swatches(hues), note=chart.note)


def heat(chart: Heat) -> Markup:
    """Darker is more, each cell with its number."""
    known = finite(value for row in chart.values for value in row) or [0.0, 1.0]
    top, bottom = max(known), min(known)
    width = (100.0 - GUTTER) / max(len(chart.columns), 1)
    heads = [
        tag("text", name, x=f"{GUTTER + (index + 0.5) * width:.2f}%", y=15, text_anchor="middle")
        for index, name in enumerate(chart.columns)
    ]
    cells: list[Markup] = []
    for index, (name, row) in enumerate(zip(chart.rows, chart.values, strict=True)):
        y = HEAD_PX + index * CELL_PX
        cells.append(tag("text", name, x=f"{GUTTER - 1.5}%", y=y + CELL_PX / 2 + 4, text_anchor="end"))
        for column, value in enumerate(row):
            x = GUTTER + column * width
            share = (value - bottom) / ((top - bottom) or 1.0) if value is not None and units.known(value) else None
            title = tag("title", f"{name} × {chart.columns[column]}: {units.rate(value, chart.unit)}")
            box: dict[str, Attribute] = {"x": f"{x + 0.25:.3f}%", "y": y + 1, "width": f"{width - 0.5:.3f}%"}
            opacity = 0.06 if share is None else 0.12 + 0.88 * share
            cells.append(tag("rect", title, **box, height=CELL_PX - 2, rx=3, class_="cell", fill_opacity=opacity))
            middle: dict[str, Attribute] = {"x": f"{x + width / 2:.3f}%", "y": y + CELL_PX / 2 + 4}
            kind = "on-heat" if share is not None and share > 0.5 else None
            cells.append(tag("text", units.number(value), **middle, text_anchor="middle", class_=kind))
    summary = f"{chart.title}: {chart.row_name} by {chart.column_name}, in {chart.unit}"
    body = drawing(HEAD_PX + len(chart.rows) * CELL_PX + 2, summary, heads, cells, kind="heat")
    unit = f"{chart.unit} · rows: {chart.row_name}, columns: {chart.column_name}"
    return figure(chart.title, [body], unit=unit, note=chart.note)


def _row(label: str, value: object, drawn: Markup, note: str = "") -> Markup:
    head = tag("div", tag("span", label, class_="label"), tag("span", value, class_="value"), class_="head")
    return tag("div", head, drawn, tag("p", note, class_="note") if note else None, class_="row")


def _bar(row: Bar, scale: Scale, reference: tuple[str, float] | None, *, floor: float) -> Markup:
    """One bar; the part below `floor` (the rung before) is pale, so that the step stands out."""

    def box(start: float, end: float, kind: str) -> Markup:
        place: dict[str, Attribute] = {"x": f"{start:.3f}%", "y": 0, "width": f"{end - start:.3f}%"}
        return tag("rect", **place, height=BAR_PX, rx=3, class_=kind)

    def whisker(low: float | None, high: float | None, kind: str, y: float) -> Markup:
        if low is None or high is None or not (units.known(low) and units.known(high)):
            return Markup()
        x1, x2 = f"{scale.percent(low):.3f}%", f"{scale.percent(high):.3f}%"
        ends = [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4) for x in (x1, x2)]
        drawn = (tag("line", x1=x1, x2=x2, y1=y, y2=y), ends)
        return join(tag("g", *drawn, class_="whisker back"), tag("g", *drawn, class_=kind))

    parts = [box(0.0, 100.0, "track")]
    if row.value is not None and units.known(row.value):
        end, start = scale.percent(row.value), scale.percent(floor) if 0 < floor < row.value else 0.0
        parts += [box(0.0, start, f"pale {row.tone}")] if start else []
        parts.append(box(start, end, f"bar {row.tone}"))
    parts.append(whisker(row.low, row.high, "whisker", BAR_PX / 2))
    parts.append(whisker(row.predicted_low, row.predicted_high, "whisker predicted", float(BAR_PX)))
    if reference is not None and units.known(reference[1]):
        x = f"{scale.percent(reference[1]):.3f}%"
        parts.append(tag("line", x1=x, x2=x, y1=-4, y2=BAR_PX + 4, class_="reference"))
    if row.predicted is not None and units.known(row.predicted):  # of fixed size: a nested viewport that overflows
        title = tag("title", f"predicted {units.number(row.predicted)}")
        diamond = tag("path", title, d="M0 -7 L7 0 L0 7 L-7 0 Z", class_="diamond")
        x = f"{scale.percent(row.predicted):.3f}%"
        parts.append(tag("svg", diamond, x=x, y=BAR_PX, width=1, height=1, overflow="visible"))
    summary = f"{row.label}: {units.number(row.value)} {units.spread(row.low, row.high)}".strip()
    return drawing(BAR_PX if row.predicted is None else BAR_PX + 7, summary, parts)


def _segments(row: Stack, hues: dict[str, str]) -> Markup:
    whole = sum(max(part, 0.0) for part in finite(row.parts.values())) or 1.0
    parts = [tag("rect", x=0, y=0, width="100%", height=STACK_PX, rx=3, class_="track")]
    at = 0.0
    for name, value in row.parts.items():
        share = 100.0 * max(value, 0.0) / whole if units.known(value) else 0.0
        if share > 0.0:
            title = tag("title", f"{name}: {units.percent(share / 100)}")
            box: dict[str, Attribute] = {"x": f"{at:.3f}%", "y": 0, "width": f"{share:.3f}%", "height": STACK_PX}
            parts.append(tag("rect", title, **box, class_="segment", style=f"fill: var(--{hues[name]})"))
        if share >= 12.0:
            x, style = f"{at + share / 2:.3f}%", f"fill: var(--on-{hues[name]})"
            parts.append(tag("text", f"{share:.0f} %", x=x, y=18, text_anchor="middle", style=style))
        at += share
    summary = ", ".join(f"{name} {units.percent(value / whole)}" for name, value in row.parts.items() if value > 0)
    return drawing(STACK_PX, f"{row.label}: {summary}", parts)


def _axis(scale: Scale, unit: str) -> Markup:
    marks: list[Markup] = []
    for value in scale.ticks:
        x = scale.percent(value)
        anchor = "start" if x < 1 else "end" if x > 99 else "middle"
        marks.append(tag("line", x1=f"{x:.3f}%", x2=f"{x:.3f}%", y1=0, y2=5))
        marks.append(tag("text", units.tick(value), x=f"{x:.3f}%", y=19, text_anchor=anchor))
    base = tag("line", x1=0, x2="100%", y1=0.5, y2=0.5)
    return drawing(HEAD_PX, f"axis in {unit} from 0 to {units.tick(scale.high)}", base, marks, kind="axis")
