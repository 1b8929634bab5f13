"""What a resumed run takes from its checkpoint, what from the command line, and what it leaves behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.train import checkpoint, loop, report
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.metrics import Event, Journal

Configure = Callable[..., TrainConfig]


def test_going_back_to_an_older_checkpoint_leaves_the_newer_ones_behind(configure: Configure, tmp_path: Path) -> None:
    config = configure(checkpoint_every=2, keep_last=9)
    train(config)
    older = tmp_path / "run/checkpoints/step-0000004.pt"
    train(replace(config, resume=str(older), lr=0.02, steps=9))
    names = [path.name for path in checkpoint.Checkpoints(tmp_path / "run").steps()]
    assert names == [checkpoint.step_name(step) for step in (2, 4, 6, 8, 9)]
    heard: list[Event] = []
    train(replace(config, resume="auto", lr=0.02), [heard.append])
    assert next(event["step"] for event in heard if event["event"] == "resume") == 9


def test_going_back_counts_before_the_first_checkpoint_and_leaves_nothing_of_the_old_line(
    configure: Configure, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(event: Event) -> None:
        if event["event"] == "step":
            raise Killed

    config, heard = configure(checkpoint_every=2, keep_last=9), list[Event]()
    train(config)
    back = replace(config, resume=str(tmp_path / "run/checkpoints/step-0000004.pt"), checkpoint_every=0)
    with pytest.raises(Killed):
        train(back, [heard.append, kill])
    (note,) = [event["text"] for event in heard if event["event"] == "note"]
    assert note.startswith("went back to step 4: removed step-0000006.pt, ")
    assert [path.name for path in checkpoint.Checkpoints(tmp_path / "run").steps()] == [
        checkpoint.step_name(step) for step in (2, 4)
    ]


def test_killed_in_the_last_evaluation_of_so_many_steps_it_is_done_again(
    configure: Configure, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(event: Event) -> None:
        if event["event"] == "epoch":
            raise Killed

    for name, steps in (("within", 4), ("whole", 6)):
        config = configure(run=tmp_path / name, steps=steps, checkpoint_every=2)
        with pytest.raises(Killed):
            train(config, [kill])
        (epoch,) = train(replace(config, resume="auto"))["epochs"]
        assert epoch["top1"] is not None and epoch["samples"] == 16 * steps


def test_decay_and_momentum_are_those_asked_for_also_after_a_resume(configure: Configure, tmp_path: Path) -> None:
    train(configure(epochs=2, keep_epochs=(1,)))
    path = tmp_path / "run/checkpoints/epoch-0001.pt"
    change: dict[str, Any] = {"weight_decay": 0.01, "momentum": 0.0}
    for name, begin in (("resumed", {"resume": str(path)}), ("rewound", {"rewind": path})):
        train(configure(run=tmp_path / name, epochs=2, **change, **begin))
        groups = checkpoint.read(tmp_path / name / "checkpoints/step-0000012.pt")["optimizer"]["param_groups"]
        assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
        assert {(group["momentum"], group["nesterov"]) for group in groups} == {(0.0, False)}


def test_the_best_of_a_run_lies_in_its_folder(configure: Configure, tmp_path: Path) -> None:
    """Also where it goes on from another run's checkpoint, and learns nothing better."""
    first = train(configure(run=tmp_path / "first", epochs=1))
    path = tmp_path / "first/checkpoints/step-0000006.pt"
    going_on = configure(run=tmp_path / "second", epochs=2, lr=1e-8, warmup_epochs=0, resume=str(path))
    second = train(replace(going_on))
    best = checkpoint.read(tmp_path / "second/checkpoints/best.pt")
    assert first["best_top1"] is not None
    assert best["progress"]["best_top1"] == second["epochs"][-1]["top1"]
    assert second["best_top1"] == max(epoch["top1"] for epoch in second["epochs"])


