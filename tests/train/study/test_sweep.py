"""A sweep from end to end: small trainings, killed and joined, refused where they do not fit together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedline.cli.main import app
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.train.config import TrainConfig
from feedline.train.metrics import read_events
from feedline.train.study import sweep
from feedline.train.study.search import JOURNAL
from feedline.train.study.sweep import SweepConfig
from feedline.train.study.tasks import Tasks
from feedline.train.study.work import Order, work_through

LR = "[lr]\nlow = 1e-3\nhigh = 0.3\nlog = true\n"
Configure = Callable[..., TrainConfig]


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., SweepConfig]:
    def make(space: str = LR, **options: Any) -> SweepConfig:
        (tmp_path / "space.toml").write_text(space)
        return SweepConfig(**{"space": tmp_path / "space.toml", "study": tmp_path / "study", "trials": 3} | options)

    return make


def here(config: TrainConfig, options: SweepConfig, at_most: int | None = None) -> dict[str, Any]:
    """The study's trials, in this process; the record."""
    told = json.loads(json.dumps(sweep.settings(config, options)))
    starter = (os.getpid(), 0.0)
    order = Order(kind=sweep.__name__, study=str(options.study), settings=told, starter=starter, at_most=at_most)
    work_through(order)
    return sweep.begin(options.study, told).record()


def test_each_trial_is_a_run_like_any_other_and_the_best_is_named(
    configure: Configure, plan: Callable[..., SweepConfig]
) -> None:
    options = plan(LR + "[batch_size]\nchoices = [8, 16]\n", reduction=1)
    assert here(configure(batch_size=64), options, at_most=1)["counts"] == {"complete": 1, "open": 2}
    record = here(configure(batch_size=64), options)
    assert [trial["number"] for trial in record["trials"]] == [0, 1, 2]
    assert record["best"] == max(record["trials"], key=lambda trial: trial["value"])
    assert record["counts"] == {"complete": 3}
    for trial in record["trials"]:
        run = options.study / trial["run"]
        assert (run / "checkpoints" / "best.pt").exists()
        began, ended = read_events(run, "start")[0], read_events(run, "end")[0]
        assert {name: began["config"][name] for name in ("lr", "batch_size")} == trial["params"]
        assert trial["value"] == ended["epochs"][-1]["top1"] == trial["curve"][-1][1]
        assert trial["epochs"] == len(trial["curve"]) == 2


def test_a_trial_that_is_behind_ends_early(configure: Configure, plan: Callable[..., SweepConfig]) -> None:
    record = here(configure(epochs=4), plan(trials=5, reduction=5))
    assert record["counts"]["pruned"] >= 1
    assert record["epochs"] < record["full_epochs"] == 20
    for trial in record["trials"]:
        assert (trial["epochs"] == 4) == (trial["state"] == "complete")


def test_a_trial_that_diverges_is_a_result_and_not_tried_again(
    configure: Configure, plan: Callable[..., SweepConfig]
) -> None:
    record = here(configure(), plan("[lr]\nchoices = [1e8]\n", trials=1))
    (trial,) = record["trials"]
    assert (trial["state"], trial["attempts"], trial["params"]) == ("pruned", 1, {"lr": 1e8})
    assert "the loss became" in trial["error"] and record["best"] is None


def test_a_study_in_which_everything_fails_is_given_up(
    configure: Configure, plan: Callable[..., SweepConfig]
) -> None:
    options = plan("[model]\nchoices = ['squeezenet1_0']\n", trials=30)
    with pytest.raises(FeedlineError, match=r"the first 5 trials of .* failed: .*the model cannot take it"):
        here(configure(model="mobilenet_v2", image_size=8), options)
    row = Tasks(options.study).told(1)[0]
    assert (row["name"], row["state"], row["attempts"]) == ("trial-0000", "failed", 2)
    assert row["params"] == {"model": "squeezenet1_0"}


