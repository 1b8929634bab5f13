"""The records of compare, tune and ladder as pages of charts and tables. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.benchmarks.grid import AXES, phrase, phrases
from feedline.profiling.record import units
from feedline.profiling.render.sections import (
    CEILING,
    Bar,
    Bars,
    Curve,
    Curves,
    Facts,
    Page,
    Points,
    Section,
    Table,
    Tone,
    Verdict,
    section,
)

Row = Mapping[str, Any]
TONES: dict[str, Tone] = {"best": "good", "same": "good", "open": "open"}
"""By a cell's outcome; `outcome` says it in words."""


# --- compare ------------------------------------------------------------------------------------------


def compare_page(record: Row) -> Page:
    axes, cells, counts = record["axes"], record["cells"], sorted({cell["n"] for cell in record["cells"]})
    varied = [name for name, values in axes.items() if len(values) > 1]
    fixed = {AXES[name].word: values[0] for name, values in axes.items() if len(values) == 1}
    first, _, rest = record["statement"].partition(". ")
    method = (
        f"Each cell was measured {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} times for "
        f"{record['window_s']:g} s, each time in a fresh process, in rounds of random order; differences are within "
        "rounds, their intervals share 5 % of error."
    )
    bars = [
        Bar(label=cell["name"], value=cell["samples_per_s"], low=cell["low"], high=cell["high"], note=outcome(cell),
            tone=TONES.get(cell["outcome"], "main"))
        for cell in cells
    ]  # fmt: skip
    rows = [
        (cell["name"], *figures(cell), units.number(cell["cores_used"]), units.percent(cell["wait_fraction"]))
        for cell in cells
    ]
    headers = ("cell", "samples/s", "interval", "windows", "cores used", "waiting")
    numeric = next((name for name in varied if AXES[name].kind is int and len(set(axes[name])) > 1), None)
    over = Curves(
        curves=curves_over(numeric, [name for name in varied if name != numeric], cells) if numeric else [],
        title=f"Throughput over {AXES[numeric].word}" if numeric else "",
        y_unit="samples/s", x_unit=AXES[numeric].word if numeric else "",
    )  # fmt: skip
    return Page(
        title="Which settings, and by how much",
        verdict=Verdict(words=first, evidence=[rest, method] if rest else [method]),
        sections=[
            section("Every cell", Bars(rows=bars, title="Throughput by cell"),
                    Table(headers=headers, rows=rows, numeric=range(1, 6))),
            section(f"Over {over.x_unit}", over if over.curves else None),
            section("What was the same for all", Facts({**fixed, "cores": record.get("usable_cores")})),
        ],
        kicker="feedline compare",
    )  # fmt: skip


def outcome(cell: Row) -> str:
    """In words, beside the best."""
    return {
        "best": "highest median",
        "same": "same as the best",
        "open": "not told apart from it",
        "slower": f"{units.percent(1 - cell['ratio_to_best'])} slower",
        "faster": f"{units.percent(cell['ratio_to_best'] - 1)} faster",
    }[cell["outcome"]]


def figures(row: Row) -> tuple[str, str, str]:
    return units.number(row["samples_per_s"]), units.spread(row["low"], row["high"]), str(row["n"])


def curves_over(axis: str, others: Sequence[str], cells: Sequence[Row]) -> list[Curve]:
    """One curve per combination of the other axes."""
    groups: dict[str, dict[float, Row]] = {}
    for cell in cells:
        name = ", ".join(phrase(other, cell[other]) for other in others) or "samples/s"
        groups.setdefault(name, {})[float(cell[axis])] = cell
    return [
        Curve(
            name=name,
            points=[(x, members[x]["samples_per_s"]) for x in sorted(members)],
            intervals=[(members[x]["low"], members[x]["high"]) for x in sorted(members)],
        )
        for name, members in groups.items()
    ]


# --- tune ---------------------------------------------------------------------------------------------


