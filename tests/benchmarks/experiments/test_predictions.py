"""What the experiment scores is what a user is shown, figure by figure; and it goes on where it stopped."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from feedline.benchmarks.experiments import predictions
from feedline.benchmarks.experiments.predictions import AS_IS, CASES, SCRIPTS, forms_of, predicted, score, summary
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.base.errors import FeedlineError
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record import units
from feedline.profiling.record.recording import Leg, Recording, Trial
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text
from feedline.profiling.render.profile_page import report
from tests.profiling.recordings import made


def profiled(name: str) -> Recording:
    """As `profile --legs` and the trials would leave it."""
    trials = [
        Trial(
            codec="as-is" if form.codec == "keep" else form.codec, samples=200, bytes_per_sample=2e4,
            size_px=None if form.codec == "keep" else form.size_px, load_cpu_s_per_sample=1e-3 / (number + 1),
            load_cpu_s_spread=2e-5, prepare_cpu_s_per_sample=5e-3,
        )
        for number, form in enumerate(forms_of(name))
    ]  # fmt: skip
    seen = made(
        workers=int(name == "recipe"), cores=2, wait_s=0.1, compute_s=0.02, ceiling=1600.0, trials=trials,
        trainer_cpu_s=8e-4, loader_only={1: 250.0, 2: 480.0},
    )  # fmt: skip
    own = [Leg(name=kind, samples_per_s=[rate] * 3) for kind, rate in (("kept", 1620.0), ("laid_out", 2000.0))]
    return replace(seen, legs=[*seen.legs, *own])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scored_figures_are_those_of_the_report(name: str) -> None:
    seen = profiled(name)
    diagnosis = diagnose(seen)
    printed = re.sub(r"\s+", " ", text(report(diagnosis), width=200))
    page = document(report(diagnosis))
    leading = {one.family: one for one in reversed(diagnosis.predictions) if one.helps}
    record = {one["remedy"]: one for one in record_keys(diagnosis)["predictions"]}
    scored = [one for one in predicted(seen, CASES[name]).values() if one.remedy in record]
    assert len(scored) >= 3 and sum(one.helps for one in scored) >= 2
    now = diagnosis.measured.over_epochs
    assert now is not None
    for one in scored:
        keys = record[one.remedy]
        assert (keys["samples_per_s"], keys["low"], keys["high"]) == (one.samples_per_s, one.low, one.high)
        case = score(one, [1.0])
        assert case["predicted_gain"] * now.value == pytest.approx(one.samples_per_s)
        assert case["predicted_low"] * now.value == pytest.approx(one.low)
        assert case["predicted_high"] * now.value == pytest.approx(one.high)
        assert one.remedy in printed
        if one is leading.get(one.family):
            assert f"{units.rate(one.samples_per_s)} ({units.spread(one.low, one.high)})" in printed
            assert units.spread(one.low, one.high) in page


def test_a_profile_without_what_a_case_needs_is_refused() -> None:
    with pytest.raises(FeedlineError, match="no prediction for"):
        predicted(made(), CASES["naive"])


def test_scores_of_known_cases() -> None:
    inside = Prediction(remedy="a", samples_per_s=200.0, low=160.0, high=250.0, gain=2.0, why="")
    hit, miss = score(inside, [2.1, 2.0, 1.9]), score(inside, [4.0])
    assert hit["error"] == 0.0 and hit["inside"] and hit["half_width"] == pytest.approx(0.225)
    assert hit["interval_score"] == pytest.approx(0.446, abs=1e-3)
    assert miss["error"] == 0.5 and not miss["inside"]
    assert miss["interval_score"] == pytest.approx(0.446 + 20 * 0.470, abs=1e-2)
    whole = summary([hit, miss])
    assert (whole["n"], whole["median_error"], whole["worst_error"], whole["coverage"]) == (2, 0.25, 0.5, 0.5)


class Windows:
    """In place of the server of fresh processes; breaks off after so many windows."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self) -> "Windows":
        return self

    def __enter__(self) -> "Windows":
        return self

    def __exit__(self, *_: object) -> None: ...

    def measure_quiet(self, subject: Subject) -> Window:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        rate = 400 if subject.settings["how"] == "none" else 800
        return Window(samples=rate, seconds=1.0, batches=9, wait_s=0.1, trainer_cpu_s=1.0, worker_cpu_s=1.0)


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled("naive").save(tmp_path / "recording-naive.json")
    for form in forms_of("naive"):
        split = tmp_path / "splits" / form.name / "train"
        split.mkdir(parents=True)
        (split / "manifest.json").touch()
    monkeypatch.setattr(predictions, "Bench", Windows(5))
    with pytest.raises(KeyboardInterrupt):
        predictions.entry("naive", tmp_path, tmp_path, 2)
    with (tmp_path / "windows-naive.jsonl").open("a") as file:
        file.write('{"case": "as it is", "rou')  # what a kill tears
    monkeypatch.setattr(predictions, "Bench", Windows(2 * 9 - 5))  # the script as it is, and eight remedies
    entry = predictions.entry("naive", tmp_path, tmp_path, 2)
    assert len(entry["cases"]) == 8 and all(len(rates) == 2 for rates in entry["samples_per_s"].values())
    assert all(case["measured_gain"] == 2.0 for case in entry["cases"])
    rows = [json.loads(line) for line in (tmp_path / "windows-naive.jsonl").read_text().splitlines()]
    assert len(rows) == 18 and sum(row["case"] == AS_IS.name for row in rows) == 2
