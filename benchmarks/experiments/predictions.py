"""How good are the predictions that a report prints? Each remedy predicted from a profile, then applied and measured.

    python -m feedline.benchmarks.experiments.predictions [--rounds 3] [--images 1200] [--only naive|recipe]

Two scripts, fourteen remedies. A script is profiled once, as `feedline profile --legs --no-cold` does it; its
predictions are `all_predictions` of that recording, the very figures of its report (`feedline report
WORK/recording-NAME.json`). Then rounds visit the script as it is and every remedy in random order, each window in a
fresh process; the gain over the script as it is in the same round is compared with the predicted one. Profile and
windows are kept in the work folder as they come: the same command again goes on where it stopped. Writes
results/predictions.json. The interval score is that of Gneiting and Raftery (2007) for 90 %, of the logarithms of the
gains: the width, and twenty times what lies outside.

A remedy is applied by the script's own argument where it has one. The naive script has no workers, so its profile
cannot tell what an epoch costs that starts some: its swapped loader keeps them.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.rounds import QUIET_CORES, TRIES, Bench, rounds
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.what_if import FORMS, what_if
from feedline.benchmarks.what_if_forms import prepare_form
from feedline.pipeline.base.files import write_atomically
from feedline.preprocess.picture import Output
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import Prediction, all_predictions, prediction_for
from feedline.profiling.profile_run import LEGS, StudyConfig, study
from feedline.profiling.record.host import describe_host
from feedline.profiling.record.recording import Recording

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "predictions.json"
AS_IS = "as it is"
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
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


@dataclass(frozen=True, kw_only=True)
class Script:
    argv: tuple[str, ...]
    cases: tuple[Case, ...]

    @property
    def forms(self) -> tuple[Output, ...]:
        """The files as they are first: they are what others are compared with."""
        return tuple(dict.fromkeys((FORMS[0], *(case.form for case in self.cases if case.form))))


def prepared(form: Output, workers: int) -> Case:
    codec, size = ("as-is", None) if form.codec == "keep" else (form.codec, form.size_px)
    settings = {"codec": codec, "size": size, "loader": "feedline", "num_workers": workers}
    return Case(settings=settings, how="feedline", form=form)


KEEP, JPEG_256, JPEG_160, PLANES_256, RAW_64 = FORMS
RAW_96 = Output(codec="raw", size_px=96, resize="square")
SCRIPTS = {
    "naive": Script(
        argv=(str(HERE.parent / "naive.py"), "{data}", "--epochs", "100"),
        cases=(
            *(Case(settings={"num_workers": count}, how="workers") for count in (1, 2)),
            *(prepared(form, 1) for form in (KEEP, JPEG_256, JPEG_160, PLANES_256, RAW_64)),
            prepared(JPEG_256, 2),
        ),
    ),
    "recipe": Script(
        argv=(str(HERE / "recipe.py"), "{data}", "--epochs", "100"),
        cases=(
            Case(settings={"num_workers": 2}, arguments=("--workers", "2")),
            Case(settings={"dtype": "uint8"}, arguments=("--uint8",)),
            *(prepared(form, 1) for form in (JPEG_256, JPEG_160, RAW_96)),
            prepared(JPEG_256, 2),
        ),
    ),
}


@dataclass(kw_only=True)
class Experiment:
    """One script on one dataset, in its work folder."""

    name: str
    data: Path
    work: Path
    args: argparse.Namespace
    windows: dict[str, dict[int, Window]] = field(default_factory=dict[str, dict[int, Window]])
    """By case and round."""

    @property
    def script(self) -> Script:
        return SCRIPTS[self.name]

    @property
    def argv(self) -> list[str]:
        return [word.format(data=self.data) for word in self.script.argv]

    def recording(self) -> Recording:
        """The quietest of a few profiles (the first that is quiet enough ends them), with trials; kept."""
        path = self.work / f"recording-{self.name}.json"
        if not path.exists():
            tries: list[Recording] = []
            while not tries or (len(tries) < TRIES and others_of(tries[-1]) > QUIET_CORES):
                say(f"profiling {self.name} with legs")
                tries.append(study(StudyConfig(argv=self.argv, steps=self.args.steps, legs=LEGS)).recording)
            quietest = min(tries, key=others_of)
            trials = what_if(quietest, forms=self.script.forms, script_loader=False)
            replace(quietest, trials=trials).save(path)
        return Recording.load(path)

    def measure(self) -> None:
        """Windows by case and round; those of an earlier run are kept."""
        path = self.work / f"windows-{self.name}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            self.windows.setdefault(row["case"], {})[row["round"]] = Window(**row["window"])
        cases = {AS_IS: None, **{case.name: case for case in self.script.cases}}
        with Bench() as bench, path.open("a") as file:
            for number, name in rounds(list(cases), self.args.rounds):
                if number in self.windows.get(name, {}):
                    continue
                window = bench.measure_quiet(self.subject(cases[name]))
                self.windows.setdefault(name, {})[number] = window
                print(json.dumps({"case": name, "round": number, "window": asdict(window)}), file=file, flush=True)
                say(f"{self.name}, round {number + 1}, {name}: {window.samples_per_s:,.0f} samples/s")

    def subject(self, case: Case | None) -> Subject:
        settings: dict[str, Any] = {"argv": self.argv, "how": "none"}
        if case is not None:
            workers = case.settings.get("num_workers")
            settings = {"argv": [*self.argv, *case.arguments], "how": case.how, "num_workers": workers}
            if case.form is not None:
                settings["split"] = str(self.split(case.form))
        return Subject(kind="script", settings=settings, window_s=self.args.window)

    def split(self, form: Output) -> Path:
        """All training images in this form, as a small dataset; made where it is not there yet."""
        split = self.work / "splits" / form.name / "train"
        if not (split / "manifest.json").exists():
            say(f"preparing {form.name}")
            images = [path.read_bytes() for path in sorted((self.data / "train").rglob("*")) if path.is_file()]
            prepare_form(images, form, self.work / "splits")
        return split


def predicted(recording: Recording, script: Script) -> dict[str, Prediction]:
    """By case, out of what the recording's report is made from. Raises SystemExit for a case that it cannot have."""
    workers = {case.settings["num_workers"] for case in script.cases if "num_workers" in case.settings}
    offered = all_predictions(recording, workers=workers)
    found = {case.name: prediction_for(offered, **case.settings) for case in script.cases}
    if missing := [name for name, prediction in found.items() if prediction is None]:
        raise SystemExit(f"no prediction for {'; '.join(missing)}: has the profile legs, a rate and trials?")
    return {name: prediction for name, prediction in found.items() if prediction is not None}


