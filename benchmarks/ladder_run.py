"""From a source and a script to a climbed ladder: profile, predict, prepare, climb.

What can be kept is kept in the work folder, so that a second ascent of the same script over the same data only
climbs; the prepared shards are a dataset like any other and stay useful.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.ladder import LadderConfig, Progress, climb, predictions
from feedline.benchmarks.measure.rounds import require_torch
from feedline.benchmarks.what_if import image_size, what_if
from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.format.manifest import prepared_splits, read_manifest, refuse_address
from feedline.preprocess.picture import Output
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.record.recording import Recording

NAIVE = Path(__file__).with_name("naive.py")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AscentConfig:
    source: Path
    """The raw images that the script trains on."""
    argv: list[str]
    """The script and its arguments; empty: the first script everybody writes, over `source`."""
    work: Path = Path("ladder-out")
    """Where shards and records are kept."""
    profiled: Path | None = None
    """A record of `feedline profile --legs` of it."""
    prepared: Path | None = None
    """An already prepared folder."""
    num_workers: int | None = None
    """Workers from the second rung on; default: one per usable core."""
    size_px: int = 256
    """Short side of the prepared JPEG shards, px."""
    rounds: int = 3
    """Windows per rung, interleaved."""
    window_s: float = 3.0
    """Seconds measured per window."""
    profile_steps: int = 120
    seed: int = 0

    @property
    def script(self) -> list[str]:
        return self.argv or [str(NAIVE), str(self.source)]


def ascend(config: AscentConfig, say: Say, advance: Progress) -> dict[str, Any]:
    """The record of `feedline ladder`. Raises UsageError, MeasureError, CommandError."""
    require_torch()
    check(config)
    recording = profile(config, say)
    raw_px = image_size(recording)
    recording = with_trials(recording, config.size_px, raw_px)
    workers = usable_cores() if config.num_workers is None else config.num_workers
    shards, raw = prepare(config, raw_px, say)
    ladder = LadderConfig(
        argv=config.script, shards=shards, raw=raw, num_workers=workers, rounds=config.rounds,
        window_s=config.window_s, seed=config.seed,
    )  # fmt: skip
    predicted = predictions(recording, workers=workers, size_px=config.size_px, raw_px=raw_px)
    keep_predictions(config, predicted)
    say("climbing: every rung in fresh processes, in random order")
    return {**climb(ladder, predicted, advance).record(), "script": config.script, "num_workers": workers}


def check(config: AscentConfig) -> None:
    if not config.source.exists():
        refuse_address(config.source)
        raise UsageError(f"{config.source} does not exist: give the folder or archives of the raw images")
    if not config.argv and not (config.source / "train").is_dir():
        raise UsageError(
            f"{config.source} has no train/CLASS/… folders for the example script to read: "
            "name your own script after it, with its arguments"
        )
    if config.argv and config.argv[0].startswith("--"):
        raise UsageError(
            f"{config.argv[0]} stands behind SOURCE, where the script's name does: put options before it"
        )
    if config.argv and config.argv[0] != "-m" and not Path(config.argv[0]).is_file():
        raise UsageError(f"script {config.argv[0]} does not exist")
    commands.check_work(config.work)


def profile(config: AscentConfig, say: Say) -> Recording:
    if config.profiled is not None:
        return Recording.load(config.profiled)
    script = config.script
    step = commands.Step(
        name="profile",
        argv=["profile", "--legs", "--steps", str(config.profile_steps), *script],
        inputs={"script": stamp(Path(script[0]))},
    )
    return Recording.from_dict(kept_or_run(step, config.work, say).record["recording"])


def prepare(config: AscentConfig, raw_px: int | None, say: Say) -> tuple[Path, Path | None]:
    """Train splits of the JPEG and of the raw shards."""
    if config.prepared is not None:
        return find_train(config.prepared, "jpeg"), find_raw(config.prepared, raw_px)
    out = config.work / "prepared"
    outputs = [f"{config.size_px}:jpeg", *([f"{raw_px}:raw:square"] if raw_px else [])]
    options = [word for output in outputs for word in ("--output", output)]
    argv = ["prepare", str(config.source), str(out), *options]
    step = commands.Step(
        name="prepare", argv=argv, products=[out], inputs={"source": commands.stamp_of(config.source)}
    )
    kept_or_run(step, config.work, say)
    return find_train(out, "jpeg"), find_raw(out, raw_px)


def kept_or_run(step: commands.Step, work: Path, say: Say) -> commands.Done:
    found = commands.reusable(step, work)
    if found is not None:
        say(f"kept: {step.shown}")
        return found
    say(f"$ {step.shown}")
    return commands.run(step, work)


def find_raw(folder: Path, raw_px: int | None) -> Path | None:
    return find_train(folder, "raw", raw_px) if raw_px else None


def find_train(folder: Path, codec: str, size_px: int | None = None) -> Path:
    """The train split of this codec under a prepared folder. Raises DatasetError."""
    for split in prepared_splits(folder):
        manifest = read_manifest(split)
        fits = size_px is None or manifest.settings.get("size_px") == size_px
        if manifest.split == "train" and manifest.codec == codec and fits:
            return split
    size = f"{size_px} px " if size_px else ""
    raise DatasetError(f"{folder} has no train split of {size}{codec} shards: prepare one with --output SIZE:{codec}")


def with_trials(recording: Recording, size_px: int, raw_px: int | None) -> Recording:
    """The recording with what loading its own samples would cost from the shards that will be climbed on."""
    forms = [Output(codec="keep"), Output(codec="jpeg", size_px=size_px)]
    if raw_px:
        forms.append(Output(codec="raw", size_px=raw_px, resize="square"))
    tried = {(trial.codec, trial.size_px, trial.loader) for trial in recording.trials}
    if {("jpeg", size_px, "feedline"), ("raw", raw_px, "feedline"), ("as-is", None, "script")} <= tried:
        return recording
    return replace(recording, trials=what_if(recording, forms=tuple(forms)))


def keep_predictions(config: AscentConfig, predicted: dict[str, Prediction]) -> None:
    """On disk before anything is climbed, with the time: what was predicted can be checked to have been."""
    config.work.mkdir(parents=True, exist_ok=True)
    record = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "predictions": {key: asdict(prediction) for key, prediction in predicted.items()},
    }
    write_atomically(config.work / "predictions.json", (json.dumps(record, indent=1) + "\n").encode())


def stamp(path: Path) -> Any:
    """Changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, sys.version]
