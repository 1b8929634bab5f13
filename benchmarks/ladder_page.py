"""The ladder's record as chart and table. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.profiling.record import units
from feedline.profiling.render.charts import Bar, ladder
from feedline.profiling.render.markup import Markup, join
from feedline.profiling.render.page import section, table


def ladder_section(record: Mapping[str, Any]) -> Markup:
    """Chart, table and what qualifies them."""
    return section(
        "The ladder",
        chart(record),
        rungs_table(record),
        [join(note, ". ") for note in record.get("notes", [])],
        lede=story(record),
    )


def story(record: Mapping[str, Any]) -> str:
    """One sentence from the first rung to the ceiling."""
    rungs, ceiling = record["rungs"], record["ceiling_samples_per_s"]
    first, top = rungs[0]["samples_per_s"], rungs[-1]["samples_per_s"]
    return (
        f"The same script and model, five ways of feeding it: from {units.rate(first)} to {units.rate(top)}, "
        f"{units.times(top / first)} as fast, {units.percent(min(1.0, top / ceiling))} of what it would do "
        "if data were free."
    ).replace("five", number_word(len(rungs))) + predicted_before(rungs)


def predicted_before(rungs: Sequence[Mapping[str, Any]]) -> str:
    with_figure = sum(rung["predicted"] is not None for rung in rungs)
    if with_figure < 2:
        return ""
    which = "Each figure" if with_figure == len(rungs) else f"{number_word(with_figure).capitalize()} of the figures"
    return f" {which} {'was' if with_figure == len(rungs) else 'were'} predicted before the rung was climbed."


def number_word(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven")
    return words[count] if count < len(words) else str(count)


def chart(record: Mapping[str, Any]) -> Markup:
    rows = [
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
    return ladder(rows, ceiling=record["ceiling_samples_per_s"], note=method(record))


def method(record: Mapping[str, Any]) -> str:
    rungs = record["rungs"]
    count = rungs[0].get("n")
    return (
        f"Median of {count} windows, each in a fresh process, all rungs interleaved in random order; "
        "whiskers: 95 % confidence intervals. Diamonds: predictions with theirs."
    )


HEADERS = ("rung", "samples/s", "interval", "predicted", "off by", "step", "of ceiling", "waiting")


def rungs_table(record: Mapping[str, Any]) -> Markup:
    return table(HEADERS, rows(record), numeric=range(1, len(HEADERS)), emphasised=(len(record["rungs"]),))


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
