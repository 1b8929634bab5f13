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
from feedline.benchmarks.commands import Done, Step
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

    title: str
    step: Step
    always: bool = False
    """Run it even when an earlier run's record is there: what is measured or checked is of this run."""


def chapters(config: DemoConfig) -> list[Chapter]:
    """The naive script would train for long: whoever watches it ends it."""
    out = config.out
    archives, photos, prepared, records = out / "imagenet", out / "photos", out / "prepared", out / "records"
    size = {"images": config.images, "classes": config.classes, "seed": config.seed}
    sized = [word for name, value in size.items() for word in (f"--{name}", value)]
    script = [NAIVE, photos, "--epochs", 100]
    training = [prepared / f"{IMAGE_PX}-raw", "--model", "small_cnn", "--image-size", IMAGE_PX, "--batch-size", 32]

    def chapter(
        title: str, *words: object, name: str = "", product: Path | None = None, always: bool = False, **more: Any
    ) -> Chapter:
        """Without its product a step runs again; `clears` are folders it starts without."""
        products = [product] if product else []
        argv = [str(word) for word in words]
        return Chapter(title, Step(name=name or argv[0], argv=argv, products=products, inputs=size, **more), always)

    return [
        chapter("A synthetic ImageNet, as its archives",
                "synth", archives, "--layout", "ilsvrc", *sized, "--oddities", name="archives", product=archives),
        chapter("The same photos as files, for a first script",
                "synth", photos, "--layout", "folder", *sized, name="photos", product=photos),
        chapter("Why is that script slow?",
                "profile", "--legs", "--steps", config.profile_steps, *script, always=True),
        chapter("Prepare: archives in, two sets of shards out, in one pass",
                "prepare", archives, prepared, "--output", f"{SHARDS_PX}:jpeg", "--output", f"{IMAGE_PX}:raw:square",
                "--max-bad", 0.01, product=prepared / f"{SHARDS_PX}-jpeg" / "train" / "manifest.json"),
        chapter("Every promise checked", "verify", prepared, always=True),
        chapter("Train on the shards",
                "train", *training, "--epochs", config.epochs, "--run", out / "run", clears=[out / "run"]),
        chapter("The ladder: every remedy predicted, applied, measured",
                "ladder", "--profiled", records / "profile.json", "--prepared", prepared, "--rounds", config.rounds,
                "--window", config.window_s, "--work", out / "ladder", archives, *script, always=True),
        chapter("The training function, line by line",
                sys.executable, "-m", "kernprof", "-l", "-v", "-o", out / "train.lprof", "-m", "feedline.train.main",
                *training, "--epochs", 1, "--run", out / "run-lines", name="kernprof", always=True, program=True,
                clears=[out / "run-lines"]),
    ]  # fmt: skip


def run_steps(
    config: DemoConfig, begin: Callable[[int, int, Chapter], None], end: Callable[[Done], None]
) -> dict[str, Done]:
    """Runs every chapter. Raises CommandError, naming the command that failed, and UsageError for a folder in use."""
    require_torch()
    keep = config.out / "records"
    if config.out.is_dir() and not keep.is_dir() and any(config.out.iterdir()):
        raise UsageError(f"{config.out} holds files that are not the demo's: choose a new folder")
    story = chapters(config)
    results: dict[str, Done] = {}
    for number, chapter in enumerate(story, 1):
        step = chapter.step
        begin(number, len(story), chapter)
        done = commands.run(step, keep, reuse=not chapter.always, keep_text=step.program)
        results[step.name] = done
        end(done)
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
            *profile_page.sections(diagnosis),
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
