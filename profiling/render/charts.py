"""Charts as pure functions to self-contained markup: `bars`, `stacks`, `heat`; over time see `plots`.

Every chart is a `<figure>` with a caption and a unit. Lengths are percentages of the width there is, so nothing is
scaled: the same markup is sharp and its text readable on a phone, a wide screen and paper, without JavaScript.
Labels and values are HTML beside the drawings (they wrap, and screen readers read them); colours are the variables
of `page.css`, which knows dark, light and print. All text is escaped by `markup`.
"""

from collections.abc import Iterable, Sequence

from feedline.profiling.record import units
from feedline.profiling.render.markup import Markup, join, tag
from feedline.profiling.render.scale import Scale, finite
from feedline.profiling.render.sections import Bar, Bars, Heat, Stack, Stacks

BAR_PX = 20
PALETTE = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
"""CSS variables of the categorical palette (Okabe and Ito: safe for colour-blind eyes), in order of use."""
HUES = {
    "data": "c4", "copy": "c6", "trainer": "c2", "compute": "c3",
    "waiting": "c4", "copying": "c6", "computing": "c3",
    "read": "c5", "decode": "c1", "transform": "c3", "collate": "c2", "send": "c4", "idle": "c8", "other": "c6",
}  # fmt: skip
"""One colour through all charts: shares of the loop, parts of a step, a worker's stages."""


def hues_of(names: Iterable[str]) -> dict[str, str]:
    """Their own colours, and for the others what the palette has left, in order."""
    known = list(dict.fromkeys(names))
    left = [hue for hue in PALETTE if hue not in {HUES.get(name) for name in known}] or PALETTE
    others = (name for name in known if name not in HUES)
    return {name: HUES[name] for name in known if name in HUES} | {
        name: left[index % len(left)] for index, name in enumerate(others)
    }


def bars(chart: Bars) -> Markup:
    """Predictions are diamonds."""
    scale = _scale_of(chart)
    drawn: list[Markup] = []
    first, before = None, 0.0
    for row in chart.rows:
        words = _value_text(row, chart.unit)
        if chart.staircase and first and row.value:
            words = join(words, " ", tag("b", units.times(row.value / first), class_="factor"))
        drawing = _bar(row, scale, chart.reference, floor=before if chart.staircase else 0.0)
        drawn.append(_row(row.label, words, drawing, row.note or None))
        before, first = row.value or before, first or row.value
    axis = _axis(scale, chart.unit)
    return figure(chart.title, drawn, axis, unit=chart.unit, legend=_bar_legend(chart), note=chart.note)


def stacks(chart: Stacks) -> Markup:
    """Each row is drawn to its own whole; parts keep one colour through all rows."""
    rows = [*([chart.total] if chart.total else []), *chart.rows]
    hues = hues_of(name for row in rows for name in row.parts)
    drawn = [_row(row.label, row.note, _segments(row, hues)) for row in rows]
    entries = [(name, f"background: var(--{hue})", "block") for name, hue in hues.items()]
    return figure(chart.title, drawn, unit=chart.unit, legend=entries, note=chart.note)


def heat(chart: Heat) -> Markup:
    """Darker is more, each cell with its number."""
    seen = finite(value for row in chart.values for value in row)
    top, bottom = (max(seen), min(seen)) if seen else (1.0, 0.0)
    height_px, gutter = 38, 18.0
    width = (100.0 - gutter) / max(len(chart.columns), 1)
    drawn: list[Markup] = []
    for index, (name, row) in enumerate(zip(chart.rows, chart.values, strict=True)):
        y = 24 + index * height_px
        drawn.append(tag("text", name, x=f"{gutter - 1.5}%", y=y + height_px / 2 + 4, text_anchor="end"))
        for column, value in enumerate(row):
            share = (value - bottom) / ((top - bottom) or 1.0) if value is not None and units.known(value) else None
            box = (gutter + column * width, y, width, height_px)
            drawn.append(_cell(box, value, share, f"{name} × {chart.columns[column]}", chart.unit))
    heads = [
        tag("text", name, x=f"{gutter + (index + 0.5) * width:.2f}%", y=15, text_anchor="middle")
        for index, name in enumerate(chart.columns)
    ]
    said = f"{chart.title}: {chart.row_name} by {chart.column_name}, in {chart.unit}"
    body = _svg(24 + len(chart.rows) * height_px + 2, said, heads, drawn, class_="drawing heat")
    unit = f"{chart.unit} · rows: {chart.row_name}, columns: {chart.column_name}"
    return figure(chart.title, [body], unit=unit, note=chart.note)


