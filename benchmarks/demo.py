"""The whole story on a synthetic ImageNet, told with feedline's own commands.

Each step is a command a user could type, run in its own process, its record kept in the output folder: a second
run keeps the data and the trained model, and measures and checks again. The folder view of the photos exists because
the first script needs image files; `prepare` reads the archives in place.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.commands import CommandError, Done, Step
from feedline.benchmarks.ladder import NAIVE, stamp
from feedline.benchmarks.measure.rounds import require_torch
from feedline.benchmarks.pages import ladder_section
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record import units
from feedline.profiling.record.recording import Recording
from feedline.profiling.render import profile_page
from feedline.profiling.render.sections import (
    Code,
    Curve,
    Curves,
    Facts,
    Page,
    Section,
    Stack,
    Stacks,
    Table,
    section,
)

IMAGE_PX = 64
SHARDS_PX = 256


@dataclass(frozen=True, kw_only=True)
class StoryConfig:
    out: Path = Path("demo-out")
    images: int = 3000
    """Photos in all; a tenth of them for validation."""
    classes: int = 10
    epochs: int = 12
    rounds: int = 6
    window_s: float = 1.5
    profile_steps: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 500:
            raise UsageError(f"--images {self.images}: at least 500, or there is nothing to measure")
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"--out {self.out} is a file: name a folder")


QUICK: dict[str, Any] = {"images": 1500, "epochs": 4, "rounds": 3, "window_s": 1.0, "profile_steps": 30}
"""The same story in about two minutes, with wider intervals."""


@dataclass(frozen=True, kw_only=True)
class Chapter(Step):
    """One step and what it is for."""

    title: str
    keep_text: bool = False
    always: bool = False
    """Run it even when an earlier run's record is there: what is measured or checked is of this run."""

    def run(self, folder: Path) -> Done:
        return commands.run(self, folder, reuse=not self.always, keep_text=self.keep_text)


@dataclass(kw_only=True)
class Story:
    done: dict[str, Done] = field(default_factory=dict[str, Done])

    def record(self, name: str) -> dict[str, Any]:
        return self.done[name].record


def tell(
    config: StoryConfig, begin: Callable[[int, int, Chapter], None], end: Callable[[Chapter, Done], None]
) -> Story:
    """Runs every chapter. Raises CommandError, naming the command that failed, and UsageError for a folder in use."""
    require_torch()
    story, chapters, keep = Story(), chapters_of(config), config.out / "records"
    if config.out.is_dir() and not keep.is_dir() and any(config.out.iterdir()):
        raise UsageError(f"{config.out} holds files that are not the demo's: choose a new folder")
    for number, chapter in enumerate(chapters, 1):
        begin(number, len(chapters), chapter)
        try:
            done = chapter.run(keep)
        except CommandError:
            if chapter.name != "verify":
                raise
            # kept shards that fail the check are prepared again, once
            commands.run(next(one for one in chapters if one.name == "prepare"), keep)
            done = chapter.run(keep)
        story.done[chapter.name] = done
        end(chapter, done)
    return story


def chapters_of(config: StoryConfig) -> list[Chapter]:
    out = config.out
    archives, photos, prepared = str(out / "imagenet"), str(out / "photos"), str(out / "prepared")
    script = [str(NAIVE), photos, "--epochs", "100"]  # whoever watches it ends it
    made = {"images": config.images, "classes": config.classes, "seed": config.seed}
    synth = [word for name, value in made.items() for word in (f"--{name}", str(value))]
    outputs = ["--output", f"{SHARDS_PX}:jpeg", "--output", f"{IMAGE_PX}:raw:square"]
    training = [str(out / "prepared" / f"{IMAGE_PX}-raw"), "--model", "small_cnn", "--image-size", str(IMAGE_PX),
                "--batch-size", "32"]  # fmt: skip
    kernprof = [sys.executable, "-m", "kernprof", "-l", "-v", "-o", str(out / "train.lprof"), "-m"]
    return [
        Chapter(
            name="archives",
            title="A synthetic ImageNet, as its archives",
            argv=["synth", archives, "--layout", "ilsvrc", *synth, "--oddities"],
            products=[out / "imagenet"],
        ),
        Chapter(
            name="photos",
            title="The same photos as files, for a first script",
            argv=["synth", photos, "--layout", "folder", *synth],
            products=[out / "photos"],
        ),
        Chapter(
            name="profile",
            title="Why is that script slow?",
            argv=["profile", "--legs", "--steps", str(config.profile_steps), *script],
            inputs={**made, "script": stamp(NAIVE)},
            always=True,
        ),
        Chapter(
            name="prepare",
            title="Prepare: archives in, two sets of shards out, in one pass",
            argv=["prepare", archives, prepared, *outputs, "--max-bad", "0.01"],
            products=[out / "prepared" / f"{SHARDS_PX}-jpeg" / "train" / "manifest.json"],
            inputs=made,
        ),
        Chapter(name="verify", title="Every promise checked", argv=["verify", prepared], always=True),
        Chapter(
            name="train",
            title="Train on the shards",
            argv=["train", *training, "--epochs", str(config.epochs), "--run", str(out / "run")],
            inputs=made,
            clears=[out / "run"],
        ),
        Chapter(
            name="ladder",
            title="The ladder: every remedy predicted, applied, measured",
            argv=["ladder", "--profiled", str(out / "records" / "profile.json"), "--prepared", prepared, "--rounds",
                  str(config.rounds), "--window", str(config.window_s), "--work", str(out / "ladder"), archives,
                  *script],
            inputs=made,
            always=True,
        ),
        Chapter(
            name="kernprof",
            title="The training function, line by line",
            program=True,
            argv=[*kernprof, "feedline.train.main", *training, "--epochs", "1", "--run", str(out / "run-lines")],
            inputs=made,
            clears=[out / "run-lines"],
            keep_text=True,
            always=True,
        ),
    ]  # fmt: skip


