"""`feedline prune`: lottery tickets from a finished run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from feedline.cli.board import carry_out, tell
from feedline.cli.common import Record
from feedline.cli.options import Settings, command, fields
from feedline.cli.study_page import sparsity_chart, troubles
from feedline.pipeline.base.process import signals_held
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units
from feedline.profiling.render.sections import Page, Points, Table, section

OPTIONS = fields("train.study.prune.PruneConfig", negatable=True, run={"metavar": "RUN", "show_default": False})
CREW = fields("train.study.crew.CrewConfig")


@command
def prune(options: Annotated[Settings, OPTIONS], crew: Annotated[Settings, CREW], record: Record) -> None:
    """Prune a finished run, set what is left back to epochs that it kept, and train it again.

    Example: feedline prune RUN --keep 0.4,0.2,0.1 --rewind 0,1,4 --seeds 3 --jobs 2
    """
    with signals_held():  # torch, while it is imported, takes a Ctrl-C for a module that is missing
        from feedline.train.study import prune as kind
        from feedline.train.study.crew import CrewConfig

    told = kind.settings(kind.PruneConfig(**options))
    study = Path(told["study"])
    work = kind.begin(study, told)
    carry_out(kind.__name__, study, told, work.config.device, CrewConfig(**crew), len(work.tickets))
    result = work.record()
    tell(study, result, prune_page(result), record)


def prune_page(record: Mapping[str, Any]) -> Page:
    """Of the record that `--json` has."""
    tasks = record["tasks"]
    empty = {
        (task["keep"], layer): None for task in tasks for layer in task.get("empty_layers", ()) if not task["control"]
    }
    said = [f"Of {layer} nothing stays at {units.percent(keep)} of the weights." for keep, layer in empty]
    spent_s = sum(task["seconds"] for task in tasks)
    counted = ", ".join(f"{number} {state}" for state, number in record["counts"].items())
    return Page(
        title=f"Pruning: {record['run']}",
        subtitle=f"{count_of(len(tasks), 'task')}: {counted}; {units.seconds(spent_s)} in all",
        sections=[
            section("Accuracy over sparsity", sparsity_chart(tasks), accuracy_table(tasks)),
            section("Empty layers", Points(said) if said else None),
            troubles(tasks),
        ],
        kicker="feedline prune",
    )


def accuracy_table(tasks: Sequence[Mapping[str, Any]]) -> Table | None:
    """A row for each epoch rewound to and share kept; means over the seeds, and the smallest and largest."""
    known: dict[tuple[int, float, str | None], list[float]] = defaultdict(list)
    zeros: dict[tuple[int, float], int] = {}
    for task in tasks:
        if task["top1"] is not None:
            known[task["rewind"], task["keep"], task["control"]].append(task["top1"])
            zeros[task["rewind"], task["keep"]] = task["zeros"]
    rows = [
        (rewind, units.percent(keep), f"{zeros[rewind, keep]:,}", *(_spread(known[rewind, keep, control])
         for control in (None, "random")), _spread(known[rewind, 1.0, "full"]))
        for rewind, keep in sorted(zeros, key=lambda place: (place[0], -place[1]))
        if keep < 1
    ]  # fmt: skip
    headers = ("rewound to epoch", "kept", "zeros", "winning tickets", "random masks", "full network")
    caption = "Top-1 of the retrained networks: mean over the seeds, smallest and largest"
    return Table(headers=headers, rows=rows, numeric=range(6), caption=caption) if rows else None


def _spread(values: Sequence[float]) -> str:
    if not values:
        return units.UNKNOWN
    ends = f" ({units.number(100 * min(values))}–{units.number(100 * max(values))})" if len(values) > 1 else ""
    return units.percent(sum(values) / len(values)) + ends
