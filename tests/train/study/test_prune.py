"""Tickets and controls: planned once, each alone in its task, every count exact."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import from_plain
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import Checkpoints
from feedline.train.config import TrainConfig
from feedline.train.distributed import World
from feedline.train.loop import train
from feedline.train.study.prune import MASK, PruneConfig, Pruning, Ticket, begin, plan, settings
from feedline.train.study.tasks import Task, Tasks
from feedline.train.weights import parameters_of
from tests.train.conftest import PX, write_dataset

ALONE = World(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
WEIGHTS = 6 * 3 * 25 + 16 * 6 * 25 + 576 * 84 + 84 * 3
"""Of the small CNN's layers, biases apart."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs that were kept. Do not write into it."""
    folder = tmp_path_factory.mktemp("parent")
    write_dataset(folder / "OUT")
    train(TrainConfig(
        dataset=folder / "OUT", run=folder / "run", model="small_cnn", image_size=PX, batch_size=16, epochs=3,
        keep_epochs=(0, 1, 2), seed=5, lr=0.05, num_workers=0, flip=False, tensorboard=False, log_every=1, threads=1,
        deterministic=True,
    ))  # fmt: skip
    return folder / "run"


def pruning(run: Path, study: Path = Path("no/study"), **options: Any) -> Pruning:
    return Pruning(study, PruneConfig(run=run, **options))


def work(pruned: Pruning, *names: str) -> dict[str, dict[str, Any]]:
    """The records of the study's tasks, or of those with these names, done in this process."""
    tasks = pruned._tasks
    todo = [task for task in pruned.tasks() if task.name in names or not names]
    while (claim := tasks.take(todo)) is not None:
        with claim:
            claim.finish(**pruned.do(claim.task, ALONE, claim))
    return {record["name"]: record for record in tasks.records().values()}


def final(run: Path) -> dict[str, torch.Tensor]:
    return parameters_of(checkpoint.read(Checkpoints(run).steps()[-1]))


def test_the_plan_has_each_ticket_and_control_once() -> None:
    config = PruneConfig(run=Path("RUN"), keep=(0.4, 0.1, 0.4), rewind=(0, 2), seeds=2)
    tickets = plan(config, own_seed=7)
    assert len(tickets) == len(set(tickets)) == 2 * 2 * (1 + 2 * 2)
    assert tickets[0] == Ticket(1.0, 0, 7, "full") and tickets[1] == Ticket(0.4, 0, 7, None)
    assert {ticket.seed for ticket in tickets[:10]} == {7}
    assert len({ticket.name for ticket in tickets}) == len(tickets)
    assert tickets[2].name == "keep0.4-rewind0-seed7-random"
    alone = plan(replace(config, controls=False), own_seed=0)
    assert {ticket.control for ticket in alone} == {None} and len(alone) == 8


def test_the_settings_travel_as_json(run: Path, tmp_path: Path) -> None:
    config = PruneConfig(run=run, keep=(0.3,), rewind=(1,), threads=1)
    told = settings(replace(config, study=tmp_path / "study"))
    again = begin(tmp_path / "study", json.loads(json.dumps(told)))
    assert again.pruning == replace(config, study=tmp_path / "study")
    assert again.config == Pruning(tmp_path, config).config
    assert again.config.global_batch == 16, "whatever the ranks of a task"
    settings(replace(config, study=tmp_path / "study", num_workers=0))  # joins it
    with pytest.raises(UsageError, match=r"has another --keep \(\[0\.3\], here \[0\.2\]\)"):
        settings(replace(config, study=tmp_path / "study", keep=(0.2,)))


def test_another_dataset_than_the_run_s_is_refused_before_a_task_fails(run: Path, tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "OTHER", train=24, val=9)
    for dataset, said in ((other, "is not what .* was trained on"), (tmp_path / "gone", "does not exist")):
        with pytest.raises(UsageError, match=said):
            settings(PruneConfig(run=run, study=tmp_path / "study", dataset=dataset))
    assert not (tmp_path / "study").exists()


