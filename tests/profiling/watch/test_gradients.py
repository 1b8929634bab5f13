"""Weights that get gradients which no optimiser uses."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from feedline.profiling.profile import Profile
from feedline.profiling.watch import sampler, trainer


@pytest.fixture(autouse=True)
def looks_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that models are seen in as short a run."""
    monkeypatch.setattr(sampler, "BUDGET", 1.0)
    monkeypatch.setattr(trainer, "TRAINER_HZ", 500.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        self.head = nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


class Teacher(Net):
    pass


def unused(step: Any, optimizers: list[torch.optim.Optimizer], steps: int = 150) -> tuple[int, list[str]]:
    with Profile(resources=False) as seen:
        for (x,) in DataLoader(TensorDataset(torch.rand(256 * steps, 256)), batch_size=256):
            for optimizer in optimizers:
                optimizer.zero_grad()
            step(x).backward()
            for optimizer in optimizers:
                optimizer.step()
    compute = seen.recording.compute
    return compute.unused_gradients, compute.unused_in


BACKBONE, HEAD = 2 * (256 * 256 + 256), 256 * 4 + 4


def test_a_backbone_that_was_not_handed_over_is_named() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.01)
    assert unused(lambda x: net(x).square().mean(), [optimizer]) == (BACKBONE, ["Net.backbone"])
    net.backbone.requires_grad_(False)
    for weight in net.backbone.parameters():
        weight.grad = None
    assert unused(lambda x: net(x).square().mean(), [optimizer]) == (0, [])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_teacher_that_is_asked_with_gradients_is_named(frozen: bool) -> None:
    net, teacher = Net(), Teacher()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not frozen):
            aim = teacher(x)
        return (net(x) - aim).square().mean()

    assert unused(step, [optimizer]) == ((0, []) if frozen else (BACKBONE + HEAD, ["Teacher"]))


def seldom(other: nn.Module) -> Any:
    """An optimiser that has not stepped yet."""
    return torch.optim.SGD(other.parameters(), lr=0.01)


def by_hand(other: nn.Module) -> Any:
    def trains(*_: Any) -> None:
        with torch.no_grad():
            for weight in other.parameters():
                if weight.grad is not None:
                    weight.sub_(0.01 * weight.grad)

    return register_optimizer_step_post_hook(trains)


def once(other: nn.Module) -> None:
    """Before the loop, of which they have gradients still."""
    other(torch.rand(1, 256)).sum().backward()
    other.requires_grad_(False)


@pytest.mark.parametrize("uses", [seldom, by_hand, once, None])
def test_weights_that_something_else_uses_are_not_told(uses: Any) -> None:
    net, other = Net(), Teacher()
    optimizer, used = torch.optim.SGD(net.parameters(), lr=0.01), uses and uses(other)
    found = unused(lambda x: net(x).square().mean() + other(x).square().mean(), [optimizer])
    assert found == ((0, []) if uses else (BACKBONE + HEAD, ["Teacher"]))
    if uses is by_hand:
        used.remove()


def test_gradients_that_are_left_of_before_are_not_computed_now() -> None:
    net, other = Net(), Teacher()
    other(torch.rand(1, 256)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            aim = other(x)
        return (net(x) - aim).square().mean()

    assert unused(step, [optimizer]) == (0, [])


def test_weights_of_which_an_optimiser_has_copies_are_not_told_as_unused() -> None:
    net = Net()
    copies = [weight.detach().clone().requires_grad_() for weight in net.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    assert unused(lambda x: net(x).square().mean(), [optimizer]) == (0, [])


def test_it_is_told_of_a_model_that_is_gone_as_the_script_ends_and_a_weight_of_its_own_by_name() -> None:
    def main() -> None:
        net = Net()
        net.backbone.scale = nn.Parameter(torch.ones(256))
        net.register_parameter("shift", nn.Parameter(torch.zeros(256)))
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.01)
        for (x,) in DataLoader(TensorDataset(torch.rand(256 * 150, 256)), batch_size=256):
            optimizer.zero_grad()
            net((x + net.shift) * net.backbone.scale).square().mean().backward()
            optimizer.step()

    with Profile(resources=False) as seen:
        main()
    compute = seen.recording.compute
    assert (compute.unused_gradients, compute.unused_in) == (BACKBONE + 512, ["Net.backbone", "Net.shift"])
