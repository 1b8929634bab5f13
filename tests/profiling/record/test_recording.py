"""A recording survives its file exactly; anything else is one clear line."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.base.errors import RecordingError
from feedline.profiling.record.lprof import read_lprof
from feedline.profiling.record.recording import (
    Compute,
    Gpu,
    Leg,
    Line,
    LoaderSeen,
    Overhead,
    Phase,
    Recording,
    Script,
    Series,
    Step,
    WorkerTime,
)

FULL = Recording(
    script=Script(argv=["train.py", "--epochs", "2"], exit_status=0),
    host={"cores": 2, "versions": {"torch": "2"}},
    loaders=[LoaderSeen(id=0, kind="torch", phase="train", num_workers=2, batch_shapes=[[64, 3, 224, 224], [64]])],
    compute=Compute(device="cuda", autocast=True),
    steps=[Step(start_s=i / 3, wait_s=0.1, duration_s=1 / 3, samples=64, starved_s=0.05) for i in range(5)],
    workers=[WorkerTime(worker=0, seconds=2.0, stages={"read": 0.5, "decode": 1.5}, cpu_s=1.75)],
    series=[
        Series(name="cpu_cores", unit="cores", scope="trainer", source="/proc", t_s=[0.0, 1.0], values=[1.0, None])
    ],
    gpus=[Gpu(uuid="GPU-1", source="gpm", sm_active=0.5, sources={"sm_active": "nvml gpm 2"})],
    legs=[Leg(name="cached", samples_per_s=[100.0, 101.5])],
    lines=[Line(file="a.py", function="f", line=3, hits=10, seconds=1.0, fraction=0.5)],
    overhead=Overhead(seconds=10.0, hooks_s=0.01, fraction=0.004),
    notes=["n"],
)


def test_survives_its_file(tmp_path: Path) -> None:
    FULL.save(tmp_path / "r.json")
    again = Recording.load(tmp_path / "r.json")
    rounded = [
        replace(step, start_s=round(step.start_s, 6), duration_s=round(step.duration_s, 6)) for step in FULL.steps
    ]
    assert again == replace(FULL, steps=rounded)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_reads_the_record_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"feedline": "0.1", "verb": "profile", "recording": FULL.to_dict()}))
    assert Recording.load(path).script == FULL.script


def test_fields_of_a_later_minor_are_ignored() -> None:
    assert Recording.from_dict({**FULL.to_dict(), "later": 1}).notes == ["n"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "is not a recording"),
        ('{"verb": "prepare"}', "is not a recording"),
        ('{"script": {"argv": []}, "version": 99}', "format version 99"),
        ('{"script": {"argv": []}, "version": 1}', "format version 1, this feedline reads 2: profile again"),
        ('{"script": {"argv": []}}', "format version None"),
        ('{"script": {"argv": 3}, "version": 2}', "Script.argv must be a list"),
        ('{"script": {}, "version": 2}', "Script.argv is missing"),
        ('{"script": {"argv": []}, "version": 2, "steps": {"columns": {"start_s": [1], "wait_s": []}}}', "lengths"),
        ('{"script": {"argv": []}, "version": 2, "steps": {"columns": null}}', "columns must be an object of lists"),
        (
            '{"script": {"argv": []}, "version": 2, "trials": [{"codec": "jpeg", "prepare_cpu_s_per_sample": -1}]}',
            "is -1",
        ),
        ('{"script": {"argv": []}, "version": 2, "host": {"shared_memory_bytes": "64 MB"}}', "shared_memory_bytes"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_anything_else_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordingError, match=said) as caught:
        Recording.load(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_what_has_no_end_or_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for read in (Recording.load, read_lprof):
            with pytest.raises(RecordingError, match="not a regular file"):
                read(path)
    FULL.save(tmp_path / "r.json")
    monkeypatch.setattr("feedline.profiling.record.recording.RECORDING_BYTES", 100)
    with pytest.raises(RecordingError, match="larger than"):
        Recording.load(tmp_path / "r.json")


def test_a_missing_file_and_an_unwritable_one(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        Recording.load(tmp_path / "none.json")
    with pytest.raises(RecordingError, match="cannot write"):
        FULL.save(tmp_path / "none" / "r.json")


@given(st.floats(0, 1e15) | st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_what_is_not_a_number_is_unknown(value: float) -> None:
    series = Series(name="x", unit="", scope="host", source="", t_s=[0.0], values=[value])
    text = json.dumps(replace(FULL, series=[series]).to_dict(), allow_nan=False)
    kept = Recording.from_dict(json.loads(text)).series[0].values[0]
    assert kept == value if abs(value) < float("inf") else kept is None


def test_measured_leaves_warm_up_and_other_phases_out() -> None:
    steps = [
        Step(start_s=0, wait_s=0, duration_s=1, samples=1, warm_up=True),
        Step(start_s=1, wait_s=0.25, duration_s=1, samples=1, copy_s=0.25, pause_s=0.25),
        Step(start_s=2, wait_s=0, duration_s=1, samples=1, phase="eval"),
    ]
    elsewhere = replace(steps[1], loader=1, start_s=3)
    assert replace(FULL, steps=[*steps, elsewhere]).measured() == [steps[1]] and steps[1].compute_s == 0.25


@pytest.mark.parametrize("phases", [("train", "eval"), ("eval", "eval")])
def test_where_nothing_is_behind_the_warm_up_the_best_there_is_counts(phases: tuple[Phase, Phase]) -> None:
    steps = [
        Step(start_s=start_s, wait_s=0, duration_s=1, samples=1, phase=phase, warm_up=True)
        for start_s, phase in enumerate(phases)
    ]
    expected = [step for step in steps if step.phase == phases[0]]
    assert replace(FULL, steps=steps).measured() == expected and not any(step.measured for step in steps)