def test_every_task_has_exactly_its_zeros_and_the_full_network_is_the_run_again(run: Path, tmp_path: Path) -> None:
    pruned = pruning(run, tmp_path / "study", keep=(0.4, 0.05), rewind=(0, 1))
    assert {row["top1"] for row in pruned.record()["tasks"]} == {None}
    records = work(pruned)
    assert len(records) == 2 * (1 + 2 * 2)
    told = pruned.record()
    assert told["counts"] == {"complete": 10}
    assert [Ticket(*(row[key] for key in Ticket._fields)) for row in told["tasks"]] == pruned.tickets
    assert all((row["top1"], row["zeros"]) == (records[row["name"]]["value"], records[row["name"]]["zeros"])
               for row in told["tasks"])  # fmt: skip
    for name, record in records.items():
        keep = record["params"]["keep"]
        assert record["weights"] == WEIGHTS
        assert record["zeros"] == record["pruned"] == WEIGHTS - round(keep * WEIGHTS)
        assert (record["state"], record["optimizer"]) == ("complete", "kept")
        assert record["value"] == record["curve"][-1][1]
        assert [epoch for epoch, _ in record["curve"]] == list(range(record["params"]["rewind"] + 1, 4))
        held = masks.read(tmp_path / "study/runs" / name / MASK)
        left_out = {layer: final(tmp_path / "study/runs" / name)[layer][~mask] for layer, mask in held.items()}
        assert all(weights.view(torch.int32).eq(0).all() for weights in left_out.values())
    for rewind in (0, 1):
        theirs, mine = final(run), final(tmp_path / f"study/runs/keep1.0-rewind{rewind}-seed5-full")
        assert all(torch.equal(theirs[name], mine[name]) for name in theirs)
        ticket, drawn = (
            masks.read(tmp_path / f"study/runs/keep0.05-rewind{rewind}-seed5{control}" / MASK)
            for control in ("", "-random")
        )
        assert [int(mask.sum()) for mask in ticket.values()] == [int(mask.sum()) for mask in drawn.values()]
        assert not all(torch.equal(ticket[name], drawn[name]) for name in ticket)


def test_rounds_prune_what_the_round_before_was_trained_to(run: Path, tmp_path: Path) -> None:
    names = ("keep0.25-rewind1-seed5-random", "keep0.25-rewind1-seed5")
    for number, order in enumerate((names, names[::-1])):  # a control needs no ticket before it, and takes one's mask
        study = tmp_path / str(number)
        for name in order:
            work(pruning(run, study, keep=(0.25,), rewind=(1,), rounds=2), name)
        first, last = (masks.read(study / "runs" / names[1] / part / MASK) for part in ("round-1", "."))
        assert masks.pruned(first) == WEIGHTS - round(0.5 * WEIGHTS)
        assert masks.pruned(last) == WEIGHTS - round(0.25 * WEIGHTS)
        assert not any((last[name] & ~first[name]).any() for name in last)
        trained = masks.prunable(final(study / "runs" / names[1] / "round-1"))
        wanted = masks.by_magnitude(trained, 0.25, among=first)
        assert all(torch.equal(wanted[name], last[name]) for name in last)
        drawn = masks.read(study / "runs" / names[0] / MASK)
        assert [int(mask.sum()) for mask in drawn.values()] == [int(mask.sum()) for mask in last.values()]
    assert (tmp_path / "0/runs" / names[0] / "round-1").exists()
    assert not (tmp_path / "1/runs" / names[0] / "round-1").exists()


