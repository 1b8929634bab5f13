"""`feedline ladder`: one script, climbed from as it is to where its data is as good as free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import HtmlFile, Record, console, progress, show, stderr
from feedline.cli.options import Settings, command, fields
from feedline.profiling.render.sections import Page

OPTIONS = fields(
    "benchmarks.ladder.LadderConfig",
    *("source", "work", "profiled", "prepared", "num_workers", "size_px", "rounds", "window_s"),
)


@command
def ladder(
    options: Annotated[Settings, OPTIONS],
    record: Record,
    script: Annotated[
        list[str] | None, typer.Argument(metavar="[SCRIPT ARGS…]", help="Your training script; else an example.")
    ] = None,
    html: HtmlFile = None,
) -> None:
    """Profile a script, predict what each remedy gives, apply it, measure it: up to the ceiling.

    Example: feedline ladder /data/photos train.py --data /data/photos --epochs 1
    """
    from feedline.benchmarks.ladder import LadderConfig, ascend

    config = LadderConfig(argv=script or [], **options)
    with progress("ladder", "windows") as advance:
        result = ascend(config, stderr.print, advance)
    show_ladder(result, html)
    record.write(result)


def show_ladder(record: Mapping[str, Any], html: Path | None = None) -> None:
    """The rungs as a table and the sentence they make."""
    from feedline.benchmarks.pages import ladder_section, ladder_story

    show(Page(title="The ladder", sections=[ladder_section(record)]), html)
    console.print(f"\n{ladder_story(record)}")
