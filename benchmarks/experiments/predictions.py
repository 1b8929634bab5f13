"""How good are the predictions? Each remedy foretold from a profile, then applied and measured.

    python -m feedline.benchmarks.experiments.predictions [--work DIR] [--rounds 3] [--images 1200] [--only
        naive|recipe]

Two scripts, fourteen remedies. A script is profiled once, as `feedline profile --legs --no-cold` does it; all its
predictions are made from that recording alone and written down before any of them is run. Then rounds visit the
script as it is and every remedy in random order, each window in a fresh process, and the gain of a remedy over the
script as it is, in the same round, is compared with the gain foretold. A window or a profile in which other programs
took more than QUIET_CORES is measured again, a few times. With `--only` the other script's entry of the result file
stays.

Swapped loaders keep their workers (`benchmarks.measure.script_subject`), and one with the script's own order never
ends an epoch: what
the script's epochs begin with is left out of those predictions.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.rounds import Bench, rounds
from feedline.benchmarks.measure.window import Subject, Window, machine_busy_s
from feedline.benchmarks.what_if import FORMS, what_if
from feedline.benchmarks.what_if_forms import prepare_form
from feedline.pipeline.base.files import write_atomically
from feedline.preprocess.picture import Output
from feedline.profiling.explain.measure import measure
from feedline.profiling.explain.neighbours import machine_and_others
from feedline.profiling.explain.predict import (
    Change,
    Situation,
    our_batches_error,
    predict,
    situation,
    with_our_batches,
    with_own_workers,
    with_stall,
    with_trial,
)
from feedline.profiling.explain.remedies.compute import uint8
from feedline.profiling.profile_run import LEGS, StudyConfig, study
from feedline.profiling.record.host import describe_host
from feedline.profiling.record.recording import Recording, Trial

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "predictions.json"
QUIET_CORES = 0.25
TRIES = 3
AS_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One remedy: what to change (`how`, for `benchmarks.measure.script_subject`), from which prepared form, with
    how many workers."""

    name: str
    how: str
    num_workers: int
    form: Output | None = None
    extra: tuple[str, ...] = ()
    """More arguments of the script."""


@dataclass(frozen=True, kw_only=True)
class Script:
    name: str
    argv: tuple[str, ...]
    forms: tuple[Output, ...]
    cases: tuple[Case, ...]


JPEG_256, JPEG_160, PLANES_256 = FORMS[1], FORMS[2], FORMS[3]
RAW_64, RAW_96 = FORMS[4], Output(codec="raw", size_px=96, resize="square")


def scripts() -> dict[str, Script]:
    naive = Script(
        name="naive",
        argv=(str(HERE.parent / "naive.py"), "{data}", "--epochs", "100"),
        forms=(FORMS[0], JPEG_256, JPEG_160, PLANES_256, RAW_64),
        cases=(
            Case(name="num_workers=1", how="workers", num_workers=1),
            Case(name="num_workers=2", how="workers", num_workers=2),
            Case(name="files as they are, feedline, 1 worker", how="feedline", num_workers=1, form=FORMS[0]),
            Case(name="256 px jpeg, feedline, 1 worker", how="feedline", num_workers=1, form=JPEG_256),
            Case(name="256 px jpeg, feedline, 2 workers", how="feedline", num_workers=2, form=JPEG_256),
            Case(name="160 px jpeg, feedline, 1 worker", how="feedline", num_workers=1, form=JPEG_160),
            Case(name="256 px planes, feedline, 1 worker", how="feedline", num_workers=1, form=PLANES_256),
            Case(name="64 px raw, feedline, 1 worker", how="feedline", num_workers=1, form=RAW_64),
        ),
    )
    recipe = Script(
        name="recipe",
        argv=(str(HERE / "recipe.py"), "{data}", "--epochs", "100"),
        forms=(FORMS[0], JPEG_256, JPEG_160, RAW_96),
        cases=(
            Case(name="num_workers=2", how="workers", num_workers=2),
            Case(name="uint8 batches", how="workers", num_workers=1, extra=("--uint8",)),
            Case(name="256 px jpeg, feedline, 1 worker", how="feedline", num_workers=1, form=JPEG_256),
            Case(name="256 px jpeg, feedline, 2 workers", how="feedline", num_workers=2, form=JPEG_256),
            Case(name="160 px jpeg, feedline, 1 worker", how="feedline", num_workers=1, form=JPEG_160),
            Case(name="96 px raw, feedline, 1 worker", how="feedline", num_workers=1, form=RAW_96),
        ),
    )
    return {one.name: one for one in (naive, recipe)}


# --- before: profile and foretell ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Foretold:
    gain: float
    low: float
    high: float
    binding: str


def foretell(recording: Recording, cases: Sequence[Case]) -> dict[str, Foretold]:
    """Predicted gains by case."""
    at = situation(recording, measure(recording))
    if at is None:
        raise SystemExit("the profile measured no rate")
    at = with_stall(at)
    return {case.name: _foretold(at, _change(at, case)) for case in cases}


