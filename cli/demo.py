"""`feedline demo`: the whole story on a synthetic ImageNet; ends with the ladder and one report."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedline.cli.common import Record, console, write
from feedline.cli.ladder import show_ladder
from feedline.cli.options import command

if TYPE_CHECKING:
    from feedline.benchmarks.commands import Done
    from feedline.benchmarks.demo import Chapter

OutFolder = Annotated[Path, typer.Option(help="Where everything goes; a second run reuses what is valid.")]


@command
def demo(
    record: Record,
    out: OutFolder = Path("demo-out"),
    images: Annotated[int | None, typer.Option(help="Photos to synthesise (3,000).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same in about two minutes, less exact.")] = False,
) -> None:
    """Synthesise an ImageNet, profile the first script everybody writes, prepare, verify, train, climb the ladder.

    Example: feedline demo --out demo-out
    """
    from feedline.benchmarks.demo import StoryConfig, tell
    from feedline.benchmarks.demo_page import story_page
    from feedline.profiling.render.html import document

    started = time.monotonic()
    base = StoryConfig.quick(out=out) if quick else StoryConfig(out=out)
    story = tell(base if images is None else replace(base, images=images), _begin, _end)
    report = out / "report.html"
    write(report, document(story_page(story)))
    console.rule("The ladder", align="left", style="dim")
    show_ladder(story.record("ladder"))
    console.print(f"\nall of it in {time.monotonic() - started:.0f} s\nreport: {report.resolve()}")
    steps = {name: {"seconds": done.seconds, "reused": done.reused} for name, done in story.done.items()}
    record.write({"ladder": story.record("ladder"), "report": str(report), "steps": steps})


def _begin(number: int, count: int, chapter: "Chapter") -> None:
    console.print()
    console.rule(f"{number}/{count}  {chapter.title}", align="left", style="dim")
    console.print(f"$ {chapter.step.shown}", style="dim")


def _end(chapter: "Chapter", done: "Done") -> None:
    from feedline.benchmarks.demo_page import training_function

    if chapter.keep_text:
        console.print(training_function(done.text))
    console.print("kept from an earlier run" if done.reused else f"{done.seconds:.0f} s", style="dim")