def test_a_task_that_was_killed_goes_on(run: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    name, options = "keep0.2-rewind0-seed5", {"keep": (0.2,), "rounds": 2, "controls": False}
    whole = work(pruning(run, tmp_path / "whole", **options))[name]
    pruned = pruning(run, tmp_path / "parts", **options)
    tasks, (task,) = Tasks(tmp_path / "parts"), pruned.tasks()
    for epochs in (2, 3, 2):  # in the first round, in the second, and there again
        claim = tasks.take([task])
        assert claim is not None

        def show(_seen: list[int] = [], **_: Any) -> None:  # noqa: B006
            _seen.append(1)
            if len(_seen) == epochs:  # noqa: B023
                raise Killed

        claim.show = show  # type: ignore[method-assign]
        with pytest.raises(Killed), claim:
            pruned.do(task, ALONE, claim)
    parts = work(pruned)[name]
    assert {key: parts[key] for key in ("value", "curve", "zeros")} == {
        key: whole[key] for key in ("value", "curve", "zeros")
    }
    one, other = (final(tmp_path / study / "runs" / name) for study in ("whole", "parts"))
    assert all(torch.equal(one[layer], other[layer]) for layer in one)


def test_per_layer_and_norms_and_an_empty_layer(run: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rewind": (2,), "controls": False}
    pruned = pruning(run, tmp_path / "few", keep=(0.001,), per_layer=True, rewind_optimizer=False, **options)
    record = work(pruned)["keep0.001-rewind2-seed5"]
    assert record["empty_layers"] == ["features.0.weight", "classifier.3.weight"]  # 450 and 252 weights
    assert record["zeros"] == WEIGHTS - 2 - 48 and record["optimizer"] == "empty"
    record = work(pruning(run, tmp_path / "all", keep=(0.5,), vectors=True, **options))["keep0.5-rewind2-seed5"]
    assert record["weights"] == WEIGHTS + 6 + 16 + 84 + 3
    assert record["zeros"] == record["weights"] - round(0.5 * record["weights"])


def test_what_all_processes_agree_on(run: Path) -> None:
    one = pruning(run, keep=(0.5,)).identity()
    assert one == pruning(run, keep=(0.5,), threads=2, seeds=3).identity()
    tickets, more = pruning(run).tickets, pruning(run, seeds=3).tickets
    assert more[: len(tickets)] == tickets and len(more) == 3 * len(tickets)
    assert one != pruning(run, keep=(0.4,)).identity()
    json.dumps(one)


def test_a_run_that_cannot_be_pruned_is_one_line(run: Path, tmp_path: Path) -> None:
    trained = checkpoint.read(Checkpoints(run).steps()[-1])
    config = from_plain(TrainConfig, trained["config"])
    with pytest.raises(UsageError, match=r"no/such/run does not exist: give the folder of a finished run$"):
        pruning(Path("no/such/run"))
    train(replace(config, run=tmp_path / "plain", keep_epochs=(), epochs=1))
    with pytest.raises(UsageError, match=r"plain kept no weights: train it, to the end, with --keep-epochs 0,1$"):
        pruning(tmp_path / "plain", rewind=(0, 1))
    with pytest.raises(UsageError, match="kept the weights of epochs 0,1,2 and not of 3: --rewind one of these"):
        pruning(run, rewind=(0, 3))
    train(replace(config, run=tmp_path / "whole", keep_epochs=(0, 1), epochs=1))
    with pytest.raises(UsageError, match="--rewind 1: the run ended there"):
        pruning(tmp_path / "whole", rewind=(1,))
    train(replace(config, run=tmp_path / "part", keep_epochs=(0,), checkpoint_every=3))
    newest = Checkpoints(tmp_path / "part").steps()
    for path in newest[1:]:
        path.unlink()
    state = checkpoint.read(newest[0])
    newest[0].write_bytes(checkpoint.to_bytes(state | {"progress": state["progress"] | {"epoch": 1}}))
    with pytest.raises(UsageError, match=r"part has not ended \(1 of 3 epochs\): train it on with --resume auto"):
        pruning(tmp_path / "part")
    for wrong in ({"keep": ()}, {"keep": (0.0,)}, {"keep": (1.5,)}, {"rewind": ()}, {"rounds": 0}):
        with pytest.raises(UsageError, match=f"--{next(iter(wrong))}"):
            PruneConfig(run=run, **wrong)


def test_a_task_names_its_run_folder() -> None:
    task = Task(number=0, name=Ticket(1e-05, 0, 0, None).name)
    assert task.name.replace("-", "").replace(".", "").isalnum()
