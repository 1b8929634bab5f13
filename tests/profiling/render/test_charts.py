"""Charts: everything drawn is finite and inside, everything written is escaped, unknown is never zero."""

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.record import units
from feedline.profiling.record.recording import Line
from feedline.profiling.render.charts import Scale, round_ticks
from feedline.profiling.render.html import part
from feedline.profiling.render.sections import (
    Axis,
    Bar,
    Bars,
    Columns,
    Coordinates,
    Curve,
    Curves,
    Listing,
    Remedies,
    Shade,
    Stack,
    Stacks,
)

values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=32))
texts = st.text(max_size=20)
finite = st.floats(0, 1e9)


def parsed(markup: Markup) -> ElementTree.Element:
    """As XML: an unescaped character or an open element would not parse."""
    return ElementTree.fromstring(str(markup).replace("<br>", "<br/>"))


def assert_finite(markup: Markup) -> None:
    for element in parsed(markup).iter():
        for name in ("x", "y", "width", "height", "x1", "x2", "y1", "y2", "points", "d"):
            text = element.get(name, "").lower()
            assert "nan" not in text and "inf" not in text
            if name in ("width", "height") and text:
                assert float(text.rstrip("%")) >= 0


@given(
    st.lists(st.builds(Bar, label=texts, value=values, low=values, high=values, predicted=values, note=texts)), texts
)
def test_bars_draw_anything(rows: list[Bar], title: str) -> None:
    assert_finite(part(Bars(rows=rows, title=title, reference=("ceiling", 100.0))))
    assert_finite(part(Bars(rows=rows, title=title, staircase=True)))


@given(
    st.lists(st.builds(Stack, label=texts, parts=st.dictionaries(texts, st.floats(0, 1e6), max_size=9)), max_size=4)
)
def test_stacks_draw_anything(rows: list[Stack]) -> None:
    assert_finite(part(Stacks(rows=rows, title="where time goes")))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), values), max_size=30), texts)
def test_lines_draw_anything(points: list[tuple[float, float | None]], name: str) -> None:
    points.sort(key=lambda point: point[0])
    curves = [Curve(name=name, points=[(x, y if units.known(y) else None) for x, y in points])]
    assert_finite(part(Curves(curves=curves, title="t", y_unit="cores", shades=[Shade(start=1, end=2, name=name)])))


@given(st.lists(st.floats(0, 1e3), min_size=0, max_size=400))
def test_columns_draw_anything(heights: list[float]) -> None:
    starts = [float(index) for index in range(len(heights))]
    assert_finite(part(Columns(parts={"wait": heights, "compute": heights}, starts=starts, title="t", y_unit="s")))


def test_of_many_curves_the_faint_ones_lie_behind_and_are_not_in_the_legend() -> None:
    curves = [Curve(name="best", points=[(0, 1), (1, 2)])]
    curves += [Curve(name=f"other{n}", points=[(0, n), (1, 0)], faint=True) for n in range(3)]
    curves += [Curve(name="second", points=[(0, 0), (1, 2)])]
    chart = part(Curves(curves=curves, title="t", y_unit="%"))
    groups = [group for group in parsed(chart).iter("g") if "curve" in group.get("class", "")]
    assert ["faint" in group.get("class", "") for group in groups] == [True] * 3 + [False] * 2
    assert [item.text or item[0].tail for item in parsed(chart).iter("li")] == ["best", "second"]
    assert "var(--c1)" in next(groups[3].iter("polyline")).get("style", "")


@given(st.lists(st.tuples(texts, st.floats(0, 1), st.lists(st.none() | st.floats(0, 1), max_size=4)), max_size=5))
def test_parallel_coordinates_draw_anything(lines: list[tuple[str, float, list[float | None]]]) -> None:
    axes = [Axis(name="lr", ticks=[(0.0, "low"), (1.0, "high")]), Axis(name="top-1", ticks=[])]
    assert_finite(part(Coordinates(axes=axes, lines=lines, title="t")))
    assert_finite(part(Coordinates(axes=axes[:1], lines=lines, title="t")))


def test_nothing_gets_out_of_its_quotes() -> None:
    evil = "</svg><script>alert(1)</script>\"'&\x00\ud800"
    chart = part(Bars(rows=[Bar(label=evil, value=1.0, note=evil)], title=evil, unit=evil, reference=(evil, 2.0)))
    assert "<script" not in chart
    parsed(chart)
    str(chart).encode()


def widths(markup: Markup, kind: str) -> list[float]:
    boxes = [e for e in parsed(markup).iter("rect") if kind in e.get("class", "").split()]
    return [float(box.get("width", "").rstrip("%")) for box in boxes]


def test_a_rung_shows_what_it_adds() -> None:
    chart = part(
        Bars(
            rows=[Bar(label="a", value=100.0), Bar(label="b", value=400.0)],
            title="t",
            reference=("data is free", 500.0),
            staircase=True,
        )
    )
    assert widths(chart, "bar") == pytest.approx([20.0, 60.0])
    assert widths(chart, "pale") == pytest.approx([20.0])
    assert "4×" in chart


