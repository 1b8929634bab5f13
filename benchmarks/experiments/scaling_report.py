"""A study's record as a page and as a Markdown table. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units
from feedline.profiling.render.profile_page import host_facts
from feedline.profiling.render.sections import Curve, Curves, Facts, Page, Table, Verdict, section

Row = Mapping[str, Any]
HEADERS = ("on", "batch per rank", "global batch", "samples/s", "epoch", "speed-up", "top-1", "waiting")


def rows(record: Row) -> list[tuple[str, ...]]:
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


def markdown(record: Row) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (HEADERS, ("---",) * len(HEADERS), *rows(record))]
    return "\n".join([method(record), "", *lines]) + "\n"


def method(record: Row) -> str:
    workers = record["num_workers"]
    chosen = (
        "loader workers as `feedline train` chooses them" if workers is None else count_of(workers, "loader worker")
    )
    words = (
        f"{record['model']} at {record['image_size_px']} px on {record['usable_cores']} cores of "
        f"{record['host']['cpu']} ({record['device']}), {count_of(record['epochs'], 'epoch')} after one of "
        f"warm-up, {record['n']} repeats in random order, {chosen} per process; mean ± standard deviation; "
        f"preparing, start-up, evaluation and checkpoints are not timed."
    )
    on_one_host = any(cell["nodes"] > 1 for cell in record["cells"])
    return words + " Nodes are agents on one host and share its cores." * on_one_host


def study_page(record: Row) -> Page:
    cells: list[dict[str, Any]] = record["cells"]
    best = max(cells, key=lambda cell: cell["samples_per_s"])
    low = best["samples_per_s"] - best["samples_per_s_deviation"]
    near = [one for one in cells if one is not best and one["samples_per_s"] + one["samples_per_s_deviation"] >= low]
    words = f"{layout(best).capitalize()} and a global batch of {best['batch_global']} train fastest"
    words += f"; {count_of(len(near), 'other cell')} within a standard deviation of it." if near else "."
    measured_on = {**host_facts(record["host"]), "usable cores": record["usable_cores"]}
    return Page(
        title="Scaling study",
        verdict=Verdict(words=words, evidence=[method(record)]),
        sections=[
            section("Time", over_batch(cells, "epoch_s", "Time of one epoch", "s")),
            section("Throughput", over_batch(cells, "samples_per_s", "Throughput", "samples/s")),
            section("Speed-up", over_batch(cells, "speed_up", "Speed-up beside the fewest", "times")),
            section("Accuracy", over_batch(cells, "top1", "Top-1 at the end", "%", factor=100.0)),
            section("Every cell", Table(headers=HEADERS, rows=rows(record), numeric=range(1, len(HEADERS)))),
            section("Measured on", Facts(measured_on)),
        ],
        kicker="feedline study",
    )


def over_batch(cells: Sequence[Row], name: str, title: str, unit: str, factor: float = 1.0) -> Curves:
    """One curve per layout over the global batch, with standard deviations."""
    curves: list[Curve] = []
    for group in dict.fromkeys(map(layout, cells)):
        members = [cell for cell in cells if layout(cell) == group]
        ends = [[factor * (cell[name] + sign * cell[f"{name}_deviation"]) for sign in (-1, 1)] for cell in members]
        points = [(float(cell["batch_global"]), factor * cell[name]) for cell in members]
        curves.append(Curve(name=group, points=points, intervals=[(low, high) for low, high in ends]))
    title, interval = f"{title} over the global batch", "one standard deviation to each side"
    return Curves(curves=curves, title=title, y_unit=unit, x_unit="samples", interval=interval)


def layout(cell: Row) -> str:
    """`2 processes`, `3 nodes of 1 process`, `4 GPUs`."""
    own = count_of(cell["procs"], "GPU" if cell["device"] == "cuda" else "process")
    return own if cell["nodes"] == 1 else f"{cell['nodes']} nodes of {own}"