def others_of(recording: Recording) -> float:
    return measure(recording).machine.others_busy


def score(prediction: Prediction, gains: Sequence[float]) -> dict[str, Any]:
    """One case: the predicted gain against the median of the measured ones."""
    gain, now = statistics.median(gains), prediction.samples_per_s / prediction.gain
    low, high, measured = math.log(prediction.low / now), math.log(prediction.high / now), math.log(gain)
    outside = max(0.0, low - measured, measured - high)
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
    errors = [case["error"] for case in cases]
    return {
        "n": len(cases),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "coverage": statistics.fmean(case["inside"] for case in cases),
        "median_half_width": statistics.median(case["half_width"] for case in cases),
        "interval_score": statistics.fmean(case["interval_score"] for case in cases),
    }


def run(name: str, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The entry of one script in the result file."""
    experiment = Experiment(name=name, data=data, work=Path(args.work), args=args)
    recording = experiment.recording()
    predictions = predicted(recording, experiment.script)  # before anything is applied
    experiment.measure()
    windows = experiment.windows
    cases = [
        score(
            prediction, [windows[case][r].samples_per_s / windows[AS_IS][r].samples_per_s for r in range(args.rounds)]
        )
        for case, prediction in predictions.items()
    ]
    rates = {case: [window.samples_per_s for window in by_round.values()] for case, by_round in windows.items()}
    return {
        "script": name, "cases": cases, "samples_per_s": rates, "profile_others_cores": others_of(recording),
        "legs": [asdict(leg) for leg in recording.legs], "trials": [asdict(trial) for trial in recording.trials],
    }  # fmt: skip


def dataset(work: Path, images: int) -> Path:
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth

    data = work / f"photos-{images}"
    synth(SynthConfig(out=str(data), images=images, layout="folder"))
    return data


def table(record: dict[str, Any]) -> str:
    rows = [f"{'script':<8} {'remedy':<58} {'predicted':>9} {'90 % interval':>15} {'measured':>9} {'error':>7}"]
    for entry in record["scripts"]:
        for case in entry["cases"]:
            interval = f"{case['predicted_low']:.2f} to {case['predicted_high']:.2f}"
            rows.append(f"{entry['script']:<8} {case['remedy']:<58} {case['predicted_gain']:>8.2f}× {interval:>15} "
                        f"{case['measured_gain']:>8.2f}× {case['error']:>6.1%}")  # fmt: skip
    words = "{n} cases: median error {median_error:.1%}, worst {worst_error:.1%}; {coverage:.0%} inside their 90 % "
    words += "intervals, median half-width {median_half_width:.1%}, interval score {interval_score:.3f}"
    return "\n".join([*rows, words.format(**record["summary"])])


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir()) / "feedline-predictions"))
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", choices=list(SCRIPTS))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    data = dataset(Path(args.work), args.images)
    entries = [run(name, data, args) for name in SCRIPTS if args.only in (None, name)]
    shown = " ".join(f"--{name} {getattr(args, name)}" for name in ("images", "rounds", "window", "steps"))
    record = {
        "command": f"python -m feedline.benchmarks.experiments.predictions {shown}",
        "host": describe_host(),
        "warm_up_s": Subject(kind="script", settings={}).warm_up_s,
        "baseline": "the script as it is, in the same round",
        "summary": summary([case for entry in entries for case in entry["cases"]]),
        "scripts": entries,
    }
    print(table(record))
    write_atomically(args.out, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
