"""The ladder without running it: what is said before, what is shown after."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from feedline.benchmarks import commands, ladder
from feedline.benchmarks.ladder import (
    LadderConfig,
    Rung,
    differences,
    predictions,
    prepare,
    profile,
    record_of,
    rungs_of,
)
from feedline.benchmarks.measure.window import Window
from feedline.benchmarks.pages import ladder_rows, ladder_section, ladder_story
from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare as run_prepare
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import LoaderSeen, Recording, Script, Trial
from feedline.profiling.render.html import document
from feedline.profiling.render.sections import Page
from tests.profiling.recordings import crowded, made


def window(rate: float, cpu: float = 1.0, **facts: Any) -> Window:
    return Window(
        samples=round(10 * rate), seconds=10.0, batches=10, wait_s=1.0, trainer_cpu_s=10.0 * cpu, worker_cpu_s=5.0,
        facts=facts or {"dtype": "float32", "shape": [64, 3, 64, 64]},
    )  # fmt: skip


def climbed() -> dict[str, Any]:
    rungs = rungs_of(2, Path("s"), Path("r"))
    windows = {
        rung.key: [window(rate * k) for k in (0.98, 1.0, 1.03)]
        for rung, rate in zip(rungs[:-1], (400, 600, 700, 1500, 2800), strict=True)
    }
    predicted = Prediction(remedy="any", samples_per_s=660.0, low=600.0, high=720.0, why="the cores are the limit")
    free = {"ceiling": [window(2900), window(3000), window(3100)]}
    return record_of(rungs, windows | free, dict.fromkeys(windows, predicted))


def test_the_record_has_the_keys_others_rely_on() -> None:
    record = climbed()
    assert [rung["samples_per_s"] for rung in record["rungs"]] == pytest.approx([400, 600, 700, 1500, 2800])
    for rung in record["rungs"]:
        assert {"name", "samples_per_s", "low", "high", "predicted"} <= rung.keys()
        assert rung["low"] < rung["samples_per_s"] < rung["high"]
    assert record["ceiling_samples_per_s"] == pytest.approx(3000) and record["gain"] == pytest.approx(7.0)


def test_table_and_sentence_say_what_was_measured() -> None:
    record = climbed()
    table = ladder_rows(record)
    assert len(table) == 6 and table[1][1] == "600" and table[1][4] == "+10 %" and table[1][5] == "1.5×"
    assert "from 400 samples/s to 2,800 samples/s, 7× as fast, 93 %" in ladder_story(record)
    assert "data is free" in document(Page(title="", sections=[ladder_section(record)]))
    assert "too noisy" not in ladder_story(record)
    for changed in ({"ceiling_low": 500.0, "ceiling_high": 9000.0}, {"ceiling_samples_per_s": 2000.0}):
        assert "But these windows are too noisy to tell how much" in ladder_story(record | changed)


def test_rungs_whose_shards_or_package_are_not_there_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.key for one in rungs_of(2, Path("s"), None)] == ["as-is", "workers", "shards", "loader", "ceiling"]
    assert [one.key for one in rungs_of(2, Path("s"), Path("r"))][-2:] == ["raw", "ceiling"]
    monkeypatch.setattr(ladder, "find_spec", lambda name: None)
    assert [one.key for one in rungs_of(2, Path("s"), None)] == ["as-is", "workers", "loader", "ceiling"]


def test_batches_of_another_kind_are_pointed_out() -> None:
    usual, other = window(1.0).facts, window(1.0, dtype="uint8", shape=[64, 64, 64, 3]).facts
    assert differences({"a": usual}) == []
    assert "uint8" in differences({"a": usual, "b": other})[0]


def test_rungs_are_predicted_by_the_figures_of_the_report() -> None:
    trials = [
        Trial(codec=codec, size_px=size, loader=loader, samples=99, bytes_per_sample=9e3, load_cpu_s_per_sample=cost)
        for loader, factor in (("feedline", 1.0), ("script", 2.0))
        for codec, size, cost in (("as-is", None, 2e-3), ("jpeg", 256, 4e-4 * factor), ("raw", 64, 2e-5 * factor))
    ]
    seen = made(workers=0, cores=2, ceiling=3000.0, trials=trials)
    report = {one.remedy: one for one in diagnose(seen).predictions}
    found = predictions(seen, workers=2, size_px=256, raw_px=64)
    jpeg, raw = "prepared 256 px jpeg shards, {}, 2 workers", "prepared 64 px raw shards, {}, 2 workers"
    assert found["workers"] == report["num_workers=2"]
    assert found["shards"] == report[jpeg.format("your own loader")]
    assert found["loader"] == report[jpeg.format("feedline's loader")]
    assert found["raw"] == report[raw.format("feedline's loader")]
    assert found["as-is"].samples_per_s == pytest.approx(diagnose(seen).samples_per_s)
    assert "raw" not in predictions(seen, workers=2, size_px=256, raw_px=None)


def test_workers_that_the_script_has_already_change_nothing() -> None:
    found = predictions(made(workers=2), workers=2, size_px=256, raw_px=None)
    assert found["workers"] == found["as-is"] and set(found) == {"workers", "as-is"}
    nothing = Recording(script=Script(argv=["x.py"]))
    assert predictions(nothing, workers=2, size_px=256, raw_px=None) == {}


def test_options_behind_the_source_are_pointed_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prepared stands behind SOURCE"):
        LadderConfig(source=tmp_path, argv=["--prepared", "x"], work=tmp_path).check()


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 2"):
        LadderConfig(source=tmp_path, argv=["x"], rounds=1)
    with pytest.raises(UsageError, match="has no train/CLASS"):
        LadderConfig(source=tmp_path, argv=[], work=tmp_path).check()
    with pytest.raises(UsageError, match="script nosuch does not exist"):
        LadderConfig(source=tmp_path, argv=["nosuch"], work=tmp_path).check()
    for words in (["-m", "nosuch.train"], ["-m"]):
        with pytest.raises(UsageError, match=r"module .*does not exist"):
            LadderConfig(source=tmp_path, argv=words, work=tmp_path).check()


@pytest.mark.parametrize(
    ("seen", "asked", "fits"),
    [
        (Script(argv=["/a/train.py", "--lr", "1"]), ["b/train.py", "--lr", "1"], True),
        (Script(argv=["train.py", "--lr", "1"]), ["train.py", "--lr", "2"], False),
        (Script(argv=["other.py"]), ["train.py"], False),
        (Script(argv=["mine.train"], module=True), ["-m", "mine.train"], True),
        (Script(argv=["mine.train"]), ["-m", "mine.train"], False),
    ],
)
def test_a_record_of_another_script_is_refused(tmp_path: Path, seen: Script, asked: list[str], fits: bool) -> None:
    record = tmp_path / "profile.json"
    made(script=seen).save(record)
    config = LadderConfig(source=tmp_path, argv=asked, profiled=record, work=tmp_path)
    if fits:
        assert profile(config, asked, print).script == seen
        return
    with pytest.raises(UsageError, match=r"profile\.json is a record of"):
        profile(config, asked, print)


def test_trials_are_kept_where_the_samples_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [Trial(codec="jpeg", size_px=256, samples=9, load_cpu_s_per_sample=1e-3)]
    monkeypatch.setattr(ladder, "what_if", lambda *_, **__: [])
    assert ladder.with_trials(made(trials=trials), 256, "64:raw:square").trials == trials


def test_the_training_loader_is_the_recordings_own() -> None:
    loaders = [
        LoaderSeen(id=number, kind=kind, phase=phase)
        for number, (kind, phase) in enumerate(
            [("torch", "eval"), ("webdataset", "other"), ("torch", "train"), ("torch", "eval")]
        )
    ]
    assert ladder.training_loader(made(loaders=loaders)) == 1
    with pytest.raises(UsageError, match="its batches come from webdataset"):
        ladder.training_loader(made(loaders=[replace(loaders[1], phase="train")]))
    with pytest.raises(UsageError, match="none was seen"):
        ladder.training_loader(Recording(script=Script(argv=["x.py"])))
    with pytest.raises(UsageError, match="a Subset of a dataset"):
        ladder.training_loader(made(loaders=[replace(loaders[2], refused="a Subset of a dataset cannot be carried")]))


@pytest.mark.parametrize("resize", ["square", "stretch"])
def test_prepared_shards_are_climbed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_folder: Path, resize: str
) -> None:
    """Predicted for their own size; without raw ones that show what the script does that rung is left out, and that
    is said."""
    out, outputs = tmp_path / "OUT", [Output(codec="jpeg", size_px=32)]
    outputs.append(Output(codec="raw", size_px=64, resize="square" if resize == "stretch" else "stretch"))
    run_prepare(
        PrepareConfig(source=str(tiny_folder), out=str(tmp_path / "OUT"), outputs=tuple(outputs), engine="processes")
    )
    sixty_four = LoaderSeen(id=0, kind="torch", phase="train", refused="", batch_shapes=[[32, 3, 64, 64], [32]])
    shown = replace(sixty_four, augment={"whole": 1.0} if resize == "stretch" else {})
    beside = {"square": 4.0, "stretch": 3.0}[resize]  # of the four cores, those that were busy
    replace(crowded(beside), loaders=[shown]).save(tmp_path / "profile.json")
    script = tmp_path / "train.py"
    script.touch()
    seen: dict[str, Any] = {}

    def tried(recording: Recording, shards_px: int, raw: str) -> Recording:
        seen["forms"] = (shards_px, raw)
        return recording

    def climbed_no_rung(_: Any, rungs: list[Rung], *__: Any) -> dict[str, list[Window]]:
        seen["rungs"] = [rung.key for rung in rungs]
        return {rung.key: [window(400), window(401)] for rung in rungs}

    monkeypatch.setattr(ladder, "with_trials", tried)
    monkeypatch.setattr(ladder, "climb", climbed_no_rung)
    notes = list[str]()
    config = LadderConfig(source=tiny_folder, argv=[str(script)], work=tmp_path / "work", prepared=out,
                          profiled=tmp_path / "profile.json")  # fmt: skip
    record = ladder.ascend(config, notes.append)
    told = "predicted from a profile beside other programs, which took 2.6 of the 4 cores"
    assert (told in document(Page(title="", sections=[ladder_section(record)]))) == (beside == 4.0)
    assert seen["forms"] == (32, f"64:raw:{resize}")
    assert "raw" not in seen["rungs"] and "loader" in seen["rungs"]
    assert any(f"--output 64:raw:{resize}" in note for note in notes)


def test_a_profile_is_kept_until_its_script_module_or_feedline_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, profiled = tmp_path / "mine", list[str]()
    folder.mkdir()
    (folder / "train.py").write_text("")

    def run(step: commands.Step, keep: Path, **_: Any) -> commands.Done:
        profiled.append(str(step.inputs))
        return commands.Done(record={"recording": made().to_dict()}, seconds=1.0, reused=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "run", run)
    for argv in (["mine/train.py"], ["-m", "mine.train"]):
        config = LadderConfig(source=tmp_path, argv=argv, work=tmp_path)
        for text in ("", "", "import torch"):
            (folder / "train.py").write_text(text)
            os.utime(folder / "train.py", (len(text), len(text)))
            profile(config, argv, print)
        assert profiled[-3] == profiled[-2] != profiled[-1]
    monkeypatch.setattr(ladder, "package_version", lambda _: "another")
    profile(LadderConfig(source=tmp_path, argv=["-m", "mine.train"], work=tmp_path), ["-m", "mine.train"], print)
    assert profiled[-2] != profiled[-1]


def test_another_size_or_a_changed_source_has_shards_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others lie, `prepare` asks for --overwrite, which the ladder does not have."""
    outs = list[Path]()

    def run(step: commands.Step, keep: Path, **_: Any) -> commands.Done:
        outs.extend(step.products)
        return commands.Done(record={}, seconds=1.0, reused=False)

    monkeypatch.setattr(commands, "run", run)
    photos = tmp_path / "photos" / "train" / "cat"
    photos.mkdir(parents=True)
    for size, name in ((256, "a.png"), (256, "a.png"), (128, "a.png"), (128, "b.png")):
        if not (photos / name).exists():
            Image.new("RGB", (8, 8)).save(photos / name)
        prepare(
            LadderConfig(source=tmp_path / "photos", argv=[], work=tmp_path, size_px=size), "64:raw:square", print
        )
    assert outs[0] == outs[1] and len(set(outs)) == 3
