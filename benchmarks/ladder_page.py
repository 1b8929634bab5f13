"""The ladder's record as chart and table. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.profiling.record import units
from feedline.profiling.render.sections import Bar, Bars, Points, Section, Table, section


def ladder_section(record: Mapping[str, Any]) -> Section | None:
    """Chart, table and what qualifies them."""
    notes = record.get("notes") or []
    return section("The ladder", chart(record), rungs_table(record), Points(notes) if notes else None,
                   lede=story(record))  # fmt: skip


def story(record: Mapping[str, Any]) -> str:
    """One sentence from the first rung to the ceiling."""
    rungs, ceiling = record["rungs"], record["ceiling_samples_per_s"]
    first, top = rungs[0]["samples_per_s"], rungs[-1]["samples_per_s"]
    return (
        f"The same script and model, {number_word(len(rungs))} ways of feeding it: from {units.rate(first)} to "
        f"{units.rate(top)}, {units.times(top / first)} as fast, {units.percent(min(1.0, top / ceiling))} of what it "
        f"would do if data were free.{predicted_before(rungs)}"
    )


def predicted_before(rungs: Sequence[Mapping[str, Any]]) -> str:
    with_figure = sum(rung["predicted"] is not None for rung in rungs)
    if with_figure < 2:
        return ""
    which = "Each figure" if with_figure == len(rungs) else f"{number_word(with_figure).capitalize()} of the figures"
    return f" {which} {'was' if with_figure == len(rungs) else 'were'} predicted before the rung was climbed."


def number_word(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven")
    return words[count] if count < len(words) else str(count)


def chart(record: Mapping[str, Any]) -> Bars:
    rungs = [
        Bar(
            label=rung["name"],
            value=rung["samples_per_s"],
            low=rung["low"],
            high=rung["high"],
            predicted=rung["predicted"],
            predicted_low=rung.get("predicted_low"),
            predicted_high=rung.get("predicted_high"),
            note=rung.get("words", ""),
        )
        for rung in record["rungs"]
    ]
    ceiling = ("data is free", record["ceiling_samples_per_s"])
    return Bars(rows=rungs, title="Throughput by rung", reference=ceiling, staircase=True, note=method(record))


def method(record: Mapping[str, Any]) -> str:
    return (
        f"Median of {record['rungs'][0].get('n')} windows, each in a fresh process, all rungs interleaved "
        "in random order; whiskers: 95 % confidence intervals. Diamonds: predictions with theirs."
    )


HEADERS = ("rung", "samples/s", "interval", "predicted", "off by", "step", "of ceiling", "waiting")


def rungs_table(record: Mapping[str, Any]) -> Table:
    numeric = range(1, len(HEADERS))
    return Table(headers=HEADERS, rows=rows(record), numeric=numeric, emphasised=(len(record["rungs"]),))


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per rung and one for the ceiling, as text."""
    ceiling = record["ceiling_samples_per_s"]
    found: list[tuple[str, ...]] = []
    before = None
    for rung in record["rungs"]:
        rate, predicted = rung["samples_per_s"], rung["predicted"]
        found.append(
            (
                rung["name"],
                units.number(rate),
                units.spread(rung["low"], rung["high"]) or units.UNKNOWN,
                units.number(predicted),
                signed_percent(predicted / rate - 1) if predicted else units.UNKNOWN,
                units.times(rate / before) if before else "",
                units.percent(rate / ceiling),
                units.percent(rung.get("wait_fraction")),
            )
        )
        before = rate
    spread = units.spread(record.get("ceiling_low"), record.get("ceiling_high"))
    return [
        *found,
        ("data is free", units.number(ceiling), spread, "", "", "", units.percent(1.0), units.percent(0.0)),
    ]


def signed_percent(share: float) -> str:
    return f"{share:+.0%}".replace("%", " %").replace("-", "−")
