"""How good are the predictions that a report prints? Each remedy predicted from a profile, then applied and measured.

    python -m feedline.benchmarks.experiments.predictions [--rounds 3] [--work DIR]

Two scripts, fourteen remedies. A script is profiled once, as `feedline profile --legs --no-cold` does it; its
predictions are `all_predictions` of that recording, the very figures of its report (`feedline report
WORK/recording-NAME.json`). Then rounds visit the script as it is and every remedy in random order, each window in a
fresh process; the gain over the script as it is in the same round is compared with the predicted one. Profile and
windows are kept in the work folder as they come: the same command again goes on where it stopped. Writes
results/predictions.json. The interval score is that of Gneiting and Raftery (2007) for 90 %, of the logarithms of the
gains: the width, and twenty times what lies outside.

A remedy is applied by the script's own argument where it has one, but for the naive script's workers: as it is it has
none, so its profile cannot tell what an epoch costs that starts some, and its swapped loader keeps them.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks.comparison import read_lines
from feedline.benchmarks.experiments.harness import end_with, options, say, show, write
from feedline.benchmarks.ladder import NAIVE
from feedline.benchmarks.measure.rounds import Bench, quietest, rounds
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.what_if import what_if
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import write_atomically
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare
from feedline.preprocess.synth.inventory import SynthConfig
from feedline.preprocess.synth.write import synth
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import Prediction, all_predictions, prediction_for
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Recording
from feedline.profiling.watch.legs.ways import LEGS

IMAGES, STEPS, WINDOW_S, WARM_UP_S = 1200, 60, 2.5, 1.0
ALPHA = 0.1


@dataclass(frozen=True, kw_only=True)
class Case:
    """One remedy: the settings it is predicted by, and how it is applied (`benchmarks.measure.script_subject`)."""

    settings: dict[str, Any]
    how: str = "none"
    form: Output | None = None
    arguments: tuple[str, ...] = ()
    """More of the script's own."""

    @property
    def name(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "as it is"


AS_IS = Case(settings={})
KEEP = Output(codec="keep")
JPEG_256, JPEG_160 = (Output(codec="jpeg", size_px=size_px) for size_px in (256, 160))
PLANES_256 = Output(codec="planes", size_px=256)
RAW_64, RAW_96 = (Output(codec="raw", size_px=size_px, resize="square") for size_px in (64, 96))


def prepared(form: Output, workers: int = 1) -> Case:
    codec, size = ("as-is", None) if form.codec == "keep" else (form.codec, form.size_px)
    settings = {"codec": codec, "size": size, "loader": "feedline", "num_workers": workers}
    return Case(settings=settings, how="feedline", form=form)


SCRIPTS = {"naive": NAIVE, "recipe": Path(__file__).with_name("recipe.py")}
CASES: dict[str, list[Case]] = {
    "naive": [
        *(Case(settings={"num_workers": count}, how="workers") for count in (1, 2)),
        *(prepared(form) for form in (KEEP, JPEG_256, JPEG_160, PLANES_256, RAW_64)),
        prepared(JPEG_256, 2),
    ],
    "recipe": [
        Case(settings={"num_workers": 2}, arguments=("--workers", "2")),
        Case(settings={"dtype": "uint8"}, arguments=("--uint8",)),
        *(prepared(form) for form in (JPEG_256, JPEG_160, RAW_96)),
        prepared(JPEG_256, 2),
    ],
}


def forms_of(name: str) -> tuple[Output, ...]:
    return tuple(dict.fromkeys(case.form for case in CASES[name] if case.form))


def profiled(name: str, argv: list[str], work: Path) -> Recording:
    """The quietest of a few profiles (the first that is quiet enough ends them), with trials; kept."""
    path = work / f"recording-{name}.json"
    if not path.exists():
        say(f"profiling {name} with legs")
        config = StudyConfig(argv=argv, steps=STEPS, legs=LEGS)
        recording = quietest(lambda: watched(config), others_of)
        replace(recording, trials=what_if(recording, forms=forms_of(name))).save(path)
    return Recording.load(path)


def watched(config: StudyConfig) -> Recording:
    """Raises FeedlineError where it was not seen to its end, by a signal (which the profile hears) or by itself."""
    run = study(config)
    if run.status:
        raise FeedlineError(f"the profile of {config.argv[0]} ended with status {run.status}")
    return run.recording


def others_of(recording: Recording) -> float:
    return measure(recording).machine.others_busy


def predicted(recording: Recording, cases: Sequence[Case]) -> dict[str, Prediction]:
    """By case, out of what the recording's report is made from. Raises FeedlineError for a case it cannot have."""
    workers = {case.settings["num_workers"] for case in cases if "num_workers" in case.settings}
    offered = all_predictions(measure(recording), workers=workers)
    asked = {case.name: prediction_for(offered, **case.settings) for case in cases}
    if missing := [name for name, prediction in asked.items() if prediction is None]:
        raise FeedlineError(f"no prediction for {'; '.join(missing)}: has the profile legs, a rate and trials?")
    return {name: prediction for name, prediction in asked.items() if prediction is not None}


def measured(name: str, argv: list[str], work: Path, count: int) -> dict[str, dict[int, Window]]:
    """Windows by case and round; those of an earlier run are kept."""
    path, windows = work / f"windows-{name}.jsonl", dict[str, dict[int, Window]]()
    rows = read_lines(path)
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())  # without what a kill tore
    for row in rows:
        windows.setdefault(row["case"], {})[row["round"]] = Window(**row["window"])
    cases = {case.name: case for case in (AS_IS, *CASES[name])}
    with Bench() as bench, path.open("a") as file:
        for number, case in rounds(list(cases), count):
            if number in windows.get(case, {}):
                continue
            window = bench.measure_quiet(subject(cases[case], argv, work))
            windows.setdefault(case, {})[number] = window
            print(json.dumps({"case": case, "round": number, "window": asdict(window)}), file=file, flush=True)
            say(f"{name}, round {number + 1} of {count}, {case}: {window.samples_per_s:,.0f} samples/s")
    return windows


