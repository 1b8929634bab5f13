"""Weights that get gradients which no optimiser uses."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from feedline.profiling.profile import Profile


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


def test_weights_that_another_optimiser_trains_are_used_however_seldom() -> None:
    net, other = Net(), Teacher()
    often = torch.optim.SGD(net.parameters(), lr=0.01)
    late = torch.optim.SGD(other.backbone.parameters(), lr=0.01)
    steps = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 100:
            late.add_param_group({"params": list(other.head.parameters())})
            late.step()
        return net(x).square().mean() + other(x).square().mean()

    assert unused(step, [often]) == (0, [])


def test_weights_of_which_an_optimiser_has_copies_are_not_told_as_unused() -> None:
    net = Net()
    copies = [weight.detach().clone().requires_grad_() for weight in net.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    assert unused(lambda x: net(x).square().mean(), [optimizer]) == (0, [])
