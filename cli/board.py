"""The tasks of a study while they run, a line for each that ends and, on a terminal, a table of those at work; and
the page of what came of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from feedline.cli.common import Record, console, show, stderr, write
from feedline.cli.study_page import STATES, settings
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.text import printable
from feedline.profiling.record import units
from feedline.profiling.render.sections import Page

PAGE = "study.html"


def carry_out(kind: str, study: Path, told: Mapping[str, Any], device: str, crew: Any, total: int) -> None:
    """Works on a study's `total` tasks until none is open. `kind` and `told` are for the workers (study/work.py);
    `crew` is a CrewConfig. Raises FeedlineError where the study cannot go on."""
    from feedline.train.study.crew import hire, work_on
    from feedline.train.study.tasks import Tasks

    tasks = Tasks(study)
    seen = set(tasks.records())
    orders = hire(kind, study, told, device, crew)
    with Live(
        console=stderr, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:

        def look() -> None:
            records = tasks.records()
            for number in sorted(records.keys() - seen):
                stderr.print(line(records[number]))
            seen.update(records)
            if stderr.is_terminal:
                live.update(table(tasks.running(), len(records), total), refresh=True)

        work_on(orders, crew.ranks, tasks, look)


def tell(study: Path, result: Mapping[str, Any], page: Page, record: Record) -> None:
    """What a study's verb ends with. `result` has `counts` of tasks by their state. Raises FeedlineError where none
    came to its end, nor will."""
    from feedline.profiling.render.html import document

    record.write(dict(result))
    write(study / PAGE, document(page))
    show(page)
    console.print(f"\nstudy                 {study / PAGE}")
    if not {"complete", "running", "open"} & result["counts"].keys():
        raise FeedlineError(f"no task of {study} came to its end: see the errors above")


def line(record: Mapping[str, Any]) -> str:
    """Of a task that has ended."""
    state = STATES.get(record["state"], "failed")
    top1 = "" if record["value"] is None else f" at top-1 {units.percent(record['value'])}"
    said = [f"{record['name']}: {state}{top1}", settings(record["params"]), record.get("error"),
            units.seconds(record["seconds"])]  # fmt: skip
    return ", ".join(filter(None, said))


def table(running: Mapping[int, Mapping[str, Any]], done: int, total: int) -> Table:
    """Of the tasks at work, on whichever host."""
    shown = Table(title=f"{done} of {total} done, {len(running)} at work", title_justify="left", box=None)
    for header in ("task", "host", "epoch", "top-1", "settings"):
        shown.add_column(header)
    for number, lease in running.items():
        at: Mapping[str, Any] = lease.get("progress", {})
        epoch = f"{at['epoch']} of {at['epochs']}" if "epoch" in at else ""
        words = (str(number), lease["host"], epoch, units.percent(at.get("top1")), settings(at.get("params", {})))
        shown.add_row(*map(printable, words))
    return shown