def subject(case: Case, argv: list[str], work: Path) -> Subject:
    settings = {"argv": [*argv, *case.arguments], "how": case.how, "num_workers": case.settings.get("num_workers")}
    if case.form is not None:
        settings["split"] = str(work / "splits" / case.form.name / "train")
    return Subject(kind="script", settings=settings, window_s=WINDOW_S, warm_up_s=WARM_UP_S)


def score(prediction: Prediction, gains: Sequence[float]) -> dict[str, Any]:
    """One case: the predicted gain against the median of the measured ones."""
    gain, now = statistics.median(gains), prediction.samples_per_s / prediction.gain
    low, high = math.log(prediction.low / now), math.log(prediction.high / now)
    outside = max(0.0, low - math.log(gain), math.log(gain) - high)
    return {
        "remedy": prediction.remedy,
        "predicted_gain": prediction.gain,
        "predicted_low": prediction.low / now,
        "predicted_high": prediction.high / now,
        "measured_gain": gain,
        "measured_gains": list(gains),
        "error": abs(prediction.gain / gain - 1),
        "inside": outside == 0.0,
        "half_width": (prediction.high - prediction.low) / 2 / prediction.samples_per_s,
        "interval_score": high - low + 2 / ALPHA * outside,
    }


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {
        "n": len(cases),
        "median_error": statistics.median(case["error"] for case in cases),
        "worst_error": max(case["error"] for case in cases),
        "coverage": statistics.fmean(case["inside"] for case in cases),
        "median_half_width": statistics.median(case["half_width"] for case in cases),
        "interval_score": statistics.fmean(case["interval_score"] for case in cases),
    }


def entry(name: str, data: Path, work: Path, count: int) -> dict[str, Any]:
    """One script of the result file."""
    argv = [str(SCRIPTS[name]), str(data), "--epochs", "100"]
    recording = profiled(name, argv, work)
    predictions = predicted(recording, CASES[name])  # before anything is applied
    windows = measured(name, argv, work, count)
    rates = {case: [by_round[r].samples_per_s for r in range(count)] for case, by_round in windows.items()}
    gains = {case: [a / b for a, b in zip(rates[case], rates[AS_IS.name], strict=True)] for case in predictions}
    return {
        "script": name,
        "profile_others_cores": others_of(recording),
        "cases": [score(prediction, gains[case]) for case, prediction in predictions.items()],
        "samples_per_s": rates,
        "legs": [asdict(leg) for leg in recording.legs],
        "trials": [asdict(trial) for trial in recording.trials],
    }


def main() -> None:
    default = Path(tempfile.gettempdir()) / "feedline-predictions"
    given = options(__doc__, "predictions.json", work=default, rounds=3)
    data = given.work / f"photos-{IMAGES}"
    synth(SynthConfig(out=str(data), images=IMAGES, layout="folder"))
    forms = tuple(dict.fromkeys(form for name in SCRIPTS for form in forms_of(name)))
    prepare(PrepareConfig(source=str(data), out=str(given.work / "splits"), outputs=forms, engine="processes"))
    settings = {"images": IMAGES, "steps": STEPS, "window_s": WINDOW_S, "warm_up_s": WARM_UP_S}
    baseline = "the script as it is, in the same round"
    entries, cases, found = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, Any]()
    for name in SCRIPTS:  # written after each: a machine may be had for minutes
        entries.append(entry(name, data, given.work, given.rounds))
        cases += entries[-1]["cases"]
        found = summary(cases)
        write(given.out, {"settings": settings, "baseline": baseline, "summary": found, "scripts": entries})
    names = ("predicted_gain", "predicted_low", "predicted_high", "measured_gain", "error")
    show(("remedy", *names), [(case["remedy"], *(f"{case[name]:.2f}" for name in names)) for case in cases])
    print(*(f"{name} {value:.3g}" for name, value in found.items()))


if __name__ == "__main__":
    end_with(main)