def tune_page(record: Row) -> Page:
    """The settings it chose, the curve over workers, every setting tried."""
    tried: Sequence[Row] = record["tried"]
    method = (
        f"{record['model']} at {record['image_size']} px, {record['seconds_used']:.0f} s of search; each window in a "
        "fresh process, the next one where a setting may be the best by most."
    )
    others = {name for name in tried[0] if name in AXES and len({row[name] for row in tried}) > 1} - {"num_workers"}
    curves = curves_over("num_workers", sorted(others), tried)
    if record["predicted_by_workers"]:
        points = sorted((float(workers), rate) for workers, rate in record["predicted_by_workers"].items())
        curves.append(Curve(name="predicted from one worker's costs", points=points))
    chart = Curves(
        curves=curves, title="Training throughput over workers", y_unit="samples/s", x_unit="workers",
        note="No whisker: measured once, or predicted.",
    )  # fmt: skip
    rows = [(phrases(row), *figures(row)) for row in tried]
    table = Table(headers=("setting", "samples/s", "interval", "windows"), rows=rows, numeric=range(1, 4))
    return Page(
        title="The settings that train fastest here",
        verdict=Verdict(words=record["statement"], evidence=[method]),
        sections=[section("Over workers", chart), section("Every setting tried", table)],
        kicker="feedline tune",
    )


# --- ladder -------------------------------------------------------------------------------------------

LADDER_HEADERS = ("rung", "samples/s", "interval", "predicted", "off by", "step", "of ceiling", "waiting")
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven")


def ladder_section(record: Row) -> Section | None:
    rungs, notes = record["rungs"], record.get("notes") or []
    names = ("value", "low", "high", "predicted", "predicted_low", "predicted_high", "note")
    keys = ("samples_per_s", *names[1:-1], "words")
    chart = Bars(
        rows=[
            Bar(label=rung["name"], **{n: rung.get(key) for n, key in zip(names, keys, strict=True)})
            for rung in rungs
        ],
        title="Throughput by rung",
        reference=(CEILING, record["ceiling_samples_per_s"]),
        staircase=True,
        note=f"Median of {rungs[0].get('n')} windows, each in a fresh process, all rungs in random order by turns.",
    )
    numeric = range(1, len(LADDER_HEADERS))
    table = Table(headers=LADDER_HEADERS, rows=ladder_rows(record), numeric=numeric, emphasised=(len(rungs),))
    return section("The ladder", chart, table, Points(notes) if notes else None, lede=ladder_story(record))


def ladder_story(record: Row) -> str:
    """One sentence from the first rung to the ceiling."""
    rungs, ceiling = record["rungs"], record["ceiling_samples_per_s"]
    first, top = rungs[0]["samples_per_s"], rungs[-1]["samples_per_s"]
    predicted = sum(rung["predicted"] is not None for rung in rungs)
    which = "Each figure was" if predicted == len(rungs) else f"{COUNTS[predicted].capitalize()} of the figures were"
    return (
        f"The same script and model, {COUNTS[len(rungs)]} ways of feeding it: from {units.rate(first)} to "
        f"{units.rate(top)}, {units.times(top / first)} as fast, {units.percent(min(1.0, top / ceiling))} of what it "
        "would do if data were free." + (f" {which} predicted before the rung was climbed." if predicted > 1 else "")
    )


def ladder_rows(record: Row) -> list[tuple[str, ...]]:
    """One row per rung and one for the ceiling, as text."""
    ceiling, before = record["ceiling_samples_per_s"], None
    rows: list[tuple[str, ...]] = []
    for rung in record["rungs"]:
        rate, predicted = rung["samples_per_s"], rung["predicted"]
        off = f"{predicted / rate - 1:+.0%}".replace("%", " %").replace("-", "−") if predicted else units.UNKNOWN
        interval = units.spread(rung["low"], rung["high"]) or units.UNKNOWN
        step = units.times(rate / before) if before else ""
        share, waiting = units.percent(rate / ceiling), units.percent(rung.get("wait_fraction"))
        rows.append((rung["name"], units.number(rate), interval, units.number(predicted), off, step, share, waiting))
        before = rate
    interval = units.spread(record.get("ceiling_low"), record.get("ceiling_high"))
    free = units.percent(1.0), units.percent(0.0)
    return [*rows, ("data is free", units.number(ceiling), interval, "", "", "", *free)]
