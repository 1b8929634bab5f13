"""The whole story on a synthetic ImageNet, by feedline's own commands; and its report.

Each step is a command a user could type, run in its own process, its record kept in the output folder: a second
run keeps the data and the trained model, and measures and checks again. The folder view of the photos exists because
the first script needs image files; `prepare` reads the archives in place.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.commands import CommandError, Done, Step
from feedline.benchmarks.ladder import NAIVE
from feedline.benchmarks.measure.rounds import require_torch
from feedline.benchmarks.pages import ladder_section
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import check_limits, limited
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording
from feedline.profiling.render import profile_page
from feedline.profiling.render.sections import Code, Page, Table, section

IMAGE_PX = 64
SHARDS_PX = 256


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    out: Path = Path("demo-out")
    images: int = limited(3000, 500)
    """Photos in all; a tenth of them for validation."""
    classes: int = 10
    epochs: int = 12
    rounds: int = 6
    window_s: float = 1.5
    profile_steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        check_limits(self)
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"--out {self.out} is a file: name a folder")


QUICK: dict[str, Any] = {"images": 1500, "epochs": 4, "rounds": 3, "window_s": 1.0, "profile_steps": 30}
"""The same story in about two minutes, with wider intervals."""


@dataclass(frozen=True)
class Chapter:
    """One step and what it is for."""

    name: str
    title: str
    line: str
    """The command; what stands in braces is said by `step_of`."""
    product: str = ""
    """Under the output folder: without it the step runs again."""
    always: bool = False
    """Run it even when an earlier run's record is there: what is measured or checked is of this run."""


CHAPTERS = [
    Chapter("archives", "A synthetic ImageNet, as its archives",
            "synth {archives} --layout ilsvrc --images {images} --classes {classes} --seed {seed} --oddities",
            product="imagenet"),
    Chapter("photos", "The same photos as files, for a first script",
            "synth {photos} --layout folder --images {images} --classes {classes} --seed {seed}", product="photos"),
    Chapter("profile", "Why is that script slow?",
            "profile --legs --steps {profile_steps} {naive} {photos} --epochs 100", always=True),
    Chapter("prepare", "Prepare: archives in, two sets of shards out, in one pass",
            "prepare {archives} {prepared} --output {jpeg} --output {raw} --max-bad 0.01",
            product=f"prepared/{SHARDS_PX}-jpeg/train/manifest.json"),
    Chapter("verify", "Every promise checked", "verify {prepared}", always=True),
    Chapter("train", "Train on the shards",
            "train {shards} --model small_cnn --image-size {px} --batch-size 32 --epochs {epochs} --run {run}"),
    Chapter("ladder", "The ladder: every remedy predicted, applied, measured",
            "ladder --profiled {profiled} --prepared {prepared} --rounds {rounds} --window {window_s} "
            "--work {ladder} {archives} {naive} {photos} --epochs 100", always=True),
    Chapter("kernprof", "The training function, line by line",
            "{python} -m kernprof -l -v -o {lines} -m feedline.train.main {shards} --model small_cnn "
            "--image-size {px} --batch-size 32 --epochs 1 --run {run_lines}", always=True),
]  # fmt: skip
"""The naive script would train for long: whoever watches it ends it."""
CLEARED = {"train": "run", "kernprof": "run-lines"}
"""Folders under the output folder that a step starts without: an interrupted run's would be in its way."""


def step_of(chapter: Chapter, config: DemoConfig) -> Step:
    out = config.out
    words = {**vars(config), "naive": NAIVE, "python": sys.executable, "archives": out / "imagenet",
             "photos": out / "photos", "prepared": out / "prepared", "shards": out / "prepared" / f"{IMAGE_PX}-raw",
             "jpeg": f"{SHARDS_PX}:jpeg", "raw": f"{IMAGE_PX}:raw:square", "px": IMAGE_PX, "run": out / "run",
             "profiled": out / "records" / "profile.json", "ladder": out / "ladder", "lines": out / "train.lprof",
             "run_lines": out / "run-lines"}  # fmt: skip
    return Step(
        name=chapter.name,
        argv=[word.format(**words) for word in chapter.line.split()],
        products=[out / chapter.product] if chapter.product else [],
        inputs={"images": config.images, "classes": config.classes, "seed": config.seed},
        clears=[out / CLEARED[chapter.name]] if chapter.name in CLEARED else [],
        program=chapter.line.startswith("{python}"),
    )