def test_what_does_not_fit_the_study_is_refused(configure: Configure, plan: Callable[..., SweepConfig]) -> None:
    sweep.settings(configure(), plan())
    sweep.settings(configure(num_workers=1), plan(trials=9))  # these may differ
    with pytest.raises(UsageError, match=r"another --epochs \(2, here 3\)"):
        sweep.settings(configure(epochs=3), plan())
    with pytest.raises(UsageError, match="another space"):
        sweep.settings(configure(), plan("[lr]\nlow = 1e-3\nhigh = 0.4\nlog = true\n"))
    with pytest.raises(UsageError, match="another --reduction"):
        sweep.settings(configure(), plan(reduction=4))


def test_settings_with_which_no_trial_could_begin_leave_nothing(
    configure: Configure, plan: Callable[..., SweepConfig]
) -> None:
    for config, space, said in (
        (configure(eval_every=0), LR, "validation accuracy"),
        (configure(dataset=Path("no/such")), LR, "does not exist"),
        (configure(model="resnet"), LR, "--model 'resnet' is not known: try .*resnet18"),
        (
            configure(model="mobilenet_v2"),
            "[model]\nchoices = ['small_cnn', 'resnet']\n",
            "--model 'resnet' is not known",
        ),
        (configure(batch_size=64), "[batch_size]\nlow = 8\nhigh = 500\n", "larger than the 96"),
    ):
        options = plan(space)
        with pytest.raises(UsageError, match=said):
            sweep.settings(config, options)
        assert not options.study.exists()


@pytest.mark.slow
def test_killed_with_two_trials_under_way_and_continued(
    dataset: Path, plan: Callable[..., SweepConfig], tmp_path: Path
) -> None:
    """With -9, the command and both of its workers, which have joined one journal."""
    options = plan()
    line = ("sweep", dataset, "--space", options.space, "--study", options.study, "--trials", 5, "--epochs", 3,
            "--model", "small_cnn", "--image-size", 20, "--batch-size", 8, "--num-workers", 0, "--no-tensorboard",
            "--threads", 1)  # fmt: skip
    words, tasks = list(map(str, line)), Tasks(options.study)
    program = "from feedline.cli.main import run; run()"
    first = subprocess.Popen([sys.executable, "-c", program, *words, "--jobs", "2"], stderr=subprocess.PIPE)
    while not tasks.running():
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    while first.poll() is None and len(tasks.attempts()) < 2:
        time.sleep(0.01)
    for deed in (signal.SIGSTOP, signal.SIGKILL):  # what stands still cannot end in between
        under_way = tasks.running()
        for lease in under_way.values():
            os.kill(lease["pid"], deed)
    first.kill()
    first.wait()
    app([*words, "--json", str(tmp_path / "sweep.json")], standalone_mode=False)
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert set(record["counts"]) <= {"complete", "pruned"} and sum(record["counts"].values()) == 5
    begun = [trial["attempts"] for trial in record["trials"]]
    assert under_way and sum(begun) == 5 + len(under_way)
    assert all(begun[number] == 2 for number in under_way)
    assert record["best"]["value"] == max(t["value"] for t in record["trials"] if t["state"] == "complete")
    for row in (options.study / JOURNAL).read_text().splitlines():
        json.loads(row)
    assert "Sweep:" in (options.study / "study.html").read_text()


def test_the_batches_of_a_trial_are_those_it_would_have_alone(
    configure: Configure, plan: Callable[..., SweepConfig]
) -> None:
    """Weights after a trial of a study equal those of a run by itself, to the bit."""
    import torch

    from feedline.train import checkpoint
    from feedline.train.loop import train

    options = plan(trials=2, reduction=1)
    record = here(configure(), options)
    trial = record["trials"][1]
    alone = configure(run=options.study.parent / "alone", **trial["params"])
    train(replace(alone, keep_last=1))
    (mine,) = (alone.run or Path()).glob("checkpoints/step-*.pt")
    theirs = max((options.study / trial["run"]).glob("checkpoints/step-*.pt"))
    for name, tensor in checkpoint.read(mine)["model"].items():
        assert torch.equal(tensor, checkpoint.read(theirs)["model"][name])
