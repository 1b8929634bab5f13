"""Legs of a function in this process: a trial, behind which everything is as it was."""

import gc
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from feedline.pipeline.base.errors import UsageError  # noqa: E402
from feedline.profiling.profile import Profile  # noqa: E402
from feedline.profiling.watch.legs.snapshot import Snapshot  # noqa: E402
from tests.profiling.trainings import data  # noqa: E402


def trial(**options: Any) -> Profile:
    """With short windows."""
    profile = Profile(legs=True, resources=False, **({"steps": 8} | options))
    profile._config = replace(profile._config, window_s=0.05, rounds=1)
    return profile


class Training:
    """With all that a training changes; it has begun before."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100_000)
        self.generator = torch.Generator()
        self.loader = DataLoader(data(96), batch_size=8, shuffle=True, generator=self.generator)
        self.steps = 0
        self.epoch()
        self.model.eval()

    def epoch(self) -> None:
        self.model.train()
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x + random.random() * np.random.rand()), y).backward()
            self.optimizer.step()
            self.schedule.step()
            self.steps += 1

    def state(self) -> str:
        """Of everything, in words that can be compared."""
        torch.set_printoptions(precision=9, threshold=10_000)
        gradients = [one.grad for one in self.model.parameters()]
        generators = [torch.get_rng_state().tolist(), self.generator.get_state().tolist(), random.getstate()]
        return repr([
            self.model.state_dict(), gradients, [one.training for one in self.model.modules()],
            self.optimizer.state_dict(), self.schedule.state_dict(), generators, np.random.get_state(),
        ])  # fmt: skip


def surroundings() -> list[Any]:
    from torch.utils.data import dataloader

    return [
        DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__, torch.save, torch.autograd.backward,
        dataloader._MultiProcessingDataLoaderIter.__init__, list(sys.meta_path), sys.getswitchinterval(),
        sys.excepthook, sys.unraisablehook, threading.excepthook, gc.get_threshold(),
    ]  # fmt: skip


def test_a_trial_measures_the_ceiling_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    training = Training()
    before, around, threads = training.state(), surroundings(), set(threading.enumerate())
    for _ in range(2):
        profile = trial().run(training.epoch)
        assert training.state() == before
        assert surroundings() == around and set(threading.enumerate()) <= threads
        assert {leg.name for leg in profile.recording.legs} == {"normal", "cached", "loader_only"}
        assert profile.recording.leg("cached").samples_per_s
        assert (profile.recording.script.name, profile.recording.script.ended_by) == ("Training.epoch", "steps")
        assert not profile.recording.notes
    assert training.steps > 12 + 2 * 8
    torch.save(training.model.state_dict(), tmp_path / "model.pt")  # models are saved again
    (tmp_path / "own.ckpt").write_bytes(b"")
    training.epoch()
    assert training.state() != before


def failing(training: Training, error: BaseException) -> Callable[[], None]:
    """Behind its twelfth step."""

    def train() -> None:
        training.steps = 0
        for x, _ in training.loader:
            training.model.train()(x)
            training.optimizer.step()
            training.steps += 1
            if training.steps == 12:
                raise error

    return train


def test_an_error_in_a_window_is_told_of_the_legs() -> None:
    training = Training()
    before = training.state()
    profile = trial().run(failing(training, ValueError("the loss is not finite")))
    assert training.state() == before
    assert any("ended with ValueError: the loss is not finite" in note for note in profile.recording.notes)


@pytest.mark.parametrize("steps", [8, 1000], ids=["in a window", "before the windows"])
def test_an_interrupt_is_the_users(steps: int) -> None:
    training, profile = Training(), trial(steps=steps)
    before, around = training.state(), surroundings()
    with pytest.raises(KeyboardInterrupt):
        profile.run(failing(training, KeyboardInterrupt()))
    assert training.state() == before and surroundings() == around
    assert len(profile.recording.steps) >= 8
    assert any("interrupted" in note for note in profile.recording.notes)


def test_an_error_before_the_windows_is_the_users_too() -> None:
    training = Training()
    before = training.state()
    with pytest.raises(ValueError, match="wrong"):
        trial(steps=1000).run(failing(training, ValueError("wrong")))
    assert training.state() == before


def test_a_function_that_ends_before_its_windows_has_no_legs() -> None:
    training = Training()
    before = training.state()

    def train() -> None:
        for x, _ in training.loader:
            training.model(x)
            training.optimizer.step()
            break

    profile = trial().run(train)
    assert training.state() == before
    assert not profile.recording.legs and any(note.startswith("no legs") for note in profile.recording.notes)


def test_a_framework_that_counts_batches_itself_is_refused_in_one_line() -> None:
    training = Training()
    before, around = training.state(), surroundings()
    framework: dict[str, Any] = {"__name__": "ignite.engine.engine"}
    exec("def run(epoch):\n    for _ in range(100):\n        epoch()", framework)
    with pytest.raises(UsageError, match=r"no legs in here: ignite counts batches itself"):
        trial().run(framework["run"], training.epoch)
    assert training.state() == before and surroundings() == around


def test_legs_of_a_block_and_of_one_of_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"Profile\(legs=True\)\.run\(function\)"), Profile(legs=True):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UsageError, match="one of several ranks"):
        Profile(legs=True).run(print)


def test_what_was_never_finished_is_passed_over() -> None:
    """A traceback that the kernel keeps holds such objects."""

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            pass

    unfinished = [Forgetful(), torch.optim.Adam.__new__(torch.optim.Adam), DataLoader.__new__(DataLoader)]
    Snapshot().restore()
    assert len(unfinished) == 3


def test_what_the_function_replaces_stays_and_what_it_grows_is_gone() -> None:
    """A layer of another shape; gradients that there were before; a weight that two modules share."""
    shared, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = shared.weight
    shared.weight.grad = torch.ones(3, 3)
    before = shared.weight.detach().clone()
    snapshot = Snapshot()
    with torch.no_grad():
        shared.weight.fill_(7.0)
    shared.weight.grad = None
    other.bias = nn.Parameter(torch.full((5,), 2.0))
    snapshot.restore()
    assert torch.equal(other.weight, before) and torch.equal(shared.weight.grad, torch.ones(3, 3))
    assert other.bias.shape == (5,)


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    """Holds another schedule, as many do, which is in its state."""

    def __init__(self, optimizer: Any, then: Any) -> None:
        self.then = then
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, *_: Any) -> None:
        self.then.step()


def test_a_schedule_within_a_schedule_goes_on_driving_the_same_optimiser() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    inner = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    outer = Warmup(optimizer, inner)  # torch's own take a step as they are made
    before = Snapshot()
    outer.step()
    before.restore()
    assert outer.then is inner and optimizer.param_groups[0]["lr"] == 0.5
    outer.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_groups_that_a_wrapper_shares_stay_shared() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0, momentum=0.9)
    shared = optimizer.param_groups
    before = Snapshot()
    shared[0]["lr"] = 0.1
    before.restore()
    assert optimizer.param_groups is shared and shared[0]["lr"] == 1.0


def test_what_the_function_has_added_to_an_optimiser_is_gone_and_all_else_is_as_before() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    weight = model.weight.detach().clone()
    before = Snapshot()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    with torch.no_grad():
        model.weight.zero_()
    before.restore()
    assert len(optimizer.param_groups) == 1 and torch.equal(model.weight, weight)


def test_what_cannot_be_put_back_keeps_nothing_else_from_it() -> None:
    model, last = nn.Linear(2, 1), nn.Linear(2, 1)
    before, weight = Snapshot(), last.weight.detach().clone()
    before._put_back.insert(0, lambda: model.load_state_dict({}))
    with torch.no_grad():
        last.weight.zero_()
    with pytest.raises(RuntimeError, match="Missing key"):
        before.restore()
    assert torch.equal(last.weight, weight)
