"""The ladder: one training script, climbed from as it is to where its data is as good as free.

Profile, predict, prepare, climb. Every rung runs the same script with the same model and another way of getting its
batches (`benchmarks.measure.script_subject`), in a fresh process per window; rounds visit the rungs in random order.
What each rung will give is predicted from the script's profile alone, as in its report (`profiling.explain.predict`).
What can be kept is kept in the work folder, so that a second ascent of the same script over the same data only
climbs; the prepared shards are a dataset like any other and stay useful.
"""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.measure.intervals import estimate
from feedline.benchmarks.measure.rounds import Advance, Bench, require_torch, rounds
from feedline.benchmarks.measure.window import Subject, Window, per_second
from feedline.benchmarks.variants import find_train, kept_shards, train_splits
from feedline.benchmarks.what_if import what_if
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.base.status_line import status_line
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.manifest import read_manifest, refuse_address
from feedline.preprocess.config import parse_output
from feedline.preprocess.picture import Output
from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import Prediction, all_predictions, prediction_for
from feedline.profiling.explain.remedies.remedy import image_size, squares
from feedline.profiling.record import units
from feedline.profiling.record.host import describe_host, package_version
from feedline.profiling.record.recording import Recording

NAIVE = Path(__file__).with_name("naive.py")
CEILING = "ceiling"
PROFILE_STEPS = 120
SIZE_PX = 256
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
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
    num_workers: int | None = limited(None, 1)
    """Workers from the second rung on; default: one per usable core."""
    size_px: int | None = limited(None, 16)
    """Short side of the prepared JPEG shards, px; default: 256. `prepared` has its own."""
    rounds: int = limited(3, 2)
    """Windows per rung, interleaved."""
    window_s: float = limited(3.0, 0.2, 3600)
    """Seconds measured per window."""

    def __post_init__(self) -> None:
        check_limits(self)
        if self.prepared and not self.prepared.is_dir():
            raise UsageError(f"--prepared {self.prepared} is not a folder")
        if self.prepared and self.size_px:
            raise UsageError(f"--size {self.size_px}: the shards of --prepared {self.prepared} have their own")

    def check(self) -> None:
        """Raises UsageError for what cannot be climbed."""
        if not self.source.exists():
            refuse_address(self.source)
            raise UsageError(f"{self.source} does not exist: give the folder or archives of the raw images")
        if not self.argv and not (self.source / "train").is_dir():
            raise UsageError(
                f"{self.source} has no train/CLASS/… folders for the example script to read: "
                "name your own script after it, with its arguments"
            )
        script = self.argv or [str(NAIVE)]
        if script[0].startswith("--"):
            raise UsageError(f"{script[0]} stands behind SOURCE, where the script's name does: put options before it")
        if not code_of(script):
            what = f"module {' '.join(script[1:2])}" if script[0] == "-m" else f"script {script[0]}"
            raise UsageError(f"{what} does not exist")
        commands.check_work(self.work)


@dataclass(frozen=True)
class Rung:
    """One way of getting batches."""

    key: str
    """Also its prediction's."""
    name: str
    words: str
    settings: Mapping[str, Any]
    """As of `benchmarks.measure.script_subject`."""


def rungs_of(workers: int, shards: Path, raw: Path | None) -> list[Rung]:
    """From the script as it is to the ceiling. `shards` are JPEG; without `raw`, shards of raw pixels at the script's
    own output size, their rung is left out, and so is stock webdataset's where it is not installed."""

    def over(how: str, split: Path | None = None) -> dict[str, Any]:
        return {"how": how, "num_workers": workers, **({"split": str(split)} if split else {})}

    rungs = [
        Rung("as-is", "the script as it is", "image files, its own loader and settings", {"how": "none"}),
        Rung("workers", f"+ {count_of(workers, 'worker')}", "the same DataLoader, num_workers set", over("workers")),
        Rung("shards", "+ prepared shards", "stock webdataset reads them, the same DataLoader",
             over("webdataset", shards)),
        Rung("loader", "+ feedline's loader", "the same shards; whole uint8 batches, region decoding",
             over("feedline", shards)),
        Rung("raw", "+ raw shards", "pixels at the size the model sees: nothing to decode", over("feedline", raw)),
        Rung(CEILING, "data is free", "cached batches, laid out as feedline hands them over", {"how": "cached"}),
    ]  # fmt: skip
    left_out = {"raw": not raw, "shards": find_spec("webdataset") is None}
    return [rung for rung in rungs if not left_out.get(rung.key)]


