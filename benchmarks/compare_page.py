"""A comparison's record as a page: the statement, curves with intervals, a heat map, all cells. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.benchmarks.grid import WORDS, phrase
from feedline.profiling.record import units
from feedline.profiling.render.sections import (
    Bar,
    Bars,
    Curve,
    Curves,
    Facts,
    Heat,
    Page,
    Section,
    Table,
    Tone,
    Verdict,
    section,
)

Cells = Sequence[Mapping[str, Any]]


def compare_page(record: Mapping[str, Any]) -> Page:
    axes, cells = record["axes"], record["cells"]
    varied = [name for name, values in axes.items() if len(values) > 1]
    fixed = {WORDS[name]: values[0] for name, values in axes.items() if len(values) == 1}
    first, _, rest = record["statement"].partition(". ")
    return Page(
        title="Which settings, and by how much",
        verdict=Verdict(words=first, evidence=[rest, method(record)] if rest else [method(record)]),
        sections=[
            section("Every cell", bar_chart(cells), cells_table(cells)),
            curve_section(axes, varied, cells),
            heat_section(axes, varied, cells),
            section("What was the same for all", Facts({**fixed, "cores": record.get("usable_cores")})),
        ],
        kicker="feedline compare",
    )


def method(record: Mapping[str, Any]) -> str:
    counts = [cell["n"] for cell in record["cells"]]
    least, most = min(counts), max(counts)
    times = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"Each cell was measured {times} times for {record['window_s']:g} s, each time in a fresh process, in rounds "
        "of random order; differences are within rounds, their intervals share 5 % of error."
    )


def bar_chart(cells: Cells) -> Bars:
    rows = [
        Bar(label=cell["name"], value=cell["samples_per_s"], low=cell["low"], high=cell["high"], tone=tone(cell),
            note=words(cell))
        for cell in cells
    ]  # fmt: skip
    return Bars(rows=rows, title="Throughput by cell", note="whiskers: 95 % intervals of the median")


def tone(cell: Mapping[str, Any]) -> Tone:
    return "good" if cell["best"] or cell["outcome"] in ("same", "open") else "main"


def words(cell: Mapping[str, Any]) -> str:
    if cell["best"]:
        return "highest median"
    outcomes = {
        "same": "same as the best",
        "open": "not told apart from it",
        "slower": f"{units.percent(1 - cell['ratio_to_best'])} slower",
        "faster": f"{units.percent(cell['ratio_to_best'] - 1)} faster",
    }
    return outcomes[cell["outcome"]]


def cells_table(cells: Cells) -> Table:
    rows = [
        (
            cell["name"],
            units.number(cell["samples_per_s"]),
            units.spread(cell["low"], cell["high"]),
            str(cell["n"]),
            units.number(cell["cores_used"]),
            units.percent(cell["wait_fraction"]),
        )
        for cell in cells
    ]
    headers = ("cell", "samples/s", "interval", "windows", "cores used", "waiting")
    return Table(headers=headers, rows=rows, numeric=range(1, 6))


def curve_section(axes: Mapping[str, Sequence[Any]], varied: Sequence[str], cells: Cells) -> Section | None:
    """Rate over the first numeric axis, one curve per combination of the others."""
    numeric = next((a for a in varied if all(is_number(value) for value in axes[a])), None)
    if numeric is None or len(set(axes[numeric])) < 2:
        return None
    curves = curves_over(numeric, varied, cells)
    chart = Curves(
        curves=curves, title=f"Throughput over {WORDS[numeric]}", y_unit="samples/s", x_unit=WORDS[numeric],
        note="whiskers: 95 % intervals of the median",
    )  # fmt: skip
    return section(f"Over {WORDS[numeric]}", chart)


def curves_over(axis: str, varied: Sequence[str], cells: Cells) -> list[Curve]:
    others = [name for name in varied if name != axis]
    groups: dict[str, dict[float, Mapping[str, Any]]] = {}
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


def heat_section(axes: Mapping[str, Sequence[Any]], varied: Sequence[str], cells: Cells) -> Section | None:
    """The first two axes; the best over the others."""
    if len(varied) < 2:
        return None
    rows, columns = axes[varied[0]], axes[varied[1]]
    chart = Heat(
        values=heat_values(varied[0], varied[1], rows, columns, cells),
        rows=[phrase(varied[0], value) for value in rows],
        columns=[phrase(varied[1], value) for value in columns],
        title="Throughput",
        row_name=WORDS[varied[0]],
        column_name=WORDS[varied[1]],
        note="the best over the other axes" if len(varied) > 2 else "",
    )
    return section("Two axes at once", chart)


def heat_values(
    row_axis: str, column_axis: str, rows: Sequence[Any], columns: Sequence[Any], cells: Cells
) -> list[list[float | None]]:
    def value(row: Any, column: Any) -> float | None:
        found = [c["samples_per_s"] for c in cells if c[row_axis] == row and c[column_axis] == column]
        return max(found) if found else None

    return [[value(row, column) for column in columns] for row in rows]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
