"""`feedline demo`: the whole story on a synthetic ImageNet; ends with the ladder and one report."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, write

if TYPE_CHECKING:
    from feedline.benchmarks.commands import Done, Step
    from feedline.benchmarks.demo import Chapter


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes; a second run reuses what is valid.")] = Path(
        "demo-out"
    ),
    images: Annotated[int | None, typer.Option(help="Photos to synthesise (3,000).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same in about two minutes, less exact.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Synthesise an ImageNet, profile the first script everybody writes, prepare, verify, train, climb the ladder.

    Example: feedline demo --out demo-out
    """
    from feedline.benchmarks.demo import QUICK, DemoConfig, demo_page, run_steps
    from feedline.cli.ladder import show
    from feedline.profiling.render.html import document

    record, started = Record("demo", json_file), time.monotonic()
    settings: dict[str, Any] = {**(QUICK if quick else {}), **({} if images is None else {"images": images})}
    results = run_steps(DemoConfig(out=out, **settings), _begin, _end)
    report, ladder = out / "report.html", results["ladder"].record
    write(report, document(demo_page(results)))
    console.rule("[bold]The ladder", align="left")
    show(ladder)
    console.print(f"\nall of it in {time.monotonic() - started:.0f} s")
    console.print(f"report: {report.resolve()}", markup=False, soft_wrap=True)
    steps = {name: {"seconds": done.seconds, "reused": done.reused} for name, done in results.items()}
    record.write(json_file, {"ladder": ladder, "report": str(report), "steps": steps})


def _begin(number: int, count: int, chapter: "Chapter", step: "Step") -> None:
    console.print()
    console.rule(f"[bold]{number}/{count}  {chapter.title}", align="left", style="dim")
    console.print(f"$ {step.shown}", markup=False, soft_wrap=True, style="dim")


def _end(chapter: "Chapter", done: "Done") -> None:
    from feedline.benchmarks.demo import training_function

    if done.text:
        # kernprof's table as it is: folded lines would be unreadable
        console.print(training_function(done.text), markup=False, highlight=False, soft_wrap=True)
    words = "kept from an earlier run" if done.reused else f"{done.seconds:.0f} s"
    console.print(words, style="dim")