def ascend(config: LadderConfig, say: Say = lambda _: None, advance: Advance | None = None) -> dict[str, Any]:
    """`feedline ladder` as a function, and its record. Raises UsageError, MeasureError, CommandError."""
    require_torch()
    config.check()
    script = config.argv or [str(NAIVE), str(config.source)]
    workers = usable_cores() if config.num_workers is None else config.num_workers
    recording = profile(config, script, say)
    loader = training_loader(recording)
    raw_px, resize = image_size(recording.train_loader), squares(recording.train_loader)
    form = f"{raw_px}:raw:{resize}" if raw_px else ""
    prepared = config.prepared or prepare(config, form, say)
    shards, raw = find_train(prepared, "jpeg", whole=resize == "stretch"), raw_shards(prepared, raw_px, resize)
    px = read_manifest(shards).settings.get("size_px") or SIZE_PX
    recording = with_trials(recording, px, form)
    rungs = rungs_of(workers, shards, raw)
    if raw is None:
        bilinear = " --filter bilinear" if resize == "stretch" else ""
        none = f"{prepared} has none of {raw_px} px (--output {form}{bilinear})"
        say(f"without a rung of raw shards: {none if raw_px else 'no size of the images the model sees is known'}")
    if not any(rung.key == "shards" for rung in rungs):
        say("without stock webdataset's rung, which takes `pip install webdataset`")
    predicted = predictions(recording, workers=workers, size_px=px, raw_px=raw_px)
    before = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "predictions": {key: asdict(prediction) for key, prediction in predicted.items()},
    }  # on disk before anything is climbed
    write_atomically(config.work / "predictions.json", (json.dumps(before, indent=1) + "\n").encode())
    say("climbing: every rung in fresh processes, in random order")
    advance = advance or status_line("ladder", "windows")
    windows = climb(script, rungs, config.rounds, config.window_s, advance, loader)
    record = record_of(rungs, windows, predicted)
    record["notes"] += beside_others(recording)
    return {**record, "script": script, "num_workers": workers}


# --- before the climb ---------------------------------------------------------------------------------


def profile(config: LadderConfig, script: list[str], say: Say) -> Recording:
    """Raises UsageError for a record of another script, or of this one with other arguments."""
    if config.profiled is not None:
        recording = Recording.load(config.profiled)
        seen = ["-m"] * recording.script.module + recording.script.argv
        if [Path(word).name for word in seen[:1]] + seen[1:] != [Path(script[0]).name, *script[1:]]:
            raise UsageError(f"{config.profiled} is a record of `{shlex.join(seen)}`, not of `{shlex.join(script)}`")
        return recording
    argv = ["profile", "--legs", "--steps", str(PROFILE_STEPS), *script]
    by = [describe_host()["cpu"], usable_cores(), package_version("feedline")]
    inputs = [commands.stamps(code_of(script)), commands.stamp_of(config.source), by]
    step = commands.Step(name="profile", argv=argv, inputs=inputs)
    return Recording.from_dict(commands.run(step, config.work, say=say).record["recording"])


def code_of(script: Sequence[str]) -> list[Path]:
    """The script and the Python files beside it, or those of the package that its module is in; [] where there is
    none."""
    if script[0] != "-m":
        path = Path(script[0])
        return [path, *sorted(path.parent.glob("*.py"))] if path.is_file() else []
    top = "".join(script[1:2]).partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    return sorted(path for folder in folders for path in folder.rglob("*.py")) or (
        [Path(spec.origin)] if spec and spec.origin else []
    )


def training_loader(recording: Recording) -> int:
    """Its place among the script's DataLoaders as they are first iterated. Raises UsageError where there is none, or
    one whose place feedline's loader could not take: before anything is prepared."""
    found = recording.train_loader
    if found is None or found.kind != "torch":
        seen = f"its batches come from {found.kind}" if found else "none was seen"
        raise UsageError(f"the script trains from no DataLoader of torch that could be swapped: {seen}")
    if found.refused:
        raise UsageError(f"feedline's loader cannot take the place of the script's DataLoader: {found.refused}")
    return [one.id for one in recording.loaders if one.kind == "torch"].index(found.id)


def raw_shards(prepared: Path, px: int | None, resize: str) -> Path | None:
    """The train split of raw pixels at this size that show what the script does, where there is one."""
    return next((split for split, manifest in train_splits(prepared)
                 if (manifest.codec, manifest.settings.get("size_px")) == ("raw", px)
                 and manifest.shows(whole=resize == "stretch")), None)  # fmt: skip


def prepare(config: LadderConfig, raw: str, say: Say) -> Path:
    """JPEG shards, and raw ones in this form where the script's own size is known."""
    forms = [f"{config.size_px or SIZE_PX}:jpeg", *([raw] if raw else [])]
    bilinear = ["--filter", "bilinear"] if raw.endswith("stretch") else []
    words = [word for form in forms for word in ("--output", form)]
    return kept_shards(config.source, [*words, *bilinear], config.work, say)