# --- its report ------------------------------------------------------------------------------------------


def demo_page(story: Story) -> Page:
    """The profile's page, and between its verdict and its sections the ladder, what was prepared and trained, and the
    training function line by line; at the end what each step cost."""
    recording = Recording.from_dict(story.record("profile")["recording"])
    diagnosis, ladder = diagnose(recording), story.record("ladder")
    rungs = ladder["rungs"]
    figures = [
        ("as it is", units.rate(rungs[0]["samples_per_s"])),
        ("top of the ladder", units.rate(rungs[-1]["samples_per_s"])),
        ("gain", units.times(ladder["gain"])),
        ("if data were free", units.rate(ladder["ceiling_samples_per_s"])),
    ]
    lines = training_function(story.done["kernprof"].text)
    steps = [
        (name, units.seconds(done.seconds), "kept from an earlier run" if done.reused else "")
        for name, done in story.done.items()
    ]
    return Page(
        title="From waiting to training",
        verdict=replace(profile_page.verdict(diagnosis), figures=figures),
        sections=[
            ladder_section(ladder),
            prepared_section(story.record("prepare"), story.record("verify")),
            training_section(story.record("train").get("epochs") or []),
            section("The training function, line by line", Code(lines) if lines else None,
                    lede="As kernprof prints it."),
            *profile_page.sections(recording, diagnosis),
            section("What it took", Table(headers=("step", "time", ""), rows=steps, numeric=(1,))),
        ],
        kicker="feedline demo",
        subtitle="A synthetic ImageNet, the training script everybody writes first, and what it takes to feed it.",
    )  # fmt: skip


def prepared_section(prepared: Mapping[str, Any], checked: Mapping[str, Any]) -> Section | None:
    reasons = ", ".join(f"{count} {reason}" for reason, count in (prepared.get("reasons") or {}).items()) or "none"
    facts = {
        "samples": f"{units.number(prepared.get('output_samples'))} of {units.number(prepared.get('input_samples'))}",
        "in quarantine": f"{prepared.get('quarantined', 0)} ({reasons})",
        "shards": prepared.get("shards", units.UNKNOWN),
        "bytes": f"{units.size(prepared.get('bytes_in'))} → {units.size(prepared.get('bytes_out'))}",
        "speed": f"{units.rate(prepared.get('samples_per_s'))}, "
        f"{units.number(prepared.get('samples_per_s_per_core'))} per core",
        "verified": f"{units.number(checked.get('checked_samples'))} samples, "
        + ("every promise holds" if checked.get("ok") else "problems found"),
    }
    stages = {name: seconds for name, seconds in (prepared.get("stage_s") or {}).items() if seconds}
    chart = Stacks(total=Stack(label="all tasks", parts=stages), title="Where preparing spent its time")
    lede = f"One Spark pass over the archives, in place: {SHARDS_PX} px JPEG and {IMAGE_PX} px raw."
    return section("The prepared shards", Facts(facts), chart if stages else None, lede=lede)


def training_section(epochs: Sequence[Mapping[str, Any]]) -> Section | None:
    curves = [
        Curve(name=name, points=[(e["epoch"], 100 * e[key]) for e in epochs if e.get(key) is not None])
        for name, key in (("top-1", "top1"), ("top-5", "top5"))
    ]
    shown = {"train_loss": units.number, "top1": units.percent, "top5": units.percent, "samples_per_s": units.number,
             "wait_fraction": units.percent}  # fmt: skip
    rows = [(str(e["epoch"]), *(show(e.get(key)) for key, show in shown.items())) for e in epochs]
    accuracy = Curves(curves=curves, title="Accuracy on the validation split", y_unit="%", x_unit="epoch")
    headers = ("epoch", "loss", "top-1", "top-5", "samples/s", "waiting for data")
    return section(
        "Training on the shards",
        accuracy if curves[0].points else None,
        Table(headers=headers, rows=rows, numeric=range(6)),
        lede=f"The small CNN on {IMAGE_PX} px raw shards; every validation sample exactly once.",
    )


def training_function(text: str) -> str:
    """Of the functions that kernprof shows, the training loop's."""
    blocks = text.split("Total time:")[1:]
    chosen = next((block for block in blocks if "Function: fit " in block), None)
    return f"Total time:{chosen}".rstrip() if chosen else ""
