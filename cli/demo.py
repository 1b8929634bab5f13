"""`feedline demo`: the whole story on a synthetic ImageNet; ends with the ladder and one report."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from feedline.benchmarks.demo import QUICK, DemoConfig, demo_page, run_steps
    from feedline.profiling.render.html import document

    started = time.monotonic()
    settings: dict[str, Any] = {**(QUICK if quick else {}), **({} if images is None else {"images": images})}
    results = run_steps(DemoConfig(out=out, **settings), _begin, _end)
    report, result = out / "report.html", results["ladder"].record
    write(report, document(demo_page(results)))
    console.rule("The ladder", align="left", style="dim")
    show_ladder(result)
    console.print(f"\nall of it in {time.monotonic() - started:.0f} s\nreport: {report.resolve()}")
    steps = {name: {"seconds": done.seconds, "reused": done.reused} for name, done in results.items()}
    record.write({"ladder": result, "report": str(report), "steps": steps})


def _begin(number: int, count: int, chapter: "Chapter") -> None:
    console.print()
    console.rule(f"{number}/{count}  {chapter.title}", align="left", style="dim")
    console.print(f"$ {chapter.step.shown}", style="dim")


def _end(done: "Done") -> None:
    from feedline.benchmarks.demo import training_function

    if done.text:
        console.print(training_function(done.text))
    console.print("kept from an earlier run" if done.reused else f"{done.seconds:.0f} s", style="dim")