def with_trials(recording: Recording, size_px: int, raw: str) -> Recording:
    """The recording with what loading its own samples would cost from the shards that will be climbed on; with the
    trials it has where the samples are gone."""
    forms = (Output(codec="keep"), Output(codec="jpeg", size_px=size_px), *([parse_output(raw)] if raw else []))
    return replace(recording, trials=what_if(recording, forms=forms, script_loader=True) or recording.trials)


def predictions(recording: Recording, *, workers: int, size_px: int, raw_px: int | None) -> dict[str, Prediction]:
    """By rung key, from a profile of the script as it is with trials of the shards; {} where it measured no rate."""
    measured = measure(recording)
    rate = measured.over_epochs
    if rate is None:
        return {}
    offered = all_predictions(measured, workers=[workers])
    settings: dict[str, dict[str, Any]] = {
        "workers": {},
        "shards": {"codec": "jpeg", "size": size_px, "loader": "script"},
        "loader": {"codec": "jpeg", "size": size_px, "loader": "feedline"},
        "raw": {"codec": "raw", "size": raw_px, "loader": "feedline"},
    }
    asked = {key: prediction_for(offered, **chosen, num_workers=workers) for key, chosen in settings.items()}
    now, reach = rate.value, ERRORS_90 * rate.error
    asked["as-is"] = Prediction(
        remedy="as it is", samples_per_s=now, low=now * max(0.0, 1 - reach), high=now * (1 + reach), why="as profiled"
    )
    if workers == measured.workers.count:
        asked["workers"] = asked["as-is"]
    return {key: prediction for key, prediction in asked.items() if prediction is not None}


def beside_others(recording: Recording) -> list[str]:
    """What a reader of predictions must know of other programs that ran beside the profile; [] where none did."""
    machine = measure(recording).machine
    taken = f"{units.number(machine.others_cores, 2)} of the {machine.cores:g} cores"
    said = f"predicted from a profile beside other programs, which took {taken}: the intervals are wider for it"
    return [said] if machine.others_cores else []


# --- the climb ----------------------------------------------------------------------------------------


def climb(
    script: Sequence[str], rungs: Sequence[Rung], count: int, window_s: float, advance: Advance, loader: int = 0
) -> dict[str, list[Window]]:
    """Windows by rung key, interleaved. `loader`: which of the script's trains. Raises MeasureError where a rung does
    not run."""
    by_key = {rung.key: rung for rung in rungs}
    windows: dict[str, list[Window]] = {key: [] for key in by_key}
    with Bench() as bench:
        for done, (_, key) in enumerate(rounds(list(by_key), count), 1):
            settings = {"argv": list(script), "loader": loader, **by_key[key].settings}
            windows[key].append(bench.measure_quiet(Subject(kind="script", settings=settings, window_s=window_s)))
            advance(done, count * len(rungs))
    return windows


def record_of(
    rungs: Sequence[Rung], windows: Mapping[str, Sequence[Window]], predicted: Mapping[str, Prediction]
) -> dict[str, Any]:
    """The climb; the last of `rungs` is the ceiling."""
    records = [rung_record(rung, windows[rung.key], predicted.get(rung.key)) for rung in rungs]
    ceiling = records.pop()
    return {
        "rungs": records,
        "ceiling_samples_per_s": ceiling["samples_per_s"],
        "ceiling_low": ceiling["low"],
        "ceiling_high": ceiling["high"],
        "gain": records[-1]["samples_per_s"] / records[0]["samples_per_s"],
        "notes": differences({rung.name: windows[rung.key][0].facts for rung in rungs}),
    }


def rung_record(rung: Rung, windows: Sequence[Window], predicted: Prediction | None) -> dict[str, Any]:
    return {
        "name": rung.name,
        "words": rung.words,
        **estimate([window.samples_per_s for window in windows]).record(),
        "predicted": predicted.samples_per_s if predicted else None,
        "predicted_low": predicted.low if predicted else None,
        "predicted_high": predicted.high if predicted else None,
        "why": predicted.why if predicted else "",
        "num_workers": rung.settings.get("num_workers", 0),
        "wait_fraction": per_second(windows, "wait_s"),
        "windows": [asdict(window) for window in windows],
    }


def differences(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """By rung name, the script as it is first. Rungs must hand the model the same kind of batch; where they do not,
    the reader is told."""
    shapes = {name: (of.get("dtype"), tuple(of.get("shape", ()))[1:]) for name, of in facts.items()}
    usual = next(iter(shapes.values()))
    return [
        f"{name} hands over {dtype} {shape}, the script as it is {usual[0]} {usual[1]}"
        for name, (dtype, shape) in shapes.items()
        if (dtype, shape) != usual
    ]