def test_the_best_top1_is_that_of_all_epochs_though_another_run_has_that_checkpoint(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([0.75, 0.5])
    whole = report.evaluate
    monkeypatch.setattr(report, "evaluate", lambda *args: replace(whole(*args), top1=next(told)))
    train(configure(run=tmp_path / "first", epochs=1))
    path = tmp_path / "first/checkpoints/step-0000006.pt"
    second = train(configure(run=tmp_path / "second", epochs=2, resume=str(path)))
    assert second["best_top1"] == 0.75
    assert checkpoint.read(tmp_path / "second/checkpoints/best.pt")["progress"]["best_top1"] == 0.5


def test_the_best_top1_of_a_run_that_keeps_no_checkpoints_is_the_best(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([0.5, 0.25])
    whole = report.evaluate
    monkeypatch.setattr(report, "evaluate", lambda *args: replace(whole(*args), top1=next(told)))
    record = train(configure(epochs=2, keep_last=0))
    assert record["best_top1"] == 0.5 and [epoch["top1"] for epoch in record["epochs"]] == [0.5, 0.25]


def test_weights_for_other_classes_are_told_as_such(configure: Configure, tmp_path: Path) -> None:
    train(configure(run=tmp_path / "first", epochs=1))
    path = tmp_path / "first/checkpoints/step-0000006.pt"
    with pytest.raises(checkpoint.CheckpointError, match=r"has \d+ classes, .* has 2: weights are taken"):
        train(configure(run=tmp_path / "other", epochs=1, init=path, classes=2))


def test_a_run_that_reached_its_target_goes_on_to_a_higher_one(configure: Configure) -> None:
    config = configure(epochs=40, lr=0.05, warmup_epochs=0, target_top1=0.4)
    reached = train(config)
    again = train(replace(config, resume="auto"))
    assert (again["steps"], again["time_to_target_s"]) == (reached["steps"], reached["time_to_target_s"])
    higher = train(replace(config, resume="auto", target_top1=reached["best_top1"] + 0.01))
    assert higher["steps"] > reached["steps"] and higher["best_top1"] > reached["best_top1"]
    assert higher["time_to_target_s"] > reached["time_to_target_s"]
    epochs = len(higher["epochs"]) + 1
    whole = train(replace(config, resume="auto", target_top1=None, epochs=epochs))
    assert len(whole["epochs"]) == epochs and whole["time_to_target_s"] is None


@pytest.mark.parametrize("resume, restarts", [("auto", "0"), (None, "3"), ("runs/old/checkpoints/best.pt", "3")])
def test_to_go_on_a_run_must_be_named(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str | None, restarts: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    with pytest.raises(UsageError, match=r"goes on with a run: name its folder, --run DIR"):
        train(configure(run=None, resume=resume))
    assert not list(tmp_path.iterdir())


def test_going_back_to_the_best_outlives_a_kill(configure: Configure, tmp_path: Path) -> None:
    """It is kept as a step's, too: nothing else of the run is left."""

    class Killed(Exception):
        pass

    def kill(event: Event) -> None:
        if event["event"] == "step":
            raise Killed

    config = configure(epochs=3)
    train(config)
    kept = checkpoint.Checkpoints(tmp_path / "run")
    first = tmp_path / "run/checkpoints/best.pt"
    first.write_bytes(kept.steps()[0].read_bytes())
    step = checkpoint.read(first)["progress"]["step"]
    for path in kept.steps()[:1]:
        path.unlink()
    with pytest.raises(Killed):
        train(replace(config, resume=str(first)), [kill])
    assert [path.name for path in kept.steps()] == [checkpoint.step_name(step)]
    heard: list[Event] = []
    train(replace(config, resume="auto"), [heard.append])
    assert next(event["step"] for event in heard if event["event"] == "resume") == step


def test_a_training_that_runs_loses_no_checkpoint_to_one_that_is_refused(
    configure: Configure, tmp_path: Path
) -> None:
    config = configure(checkpoint_every=2, keep_last=9)
    train(config)
    kept = checkpoint.Checkpoints(tmp_path / "run")
    before = [path.name for path in kept.steps()]
    with Journal(tmp_path / "run", tensorboard=False) as running:
        running({"event": "start"})
        with pytest.raises(UsageError, match="another training is running"):
            train(replace(config, resume=str(kept.steps()[0])))
    assert [path.name for path in kept.steps()] == before


def test_a_training_that_ends_while_another_one_starts_loses_no_checkpoint(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(checkpoint_every=2, keep_last=9, epochs=2)
    train(replace(config, steps=4))
    kept, whole = checkpoint.Checkpoints(tmp_path / "run"), loop.Run

    def slow(*given: Any) -> Any:
        monkeypatch.setattr(loop, "Run", whole)
        train(replace(config, resume="auto"))
        return whole(*given)

    monkeypatch.setattr(loop, "Run", slow)
    with pytest.raises(FeedlineError, match=r"another training in .*run went on and ended meanwhile: start again"):
        train(replace(config, resume="auto", steps=6))
    assert kept.steps()[-1].name == "step-0000012.pt"


def test_the_best_of_a_line_that_was_killed_before_its_step_was_written_goes_with_it(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([0.25, 0.5, 0.3])
    whole, write = report.evaluate, checkpoint.write_atomically
    monkeypatch.setattr(report, "evaluate", lambda *args: replace(whole(*args), top1=next(told)))

    class Killed(BaseException):
        pass

    def until(path: Path, data: bytes) -> None:
        if path.name == "step-0000012.pt":
            raise Killed
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_atomically", until)
    config = configure(epochs=2)
    with pytest.raises(Killed):
        train(config)
    monkeypatch.setattr(checkpoint, "write_atomically", write)
    best = tmp_path / "run/checkpoints/best.pt"
    assert checkpoint.read(best)["progress"]["best_top1"] == 0.5
    assert train(replace(config, resume="auto"))["best_top1"] == 0.3
    assert checkpoint.read(best)["progress"]["best_top1"] == 0.3


@pytest.mark.parametrize("resume", ["auto", "file"])
def test_amid_an_epoch_another_seed_is_refused_by_its_option(
    configure: Configure, tmp_path: Path, resume: str
) -> None:
    config = configure(epochs=1, seed=3)
    train(replace(config, steps=2))
    where = tmp_path / "run/checkpoints" / checkpoint.step_name(2)
    with pytest.raises(UsageError) as caught:
        train(replace(config, seed=4, resume=resume if resume == "auto" else str(where)))
    assert str(caught.value) == (
        f"checkpoint {where} is from within an epoch of --seed 3, this is --seed 4: "
        "give --seed 3, or begin anew with another --run, without --resume"
    )
    assert train(replace(config, resume="auto"))["steps"] > 2
