"""The collection of training scripts: its truths are whole, and what a profile said is judged by them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.record.recording import Recording, Step, ThreadTime
from feedline.profiling.record.recording import Script as Profiled
from tests.lab import collection_runs
from tests.lab.collection_gains import Gain, carried_out_by, scored
from tests.lab.collection_judge import Remedy, changed, first_remedy, fits, judge, more_left, of_plain
from tests.lab.collection_processes import LOOP
from tests.lab.collection_runs import SCRIPTS, Lab, Ran, Script, scripts

FAMILIES = {
    *("workers", "fewer-workers", "persistent", "prefetch", "pin", "slow-worker", "stage", "send", "batch", "loader"),
    *(
        "shards",
        "cache",
        "storage",
        "dataloader",
        "uint8",
        "python",
        "sync",
        "layout",
        "memory",
        "autocast",
        "compute",
        "nothing",
    ),
}
SCRIPT = Script(
    name="mine", framework="torch", launch="python", arguments=[], bound=["data"], cause=["read"], truth="both",
    remedies=["workers", "stage:Slow"], why="", share="wait", writes=[],
)  # fmt: skip
PID, ORIGIN_S = 7, 100.0


def ran(folder: Path, *, share: float = 0.6, error: float = 0.02, **verdict: Any) -> Ran:
    """Twenty steps of 1 s from second 5 on, the loop waiting for 0.6 s of each; it waits for all before."""
    folder.mkdir(exist_ok=True)
    rows = [f"wait {PID} {ORIGIN_S + 5} 4.0"]
    for second in range(5, 25):
        rows += [f"wait {PID} {ORIGIN_S + second + 0.6} 0.6", f"compute {PID} {ORIGIN_S + second + 1.0} 0.4"]
    rows.append(f"decode 8 {ORIGIN_S + 6} 0.5")
    (folder / "laps").write_text("\n".join(rows) + "\n")
    recording = Recording(
        script=Profiled(argv=["mine.py"]),
        steps=[Step(start_s=float(second), wait_s=0.6, duration_s=1.0, samples=4) for second in range(5, 25)],
        trainers=[ThreadTime(pid=PID, ticks=10, seconds=20)],
    )
    said = {"bound": "data", "shares": {"data": share}, "errors": {"data": error}, "close": [],
            "cause": {"kind": "blocked", "where": "store.py:fetch"}, **verdict}  # fmt: skip
    remedy = {"remedy": "num_workers=8", "family": "workers", "target": "", "helps": True, "settings": {}}
    profile = {"verdict": said, "predictions": [remedy], "recording": recording.to_dict()}
    (folder / "profile.json").write_text(json.dumps(profile))
    return Ran(kind="profiled", command=[], status=0, origin_s=ORIGIN_S, folder=folder)


@pytest.mark.parametrize("held_out", [False, True])
def test_each_script_has_its_truth_in_known_words(held_out: bool) -> None:
    tables = {script.name: script for script in scripts(held_out=held_out)}
    folder = SCRIPTS / "held_out" if held_out else SCRIPTS
    assert set(tables) == {path.stem for path in folder.glob("*.py")} - {"stopwatch"}
    for script in tables.values():
        assert set(script.bound) <= {"data", "copy", "trainer", "compute"}
        assert {remedy.partition(":")[0] for remedy in script.remedies} <= FAMILIES
        assert script.share in LOOP
        assert f'"{script.share}"' in script.text
        assert script.shortened or held_out


def test_the_share_is_compared_with_the_stopwatch_of_the_same_steps(tmp_path: Path) -> None:
    judged = judge(SCRIPT, ran(tmp_path))
    assert judged.truth == pytest.approx(0.6)
    assert judged.rate == pytest.approx(1.0)
    assert judged.inside
    assert not judge(SCRIPT, ran(tmp_path, share=0.5)).inside
    assert judge(SCRIPT, ran(tmp_path, share=0.5, error=0.08)).inside


def test_a_plain_run_is_looked_at_when_it_has_settled(tmp_path: Path) -> None:
    shares, rate = of_plain(SCRIPT, ran(tmp_path))
    assert shares["wait"] == pytest.approx(0.6, abs=0.02)
    assert rate == pytest.approx(1.0)


def test_verdicts_are_right_wrong_or_not_to_be_told(tmp_path: Path) -> None:
    assert judge(SCRIPT, ran(tmp_path)).verdict == "right"
    shown = replace(SCRIPT, bound=["trainer"])
    assert judge(shown, ran(tmp_path)).verdict == "shown"  # that the loop waits, its stopwatch shows
    wrong = judge(SCRIPT, ran(tmp_path, bound="compute", close=["data"]))
    assert (wrong.verdict, wrong.confidently_wrong) == ("wrong", True)  # 60 % is not close to any threshold
    untold = judge(SCRIPT, ran(tmp_path, bound=None, headline="cannot tell: too few steps"))
    assert (untold.verdict, untold.headline) == ("unknown", "cannot tell: too few steps")
    assert not untold.confidently_wrong


def test_either_side_of_a_near_threshold_is_right_if_that_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.lab.collection_judge.THRESHOLDS", {"wait": 0.58})
    assert judge(SCRIPT, ran(tmp_path, bound="compute", close=["data"])).verdict == "close"
    assert judge(SCRIPT, ran(tmp_path, bound="compute")).verdict == "wrong"


def test_causes_may_be_named_more_finely(tmp_path: Path) -> None:
    assert judge(SCRIPT, ran(tmp_path)).cause_right  # a sleep in what reads
    assert judge(SCRIPT, ran(tmp_path, cause={"kind": "decode", "where": ""})).confidently_wrong
    assert judge(SCRIPT, ran(tmp_path, cause={"kind": None, "where": None})).cause_right is None
    sums = replace(SCRIPT, cause=[*SCRIPT.cause, "crc", "main"])
    assert judge(sums, ran(tmp_path, cause={"kind": "transform", "where": "train.py:Records.crc"})).cause_right
    assert judge(sums, ran(tmp_path, cause={"kind": "transform", "where": "train.py:main"})).confidently_wrong
    scores = replace(SCRIPT, bound=["trainer"], cause=["scores"])
    place = {"kind": "python", "where": "train.py:scores:12"}
    assert judge(scores, ran(tmp_path, bound="trainer", cause=place)).cause_right


def test_first_remedies_are_families_or_their_targets() -> None:
    stage = Remedy(family="stage", target="transform Slow", words="")
    assert fits(stage, "stage:Slow")
    assert fits(stage, "stage:transform")
    assert not fits(stage, "stage:decode")
    assert fits(Remedy(family="dataloader", target="", words=""), "workers")
    assert fits(None, "nothing")
    assert not fits(stage, "nothing")


def test_remedies_without_a_family_are_known_by_their_words() -> None:
    def of(words: str, **settings: Any) -> str:
        prediction = {"remedy": words, "helps": True, "settings": settings}
        recording = {"loaders": [{"phase": "train", "num_workers": 2}]}
        return str(first_remedy({"predictions": [prediction], "recording": recording, "verdict": {}}))

    assert of("num_workers=4", num_workers=4) == "workers"
    assert of("num_workers=1", num_workers=1) == "fewer-workers"
    assert of("cheaper transform Slow") == "stage:transform Slow"
    assert of("prepared 64 px raw shards, feedline's loader") == "shards"


def test_what_is_to_be_tried_first_is_a_first_remedy_too() -> None:
    may = {"remedy": "num_workers=4", "family": "workers", "helps": False, "settings": {"num_workers": 4}}
    profile = {"predictions": [may], "recording": {}, "verdict": {"first": "num_workers=4"}}
    assert str(first_remedy(profile)) == "workers"
    assert first_remedy({**profile, "verdict": {"first": None}}) is None
    assert first_remedy({**profile, "verdict": {}}) is None  # recorded before there was such a word


def test_what_a_profile_leaves_behind_is_found() -> None:
    whole = Ran(kind="whole", command=[], status=0, files=["model.pt"], temporary=["pymp-ab12cd_3/socket"])
    same = replace(whole, kind="whole_profiled", temporary=["pymp-zz99zz_9/socket"])
    assert changed(whole, same) == []
    other = replace(same, files=["model.pt", "trace.json"], status=1, temporary=["journal"], processes=["python"])
    assert changed(whole, other) == [
        "status 1 instead of 0",
        "leaves trace.json",
        "leaves journal among temporary files",
        "leaves process python",
    ]
    early = replace(same, files=["recon_0020.png"])
    assert more_left(early, replace(whole, files=["recon_0001.png", "recon_0002.png"])) == []
    assert more_left(early, whole) == ["leaves recon_N.png"]


def test_remedies_that_an_argument_or_the_environment_applies(monkeypatch: Any) -> None:
    monkeypatch.setattr(Script, "text", 'parser.add_argument("--num-workers")')
    assert carried_out_by(SCRIPT, {"settings": {"num_workers": 4}}) == (["--num-workers", "4"], {})
    assert carried_out_by(SCRIPT, {"settings": {"persistent_workers": True}}) is None
    memory = {"settings": {}, "family": "memory", "command": "MALLOC_TRIM_THRESHOLD_=10 python train.py"}
    assert carried_out_by(SCRIPT, memory) == ([], {"MALLOC_TRIM_THRESHOLD_": "10"})


def test_gains_inside_their_intervals_are_counted() -> None:
    gain = Gain(
        script="mine", remedy="num_workers=4", rank=1, helps=True, predicted=2.0, low=1.6, high=2.4, measured=1.8
    )
    assert scored([gain, replace(gain, measured=3.0)])["inside"] == 1
    assert scored([gain])["median_half_width"] == pytest.approx(0.2)


def test_a_run_is_kept_until_its_script_changes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(collection_runs, "SCRIPTS", tmp_path)
    for name in ("stopwatch.py", "frameworks.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "mine.py").write_text("import sys; open('model.pt', 'w'); sys.exit(3)  # --epochs")
    lab = Lab(work=tmp_path / "work", feedline=Path(collection_runs.ROOT, ".venv/bin/feedline"), frameworks=tmp_path)
    mine = replace(SCRIPT, folder=tmp_path)
    first = lab.run("whole", mine)
    assert (first.status, first.files) == (3, ["model.pt"])
    assert lab.run("whole", mine).seconds == first.seconds
    (tmp_path / "mine.py").write_text("pass")
    assert lab.run("whole", replace(mine)).status == 0  # its text is read anew


def test_a_recording_is_told_anew_when_its_reader_changes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(collection_runs, "SCRIPTS", tmp_path)
    checkout = tmp_path / "checkout"
    told = checkout / "profiling" / "explain" / "told.txt"
    code = (checkout / "profiling" / "watch" / "watch.py", checkout / "profiling" / "explain" / "explain.py")
    for path in (tmp_path / "stopwatch.py", tmp_path / "frameworks.txt", *code):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    feedline = checkout / ".venv" / "bin" / "feedline"
    feedline.parent.mkdir(parents=True)
    feedline.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\n"
        "to = pathlib.Path(sys.argv[sys.argv.index('--json') + 1])\n"
        f"verdict = pathlib.Path({str(told)!r}).read_text() if sys.argv[1] == 'report' else 'as recorded'\n"
        'more = "" if sys.argv[1] == "report" else \', "recording": {}\'\n'
        'to.write_text(f\'{{"verdict": "{verdict}"{more}}}\')\n'
    )
    feedline.chmod(0o755)
    (tmp_path / "mine.py").write_text("pass")
    mine = replace(SCRIPT, folder=tmp_path)

    def verdict(changed: str, words: str) -> tuple[str, float]:
        (checkout / "profiling" / changed).write_text(f"# {words}")
        told.write_text(words)
        ran = Lab(work=tmp_path / "work", feedline=feedline, frameworks=tmp_path).run("profiled", mine)
        assert "recording" in ran.profile
        return ran.profile["verdict"], ran.seconds

    first = verdict("explain/explain.py", "data")
    again = verdict("explain/explain.py", "compute")
    assert (first[0], again) == ("data", ("compute", first[1]))
    anew = verdict("watch/watch.py", "trainer")
    assert anew[0] == "trainer"
    assert anew[1] != first[1]
