"""A study's record as a page and as a Markdown table. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.profiling.record import units
from feedline.profiling.render.profile_page import host_facts
from feedline.profiling.render.sections import Curve, Curves, Facts, Page, Table, Verdict, section

Cells = Sequence[Mapping[str, Any]]
HEADERS = ("on", "batch per rank", "global batch", "samples/s", "epoch", "speed-up", "top-1", "waiting")


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            layout(cell),
            str(cell["batch_per_rank"]),
            str(cell["batch_global"]),
            f"{cell['samples_per_s']:,.0f} ± {cell['samples_per_s_deviation']:,.0f}",
            f"{cell['epoch_s']:.2f} ± {cell['epoch_s_deviation']:.2f} s",
            f"{cell['speed_up']:.2f} ± {cell['speed_up_deviation']:.2f}",
            f"{cell['top1']:.1%} ± {cell['top1_deviation']:.1%}",
            units.percent(cell["wait_fraction"]),
        )
        for cell in record["cells"]
    ]


def markdown(record: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(HEADERS)} |", f"|{'---|' * len(HEADERS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows(record)]
    return "\n".join([method(record), "", *lines]) + "\n"


def method(record: Mapping[str, Any]) -> str:
    host = record["host"]
    apart = {
        True: " Nodes are network namespaces of this host and share its cores.",
        False: " Nodes are agents on one host, without namespaces, and share its cores.",
        None: "",
    }[record.get("namespaces")]
    return (
        f"{record['model']} at {record['image_size_px']} px on {record['usable_cores']} cores of {host['cpu']} "
        f"({record['device']}), {counted(record['epochs'], 'epoch')} after one of warm-up, {record['n']} repeats in "
        f"random order, {workers_of(record)} per process; mean ± standard deviation; preparing, start-up, evaluation "
        "and checkpoints are not timed." + apart
    )


def workers_of(record: Mapping[str, Any]) -> str:
    count = record.get("num_workers")
    return "loader workers as `feedline train` chooses them" if count is None else counted(count, "loader worker")


def counted(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def study_page(record: Mapping[str, Any]) -> Page:
    """Pure."""
    cells: list[dict[str, Any]] = record["cells"]
    best = max(cells, key=lambda cell: cell["samples_per_s"])
    low = best["samples_per_s"] - best["samples_per_s_deviation"]
    near = [one for one in cells if one is not best and one["samples_per_s"] + one["samples_per_s_deviation"] >= low]
    words = f"{layout(best).capitalize()} and a global batch of {best['batch_global']} train fastest"
    words += f"; {counted(len(near), 'other cell')} within a standard deviation of it." if near else "."
    measured_on = {**host_facts(record["host"]), "usable cores": record["usable_cores"]}
    return Page(
        title="Scaling study",
        verdict=Verdict(words=words, evidence=[method(record)]),
        sections=[
            section("Time", over_batch(cells, "epoch_s", title="Time of one epoch", y_unit="s")),
            section("Throughput", over_batch(cells, "samples_per_s", title="Throughput", y_unit="samples/s")),
            section("Speed-up", over_batch(cells, "speed_up", title="Speed-up beside the fewest", y_unit="times")),
            section("Accuracy", over_batch(cells, "top1", title="Top-1 at the end", y_unit="%", factor=100.0)),
            section("Every cell", Table(headers=HEADERS, rows=rows(record), numeric=range(1, len(HEADERS)))),
            section("Measured on", Facts(measured_on)),
        ],
        kicker="feedline study",
    )  # fmt: skip


def over_batch(cells: Cells, name: str, *, title: str, y_unit: str, factor: float = 1.0) -> Curves:
    """One curve per layout over the global batch, with standard deviations."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(layout(cell), []).append(cell)
    curves = [
        Curve(
            name=group,
            points=[(float(cell["batch_global"]), factor * cell[name]) for cell in members],
            intervals=[
                (factor * (cell[name] - cell[f"{name}_deviation"]), factor * (cell[name] + cell[f"{name}_deviation"]))
                for cell in members
            ],
        )
        for group, members in groups.items()
    ]
    note = "whiskers: one standard deviation to each side"
    return Curves(curves=curves, title=f"{title} over the global batch", y_unit=y_unit, x_unit="samples", note=note)


def layout(cell: Mapping[str, Any]) -> str:
    """`2 processes`, `3 nodes of 1 process`, `4 GPUs`."""
    noun = "GPU" if cell.get("device") == "cuda" else "process"
    own = counted(cell["procs"], noun)
    return own if cell.get("nodes", 1) == 1 else f"{cell['nodes']} nodes of {own}"
