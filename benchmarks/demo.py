"""The whole story on a synthetic ImageNet, told with feedline's own commands.

Each step is a command a user could type, run in its own process, its record kept in the output folder: a second
run keeps the data and the trained model, and measures and checks again. The folder view of the photos exists because
the first script needs image files; `prepare` reads the archives in place.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.commands import CommandError, Done, Step
from feedline.benchmarks.ladder_run import NAIVE, stamp
from feedline.benchmarks.measure.rounds import require_torch
from feedline.pipeline.base.errors import UsageError

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

    @classmethod
    def quick(cls, **changed: Any) -> "StoryConfig":
        """The same story in about two minutes, with wider intervals."""
        return replace(cls(images=1500, epochs=4, rounds=3, window_s=1.0, profile_steps=30), **changed)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One step and what it is for."""

    step: Step
    title: str
    keep_text: bool = False
    always: bool = False
    """Run it even when an earlier run's record is there: what is measured or checked is of this run."""


@dataclass(kw_only=True)
class Story:
    config: StoryConfig
    done: dict[str, Done] = field(default_factory=dict[str, Done])

    def record(self, name: str) -> dict[str, Any]:
        return self.done[name].record if name in self.done else {}

    @property
    def seconds(self) -> float:
        """Of everything that was run now."""
        return sum(done.seconds for done in self.done.values() if not done.reused)


Begin = Callable[[int, int, Chapter], None]
End = Callable[[Chapter, Done], None]


def tell(config: StoryConfig, begin: Begin, end: End) -> Story:
    """Runs every chapter. Raises CommandError, naming the command that failed, and UsageError for a folder in use."""
    require_torch()
    story = Story(config=config)
    chapters = chapters_of(config)
    keep = config.out / "records"
    if config.out.is_dir() and not keep.is_dir() and any(config.out.iterdir()):
        raise UsageError(f"{config.out} holds files that are not the demo's: choose a new folder")
    for number, chapter in enumerate(chapters, 1):
        begin(number, len(chapters), chapter)
        done = None if chapter.always else commands.reusable(chapter.step, keep)
        if done is None:
            done = run(chapter, chapters, keep)
        story.done[chapter.step.name] = done
        end(chapter, done)
    return story


def run(chapter: Chapter, chapters: list[Chapter], keep: Path) -> Done:
    """A failed check of kept shards has them prepared again, once."""
    try:
        return commands.run(chapter.step, keep, keep_text=chapter.keep_text)
    except CommandError:
        if chapter.step.name != "verify":
            raise
    prepare = next(one for one in chapters if one.step.name == "prepare")
    commands.run(prepare.step, keep)
    return commands.run(chapter.step, keep)


def chapters_of(config: StoryConfig) -> list[Chapter]:
    archives, photos, prepared = config.out / "imagenet", config.out / "photos", config.out / "prepared"
    script = [str(NAIVE), str(photos), "--epochs", "100"]  # whoever watches it ends it
    made = made_of(config)
    return [
        synth(config, archives, "archives", "ilsvrc", ["--oddities"], "A synthetic ImageNet, as its archives"),
        synth(config, photos, "photos", "folder", [], "The same photos as files, for a first script"),
        Chapter(
            step=Step(
                name="profile",
                argv=["profile", "--legs", "--steps", str(config.profile_steps), *script],
                inputs={**made, "script": stamp(NAIVE)},
            ),
            title="Why is that script slow?",
            always=True,
        ),
        Chapter(
            step=Step(
                name="prepare",
                argv=["prepare", str(archives), str(prepared), "--output", f"{SHARDS_PX}:jpeg", "--output",
                      f"{IMAGE_PX}:raw:square", "--max-bad", "0.01"],
                products=[prepared / f"{SHARDS_PX}-jpeg" / "train" / "manifest.json"],
                inputs=made,
            ),
            title="Prepare: archives in, two sets of shards out, in one pass",
        ),
        Chapter(step=Step(name="verify", argv=["verify", str(prepared)]), title="Every promise checked", always=True),
        Chapter(
            step=Step(
                name="train", argv=["train", *training(config, config.epochs, "run")], inputs=made,
                clears=[config.out / "run"],
            ),
            title="Train on the shards",
        ),
        Chapter(
            step=Step(
                name="ladder",
                argv=["ladder", "--profiled", str(config.out / "records" / "profile.json"), "--prepared",
                      str(prepared), "--rounds", str(config.rounds), "--window", str(config.window_s), "--work",
                      str(config.out / "ladder"), str(archives), *script],
                inputs=made,
            ),
            title="The ladder: every remedy predicted, applied, measured",
            always=True,
        ),
        Chapter(
            step=Step(
                name="kernprof",
                program=[sys.executable, "-m", "kernprof", "-l", "-v", "-o", str(config.out / "train.lprof"), "-m",
                         "feedline.train.main"],
                argv=training(config, 1, "run-lines"),
                inputs=made,
                clears=[config.out / "run-lines"],
            ),
            title="The training function, line by line",
            keep_text=True,
            always=True,
        ),
    ]  # fmt: skip


def synth(config: StoryConfig, out: Path, name: str, layout: str, more: list[str], title: str) -> Chapter:
    argv = ["synth", str(out), "--layout", layout, "--images", str(config.images), "--classes", str(config.classes),
            "--seed", str(config.seed), *more]  # fmt: skip
    return Chapter(step=Step(name=name, argv=argv, products=[out]), title=title)


def training(config: StoryConfig, epochs: int, run_name: str) -> list[str]:
    split = config.out / "prepared" / f"{IMAGE_PX}-raw"
    return [str(split), "--model", "small_cnn", "--image-size", str(IMAGE_PX), "--batch-size", "32",
            "--epochs", str(epochs), "--run", str(config.out / run_name)]  # fmt: skip


def made_of(config: StoryConfig) -> Mapping[str, Any]:
    """What every later step depends on."""
    return {"images": config.images, "classes": config.classes, "seed": config.seed}