def _change(at: Situation, case: Case) -> Change:
    then = with_own_workers(at, case.num_workers)
    if case.extra == ("--uint8",):
        then = next(iter(uint8(at))).then
    if case.how == "workers":
        then = replace(then, epoch_start_s=0.0)
    if case.form is not None:
        then = with_trial(with_our_batches(then, at.measured), at.measured, trial_of(at, case.form), None)
        assert then is not None
    error = our_batches_error(at.measured) if case.form is not None else 0.0
    return Change(remedy=case.name, then=then, cost="", why="", may_raise_ceiling=True, extra_error=error)


def trial_of(at: Situation, form: Output) -> Trial:
    kept = form.codec == "keep"
    wanted = ("as-is" if kept else form.codec, None if kept else form.size_px, "feedline")
    return next(one for one in at.recording.trials if (one.codec, one.size_px, one.loader) == wanted)


def _foretold(at: Situation, change: Change) -> Foretold:
    said, rate = predict(at, change), at.rate_over_epochs
    return Foretold(gain=said.gain, low=said.low / rate, high=said.high / rate, binding=change.then.binding())


def profiled(script: Script, data: Path, args: argparse.Namespace) -> Recording:
    """The quietest of a few profiles; the first that is quiet enough ends them."""
    argv = [word.format(data=data) for word in script.argv]
    best: tuple[float, Recording] | None = None
    for _ in range(TRIES if args.patience else 1):
        wait_for_quiet(args.patience)
        say(f"profiling {script.name} with legs")
        recording = study(StudyConfig(argv=argv, steps=args.steps, legs=LEGS)).recording
        others = others_of(recording)
        say(f"others took {others:.2f} cores")
        if best is None or others < best[0]:
            best = (others, recording)
        if others <= QUIET_CORES:
            break
    assert best is not None
    say(f"trials on samples of {script.name}")
    return replace(best[1], trials=what_if(best[1], forms=script.forms, script_loader=False))


def others_of(recording: Recording) -> float:
    """Cores that other programs took while its steps ran; 0 where the kernel does not say."""
    found, costs = measure(recording), recording.costs
    own = (found.rate.value if found.rate else 0.0) * ((costs.worker_cpu_s or 0.0) + (costs.trainer_cpu_s or 0.0))
    counted = machine_and_others(recording, recording.measured(), own)
    return counted[1] if counted else 0.0


# --- after: apply and measure -------------------------------------------------------------------------


def subject(script: Script, case: Case | None, data: Path, splits: Path, window_s: float) -> Subject:
    argv = [word.format(data=data) for word in script.argv]
    settings: dict[str, Any] = {"argv": argv, "how": "none"}
    if case is not None:
        settings = {"argv": [*argv, *case.extra], "how": case.how, "num_workers": case.num_workers}
        if case.form is not None:
            settings["split"] = str(splits / case.form.name / "train")
    return Subject(kind="script", settings=settings, window_s=window_s)


def quiet_window(bench: Bench, one: Subject, patience_s: float) -> Window:
    """The quietest of a few tries; the first that is quiet enough ends them. Without patience there is one."""
    best: Window | None = None
    for _ in range(TRIES if patience_s else 1):
        wait_for_quiet(patience_s)
        window = bench.measure(one)
        if best is None or (window.others_cores or 0.0) < (best.others_cores or 0.0):
            best = window
        if (window.others_cores or 0.0) <= QUIET_CORES:
            break
    assert best is not None
    return best


def wait_for_quiet(longest_s: float) -> None:
    """Until other programs take less than QUIET_CORES for a moment, or that long."""
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        before = machine_busy_s()
        time.sleep(0.5)
        after = machine_busy_s()
        if before is None or after is None or (after - before) / 0.5 < QUIET_CORES:
            return


def measured(script: Script, data: Path, splits: Path, args: argparse.Namespace) -> dict[str, list[Window]]:
    """Windows by case, one per round, the script as it is among them."""
    cells: dict[str, Case | None] = {AS_IS: None, **{case.name: case for case in script.cases}}
    found: dict[str, list[Window]] = {name: [] for name in cells}
    with Bench() as bench:
        for number, name in rounds(list(cells), args.rounds):
            window = quiet_window(bench, subject(script, cells[name], data, splits, args.window), args.patience)
            found[name].append(window)
            say(f"round {number + 1}/{args.rounds}  {name}: {window.samples_per_s:,.0f} samples/s, "
                f"others {window.others_cores or 0:.2f} cores")  # fmt: skip
    return found


# --- the record ---------------------------------------------------------------------------------------


