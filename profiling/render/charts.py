"""Charts as pure functions to self-contained markup: `bars`, `ladder`, `stacked`, `heat`; over time see `plots`.

Every chart is a `<figure>` with a caption and a unit. Lengths are percentages of the width there is, so nothing is
scaled: the same markup is sharp and its text readable on a phone, a wide screen and paper, without JavaScript.
Labels and values are HTML beside the drawings (they wrap, and screen readers read them); colours are the variables
of `page.css`, which knows dark, light and print. All text is escaped by `markup`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profiling.record import units
from feedline.profiling.render.markup import Markup, join, tag
from feedline.profiling.render.scale import Scale, finite

BAR_PX = 20
HUES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
"""CSS variables of the categorical palette (Okabe and Ito: safe for colour-blind eyes), in order of use."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row of `bars` or one rung of `ladder`."""

    label: str
    value: float | None = None
    """None: not measured, and shown as a dash."""
    low: float | None = None
    high: float | None = None
    """The interval of the value, drawn as a whisker."""
    predicted: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None
    """What was said before it was measured: a diamond with its own, thinner whisker."""
    note: str = ""
    """One line under the bar."""
    tone: str = "main"
    """`main`, `muted`, `good` or `bad`."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One row of `stacked`: named parts, in the row's unit."""

    label: str
    parts: dict[str, float]
    note: str = ""


def bars(
    rows: Sequence[Bar],
    *,
    title: str,
    unit: str = "samples/s",
    reference: tuple[str, float] | None = None,
    value_name: str = "measured",
    note: str = "",
) -> Markup:
    """Horizontal bars with intervals, predictions as diamonds, and a dashed line at `reference` (name, value).
    `value_name` is what the legend calls the bars."""
    scale = _scale_of(rows, reference)
    drawn = [
        _row(row.label, _value_text(row, unit), _bar(row, scale, reference, floor=0.0), row.note or None)
        for row in rows
    ]
    return figure(
        title, drawn, _axis(scale, unit), unit=unit, legend=_bar_legend(rows, reference, value_name), note=note
    )


def ladder(
    rungs: Sequence[Bar],
    *,
    ceiling: float | None = None,
    title: str = "The ladder",
    unit: str = "samples/s",
    note: str = "",
) -> Markup:
    """A staircase: each rung's bar shows what it adds to the rung before it, its factor over the first rung, the
    prediction made before the climb, and the ceiling as a dashed line."""
    reference = ("data is free", ceiling) if ceiling is not None else None
    scale = _scale_of(rungs, reference)
    drawn: list[Markup] = []
    first, before = None, 0.0
    for rung in rungs:
        text = _value_text(rung, unit)
        if first and rung.value:
            text = join(text, " ", tag("b", units.times(rung.value / first), class_="factor"))
        drawn.append(_row(rung.label, text, _bar(rung, scale, reference, floor=before), rung.note or None))
        before, first = rung.value or before, first or rung.value
    return figure(
        title, drawn, _axis(scale, unit), unit=unit, legend=_bar_legend(rungs, reference, "measured"), note=note
    )


def stacked(
    rows: Sequence[Stack],
    *,
    title: str,
    hues: dict[str, str] | None = None,
    unit: str = "share of time",
    note: str = "",
) -> Markup:
    """Rows of parts that add up, each row drawn to its own whole; parts keep one colour through all rows.

    `hues` maps a part's name to a CSS variable; names without one take the palette in order of appearance.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.parts))
    colour = {name: (hues or {}).get(name, HUES[index % len(HUES)]) for index, name in enumerate(names)}
    drawn = [_row(row.label, row.note, _segments(row, colour)) for row in rows]
    entries = [(name, f"background: var(--{colour[name]})", "block") for name in names]
    return figure(title, drawn, unit=unit, legend=entries, note=note)


def heat(
    values: Sequence[Sequence[float | None]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_name: str,
    column_name: str,
    unit: str = "samples/s",
    note: str = "",
) -> Markup:
    """A grid of `values[row][column]`, darker is more, each cell with its number; None stays empty."""
    seen = finite(value for row in values for value in row)
    top, bottom = (max(seen), min(seen)) if seen else (1.0, 0.0)
    height_px, gutter = 38, 18.0
    width = (100.0 - gutter) / max(len(columns), 1)
    drawn: list[Markup] = []
    for index, (name, row) in enumerate(zip(rows, values, strict=True)):
        y = 24 + index * height_px
        drawn.append(tag("text", name, x=f"{gutter - 1.5}%", y=y + height_px / 2 + 4, text_anchor="end"))
        for column, value in enumerate(row):
            share = (value - bottom) / ((top - bottom) or 1.0) if value is not None and units.known(value) else None
            box = (gutter + column * width, y, width, height_px)
            drawn.append(_cell(box, value, share, f"{name} × {columns[column]}", unit))
    heads = [
        tag("text", name, x=f"{gutter + (index + 0.5) * width:.2f}%", y=15, text_anchor="middle")
        for index, name in enumerate(columns)
    ]
    said = f"{title}: {row_name} by {column_name}, in {unit}"
    body = _svg(24 + len(rows) * height_px + 2, said, heads, drawn, class_="drawing heat")
    return figure(title, [body], unit=f"{unit} · rows: {row_name}, columns: {column_name}", note=note)


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


def _scale_of(rows: Sequence[Bar], reference: tuple[str, float] | None) -> Scale:
    values = [v for row in rows for v in (row.value, row.high, row.predicted, row.predicted_high)]
    return Scale.covering([*values, reference[1] if reference else None])


def _value_text(row: Bar, unit: str) -> Markup:
    interval = units.spread(row.low, row.high)
    foretold = f"predicted {units.number(row.predicted)}" if row.predicted is not None else ""
    small = " · ".join(part for part in (interval, foretold) if part)
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
    parts.append(_whisker(row.predicted_low, row.predicted_high, scale, "whisker foretold", float(BAR_PX)))
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


def _bar_legend(
    rows: Sequence[Bar], reference: tuple[str, float] | None, value_name: str
) -> list[tuple[str, str, str]]:
    entries = [(value_name, "background: var(--c1)", "block")]
    if any(row.predicted is not None for row in rows):
        entries.append(("predicted before", "", "diamond"))
    if reference is not None and units.known(reference[1]):
        entries.append((f"{reference[0]}: {units.number(reference[1])}", "", "dashed"))
    return entries