def figure(
    title: str,
    body: Sequence[Markup],
    axis: Markup | None = None,
    *,
    unit: str = "",
    legend: Sequence[tuple[str, str, str]] = (),
    note: str = "",
) -> Markup:
    """The frame all charts share. `legend` entries are (name, CSS of the swatch, its shape: block, line, diamond)."""
    keys = [
        tag("li", tag("i", class_=f"swatch {shape}", style=css, aria_hidden="true"), name)
        for name, css, shape in legend
    ]
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", unit, class_="unit") if unit else None),
        tag("ul", *keys, class_="legend") if len(keys) > 1 else None,
        tag("div", *body, axis, class_="rows"),
        tag("p", note, class_="note") if note else None,
        class_="chart",
    )


def _scale_of(chart: Bars) -> Scale:
    values = [v for row in chart.rows for v in (row.value, row.high, row.predicted, row.predicted_high)]
    return Scale.covering([*values, chart.reference[1] if chart.reference else None])


def _value_text(row: Bar, unit: str) -> Markup:
    interval = units.spread(row.low, row.high)
    predicted = f"predicted {units.number(row.predicted)}" if row.predicted is not None else ""
    small = " · ".join(part for part in (interval, predicted) if part)
    return join(
        tag("b", units.number(row.value)),
        tag("span", f" {unit}", class_="unit"),
        tag("small", small) if small else None,
    )


def _row(label: str, value: object, drawing: Markup, note: str | None = None) -> Markup:
    head = tag("div", tag("span", label, class_="label"), tag("span", value, class_="value"), class_="head")
    return tag("div", head, drawing, tag("p", note, class_="note") if note else None, class_="row")


def _bar(row: Bar, scale: Scale, reference: tuple[str, float] | None, *, floor: float) -> Markup:
    """One bar; the part below `floor` (the rung before) is pale, so that the step stands out."""
    said = f"{row.label}: {units.number(row.value)} {units.spread(row.low, row.high)}".strip()
    parts = [_box(0.0, 100.0, "track")]
    if row.value is not None and units.known(row.value):
        end, start = scale.percent(row.value), scale.percent(floor) if 0 < floor < row.value else 0.0
        parts += [_box(0.0, start, f"pale {row.tone}")] if start else []
        parts.append(_box(start, end, f"bar {row.tone}"))
    parts.append(_whisker(row.low, row.high, scale, "whisker", BAR_PX / 2))
    parts.append(_whisker(row.predicted_low, row.predicted_high, scale, "whisker predicted", float(BAR_PX)))
    if reference is not None and units.known(reference[1]):
        x = f"{scale.percent(reference[1]):.3f}%"
        parts.append(tag("line", x1=x, x2=x, y1=-4, y2=BAR_PX + 4, class_="reference"))
    if row.predicted is not None and units.known(row.predicted):
        parts.append(_diamond(scale.percent(row.predicted), f"predicted {units.number(row.predicted)}"))
    return _svg(BAR_PX if row.predicted is None else BAR_PX + 7, said, parts)


def _box(start: float, end: float, kind: str) -> Markup:
    return tag("rect", x=f"{start:.3f}%", y=0, width=f"{end - start:.3f}%", height=BAR_PX, rx=3, class_=kind)


def _whisker(low: float | None, high: float | None, scale: Scale, kind: str, y: float) -> Markup:
    if low is None or high is None or not (units.known(low) and units.known(high)):
        return Markup()
    x1, x2 = f"{scale.percent(low):.3f}%", f"{scale.percent(high):.3f}%"
    ends = [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4) for x in (x1, x2)]
    drawn = (tag("line", x1=x1, x2=x2, y1=y, y2=y), ends)
    return join(tag("g", *drawn, class_="whisker back"), tag("g", *drawn, class_=kind))