def result_of(case: Case, said: Foretold, windows: Sequence[Window], as_is: Sequence[Window]) -> dict[str, Any]:
    gains = [one.samples_per_s / base.samples_per_s for one, base in zip(windows, as_is, strict=True)]
    gain = statistics.median(gains)
    return {
        "case": case.name,
        "predicted_gain": said.gain,
        "predicted_low": said.low,
        "predicted_high": said.high,
        "bound_by": said.binding,
        "measured_gain": gain,
        "measured_gains": gains,
        "samples_per_s": rates(windows),
        "trainer_cpu_s_per_sample": sum(one.trainer_cpu_s for one in windows) / sum(one.samples for one in windows),
        "worker_cpu_s_per_sample": sum(one.worker_cpu_s for one in windows) / sum(one.samples for one in windows),
        "others_cores": [window.others_cores for window in windows],
        "error": abs(said.gain / gain - 1),
        "within_interval": said.low <= gain <= said.high,
    }


def entry(
    script: Script, recording: Recording, said: dict[str, Foretold], found: dict[str, list[Window]]
) -> dict[str, Any]:
    """What the result file says of one script: its model, its trials, its cases."""
    at = situation(recording, measure(recording))
    return {
        "script": script.name,
        "argv": [Path(script.argv[0]).name, *script.argv[1:]],
        "rounds": len(found[AS_IS]),
        "as_is_samples_per_s": [window.samples_per_s for window in found[AS_IS]],
        "profiled_samples_per_s": at.rate.value if at else None,
        "profiled_over_epochs_samples_per_s": at.rate_over_epochs if at else None,
        "profile_others_cores": others_of(recording),
        "model": asdict(with_stall(at).now) if at else None,
        "legs": [asdict(leg) for leg in recording.legs],
        "trials": [asdict(trial) for trial in recording.trials],
        "cases": [result_of(case, said[case.name], found[case.name], found[AS_IS]) for case in script.cases],
    }


def rates(windows: Sequence[Window]) -> list[float]:
    return [window.samples_per_s for window in windows]


def prepared(forms: Sequence[Output], data: Path, work: Path) -> Path:
    """Small real datasets of all training images, one per form, where they are not there yet."""
    splits = work / "splits"
    images = [path.read_bytes() for path in sorted((data / "train").rglob("*")) if path.is_file()]
    for form in forms:
        if not (splits / form.name / "train" / "manifest.json").exists():
            say(f"preparing {form.name}")
            prepare_form(images, form, splits)
    return splits


def dataset(work: Path, images: int) -> Path:
    from feedline.preprocess.synth.inventory import SynthConfig
    from feedline.preprocess.synth.write import synth

    data = work / f"photos-{images}"
    say(f"{images} synthetic photos in {data}")
    synth(SynthConfig(out=str(data), images=images, layout="folder"))
    return data


def run(args: argparse.Namespace) -> dict[str, Any]:
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    data = dataset(work, args.images)
    chosen = [one for name, one in scripts().items() if args.only in (None, name)]
    entries = kept(Path(args.out)) if args.only else {}
    for script in chosen:
        splits = prepared(script.forms, data, work)
        recording = profiled(script, data, args)
        said = foretell(recording, script.cases)
        foretold = {name: asdict(one) for name, one in said.items()}
        write_atomically(work / f"foretold-{script.name}.json", json.dumps(foretold).encode())
        recording.save(work / f"recording-{script.name}.json")
        found = measured(script, data, splits, args)
        entries = {**entries, script.name: entry(script, recording, said, found)}
    return summed_up(list(entries.values()), args)


def kept(out: Path) -> dict[str, Any]:
    """Entries of an earlier run, by script."""
    return {one["script"]: one for one in json.loads(out.read_text())["scripts"]} if out.exists() else {}


def summed_up(entries: Sequence[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    errors = sorted(case["error"] for script in entries for case in script["cases"])
    return {
        "command": "python -m feedline.benchmarks.experiments.predictions " + " ".join(shown_arguments(args)),
        "host": describe_host(),
        "warm_up_s": Subject(kind="script", settings={}).warm_up_s,
        "baseline": "the script as it is, in the same round",
        "n": len(errors),
        "median_error": statistics.median(errors),
        "worst_error": errors[-1],
        "scripts": entries,
    }


def shown_arguments(args: argparse.Namespace) -> list[str]:
    """Those that a measurement depends on; folders of this machine are nobody's business."""
    return [f"--{name} {getattr(args, name)}" for name in ("images", "rounds", "window", "steps")]


def table(record: dict[str, Any]) -> str:
    rows = [f"{'script':<8} {'remedy':<40} {'predicted':>9} {'measured':>9} {'error':>7}"]
    for script in record["scripts"]:
        rows += [row(script["script"], case) for case in script["cases"]]
    rows.append(f"{record['n']} cases: median error {record['median_error']:.1%}, worst {record['worst_error']:.1%}")
    return "\n".join(rows)


def row(script: str, case: dict[str, Any]) -> str:
    gains = f"{case['predicted_gain']:>8.2f}× {case['measured_gain']:>8.2f}×"
    return f"{script:<8} {case['case']:<40} {gains} {case['error']:>6.1%}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir()) / "feedline-predictions"))
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet moment")
    parser.add_argument("--only", choices=list(scripts()))
    parser.add_argument("--out", default=str(RESULT))
    args = parser.parse_args()
    record = run(args)
    print(table(record))
    write_atomically(Path(args.out), (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