def run_steps(
    config: DemoConfig, begin: Callable[[int, int, Chapter, Step], None], end: Callable[[Chapter, Done], None]
) -> dict[str, Done]:
    """Runs every chapter. Raises CommandError, naming the command that failed, and UsageError for a folder in use."""
    require_torch()
    keep = config.out / "records"
    if config.out.is_dir() and not keep.is_dir() and any(config.out.iterdir()):
        raise UsageError(f"{config.out} holds files that are not the demo's: choose a new folder")
    steps = {chapter.name: step_of(chapter, config) for chapter in CHAPTERS}
    results: dict[str, Done] = {}
    for number, chapter in enumerate(CHAPTERS, 1):
        step = steps[chapter.name]
        begin(number, len(CHAPTERS), chapter, step)
        try:
            done = commands.run(step, keep, reuse=not chapter.always, keep_text=step.program)
        except CommandError:
            if chapter.name != "verify":
                raise
            commands.run(steps["prepare"], keep)  # kept shards that fail the check are prepared again, once
            done = commands.run(step, keep)
        results[chapter.name] = done
        end(chapter, done)
    return results


def demo_page(results: dict[str, Done]) -> Page:
    """The profile's page; before its sections the ladder and the training function line by line, behind them what
    each step took and gave."""
    recording = Recording.from_dict(results["profile"].record["recording"])
    diagnosis, ladder = diagnose(recording), results["ladder"].record
    figures = [
        ("as it is", units.rate(ladder["rungs"][0]["samples_per_s"])),
        ("top of the ladder", units.rate(ladder["rungs"][-1]["samples_per_s"])),
        ("gain", units.times(ladder["gain"])),
        ("if data were free", units.rate(ladder["ceiling_samples_per_s"])),
    ]
    prepared, checked, epochs = results["prepare"].record, results["verify"].record, results["train"].record["epochs"]
    gave = {
        "prepare": f"{units.number(prepared['output_samples'])} of {units.number(prepared['input_samples'])} "
        f"samples, {prepared['quarantined']} in quarantine, {units.rate(prepared['samples_per_s'])}",
        "verify": f"{units.number(checked['checked_samples'])} samples, every promise holds",
        "train": f"top-1 {units.percent(epochs[-1]['top1'])}, waiting {units.percent(epochs[-1]['wait_fraction'])}",
    }
    steps = [
        (name, units.seconds(done.seconds), "kept from an earlier run" if done.reused else "", gave.get(name, ""))
        for name, done in results.items()
    ]
    lines = training_function(results["kernprof"].text)
    return Page(
        title="From waiting to training",
        verdict=replace(profile_page.verdict(diagnosis), figures=figures),
        sections=[
            ladder_section(ladder),
            section("The training function, line by line", Code(lines) if lines else None,
                    lede="As kernprof prints it."),
            *profile_page.sections(recording, diagnosis),
            section("What it took", Table(headers=("step", "time", "", "gave"), rows=steps, numeric=(1,))),
        ],
        kicker="feedline demo",
        subtitle="A synthetic ImageNet, the training script everybody writes first, and what it takes to feed it.",
    )  # fmt: skip


def training_function(text: str) -> str:
    """Of the functions that kernprof shows, the training loop's."""
    blocks = text.split("Total time:")[1:]
    chosen = next((block for block in blocks if "Function: fit " in block), None)
    return f"Total time:{chosen}".rstrip() if chosen else ""