def test_a_prediction_is_hollow_and_what_is_now_is_filled() -> None:
    one = Prediction(remedy="a", why="", samples_per_s=200.0, low=150.0, high=250.0, gain=2.0, gain_low=1.5,
                     gain_high=2.5, command="do --this\nand-that")  # fmt: skip
    chart = part(Remedies(rows=[[one]], unit="samples/s", most=2.5, ceiling=4.0))
    assert widths(chart, "hollow") == pytest.approx([50.0])
    assert widths(chart, "bar") == pytest.approx([25.0])
    assert "ceiling, data for free: 4×" in chart.replace("\u00a0", " ")
    assert "".join(next(parsed(chart).iter("pre")).itertext()) == "do --this\nand-that"  # as it is to be copied


def test_what_a_whisker_is_stands_in_the_legend() -> None:
    row = Bar(label="a", value=2.0, low=1.0, high=3.0)
    assert "95 % interval" in part(Bars(rows=[row], title="t")).replace("\u00a0", " ")
    assert "range" in part(Bars(rows=[row], title="t", interval="range"))
    assert "95" not in part(Bars(rows=[Bar(label="a", value=2.0)], title="t"))
    curve = Curve(name="c", points=[(0.0, 1.0)], intervals=[(0.5, 1.5)])
    assert "95 % interval" in part(Curves(curves=[curve], title="t", y_unit="s")).replace("\u00a0", " ")


figures = dict.fromkeys(("samples_per_s", "low", "high", "gain", "gain_low", "gain_high"), finite)
predictions = st.builds(Prediction, remedy=texts, why=texts, command=texts, **figures)


@given(st.lists(st.lists(predictions, min_size=1, max_size=2), max_size=3), finite)
def test_remedies_draw_anything(rows: list[list[Prediction]], ceiling: float) -> None:
    most = max((one.gain_high for row in rows for one in row), default=1.0)
    assert_finite(part(Remedies(rows=rows, unit="samples/s", most=most, ceiling=ceiling)))


def test_unknown_is_a_dash_not_a_bar() -> None:
    chart = part(Bars(rows=[Bar(label="a", value=None)], title="t"))
    assert widths(chart, "bar") == []
    assert units.UNKNOWN in chart


def test_one_line_of_a_function_is_the_hottest() -> None:
    lines = [Line(file="a", function="f", line=n, hits=1, seconds=0.5, fraction=0.5) for n in (1, 2)]
    assert part(Listing(lines=lines, hints={})).count("emphasised") == 1


def test_a_gap_in_a_series_is_a_gap() -> None:
    points: Sequence[tuple[float, float | None]] = [(0, 1), (1, 2), (2, None), (3, 1), (4, 2)]
    chart = part(Curves(curves=[Curve(name="a", points=points)], title="t", y_unit="cores"))
    assert chart.count("<polyline") == 2


def test_one_long_pause_does_not_flatten_the_steps() -> None:
    heights = [0.1] * 99 + [60.0]
    chart = part(Columns(parts={"a": heights}, starts=[float(i) for i in range(100)], title="t", y_unit="s"))
    usual = [float(e.get("height", "0")) for e in parsed(chart).iter("rect") if e.get("style")]
    assert sorted(usual)[50] > 20


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_round_and_cover(low: float, span: float, count: int) -> None:
    ticks = round_ticks(low, low + span, count)
    slack = 1e-6 * max(span, abs(low), abs(low + span))
    assert ticks[0] <= low + slack and ticks[-1] >= low + span - slack
    assert len(ticks) <= count * 2 + 3


@given(st.floats(-1e6, 1e6))
def test_percent_stays_in_the_chart(value: float) -> None:
    assert 0 <= Scale.covering([0, 10]).percent(value) <= 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0"),
        (0.01234, "0.0123"),
        (12431.2, "12,431"),
        (99.96, "100"),
        (-4.5, "-4.5"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert units.number(value) == text


def test_units() -> None:
    assert units.percent(0.8234) == "82 %"
    assert units.percent(0.0312) == "3.1 %"
    assert units.share(0.6234, 0.015) == "62 % ± 3"
    assert units.share(0.0312, 0.012) == "3 % ± 2"
    assert units.share(0.0312, 0.002) == "3.1 % ± 0.4"
    assert units.share(0.0312, None) == "3.1 % ± ?"
    assert units.gain(2.91, 2.53, 3.31) == "2.9× (2.5–3.3)"
    assert units.gain(1.08, 0.99, 1.2) == "1.08× (0.99–1.20)"
    assert units.seconds(75) == "1 min 15 s"
    assert units.seconds(0.00042) == "420 µs"
    assert units.seconds(7260) == "2 h 1 min"
    assert units.size(27_600) == "27.6 kB"
    assert units.tick(1500) == "1.5k"