def _diamond(at_percent: float, said: str) -> Markup:
    """A marker of fixed size at a fluid position: a nested viewport that overflows."""
    shape = tag("path", tag("title", said), d="M0 -7 L7 0 L0 7 L-7 0 Z", class_="diamond")
    return tag("svg", shape, x=f"{at_percent:.3f}%", y=BAR_PX, width=1, height=1, overflow="visible")


def _segments(row: Stack, colour: dict[str, str]) -> Markup:
    whole = sum(max(part, 0.0) for part in finite(row.parts.values())) or 1.0
    parts = [tag("rect", x=0, y=0, width="100%", height=BAR_PX + 6, rx=3, class_="track")]
    at = 0.0
    for name, value in row.parts.items():
        share = 100.0 * max(value, 0.0) / whole if units.known(value) else 0.0
        if share > 0.0:
            parts.append(_segment(at, share, name, colour[name]))
        at += share
    said = ", ".join(f"{name} {units.percent(value / whole)}" for name, value in row.parts.items() if value > 0)
    return _svg(BAR_PX + 6, f"{row.label}: {said}", parts)


def _segment(at: float, share: float, name: str, hue: str) -> Markup:
    said = tag("title", f"{name}: {units.percent(share / 100)}")
    fill = f"fill: var(--{hue})"
    box = tag(
        "rect", said, x=f"{at:.3f}%", y=0, width=f"{share:.3f}%", height=BAR_PX + 6, class_="segment", style=fill
    )
    if share < 12.0:
        return box
    middle = f"{at + share / 2:.3f}%"
    return join(
        box, tag("text", f"{share:.0f} %", x=middle, y=18, text_anchor="middle", style=f"fill: var(--on-{hue})")
    )


def _cell(
    box: tuple[float, float, float, float], value: float | None, share: float | None, said: str, unit: str
) -> Markup:
    x, y, width, height = box
    opacity = 0.06 if share is None else 0.12 + 0.88 * share
    kind = "on-heat" if share is not None and share > 0.5 else None
    title = tag("title", f"{said}: {units.rate(value, unit)}")
    place = {"x": f"{x + 0.25:.3f}%", "y": y + 1, "width": f"{width - 0.5:.3f}%", "height": height - 2}
    middle = {"x": f"{x + width / 2:.3f}%", "y": y + height / 2 + 4, "text_anchor": "middle"}
    return join(
        tag("rect", title, **place, rx=3, class_="cell", fill_opacity=opacity),
        tag("text", units.number(value), **middle, class_=kind),
    )


def _axis(scale: Scale, unit: str) -> Markup:
    marks: list[Markup] = []
    for value in scale.ticks:
        x = scale.percent(value)
        anchor = "start" if x < 1 else "end" if x > 99 else "middle"
        marks.append(tag("line", x1=f"{x:.3f}%", x2=f"{x:.3f}%", y1=0, y2=5))
        marks.append(tag("text", units.tick(value), x=f"{x:.3f}%", y=19, text_anchor=anchor))
    base = tag("line", x1=0, x2="100%", y1=0.5, y2=0.5)
    return _svg(24, f"axis in {unit} from 0 to {units.tick(scale.high)}", base, marks, class_="drawing axis")


def _svg(height_px: float, said: str, *body: object, class_: str = "drawing") -> Markup:
    return tag("svg", tag("title", said), *body, class_=class_, width="100%", height=height_px, role="img")


def _bar_legend(chart: Bars) -> list[tuple[str, str, str]]:
    entries = [(chart.value_name, "background: var(--c1)", "block")]
    if any(row.predicted is not None for row in chart.rows):
        entries.append(("predicted before", "", "diamond"))
    if chart.reference is not None and units.known(chart.reference[1]):
        entries.append((f"{chart.reference[0]}: {units.number(chart.reference[1])}", "", "dashed"))
    return entries
