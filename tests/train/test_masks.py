"""Masks have exactly the sparsity asked, and what they leave out is exactly zero, from the first step to the last."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feedline.train import checkpoint, masks
from feedline.train.checkpoint import CheckpointError
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.metrics import Event
from feedline.train.models import build_model
from feedline.train.weights import parameters_of

Configure = Callable[..., TrainConfig]
LAYERS = {"first": (6, 3, 5, 5), "norm": (6,), "second": (10, 7)}


def some_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """With equal magnitudes among them."""
    chance = torch.Generator().manual_seed(seed)
    return {name: torch.randint(-9, 10, shape, generator=chance).float() for name, shape in LAYERS.items()}


def counts(made: masks.Masks) -> list[int]:
    return [int(mask.sum()) for mask in made.values()]


@given(st.floats(0, 1), st.booleans(), st.integers(0, 5))
def test_exactly_as_many_stay_as_asked_and_the_largest_ones(keep: float, per_layer: bool, seed: int) -> None:
    weights = masks.prunable(some_weights(seed))
    assert list(weights) == ["first", "second"]
    made = masks.by_magnitude(weights, keep, per_layer=per_layer)
    assert [mask.shape for mask in made.values()] == [layer.shape for layer in weights.values()]
    groups = [[name] for name in weights] if per_layer else [list(weights)]
    for names in groups:
        stays = torch.cat([made[name].flatten() for name in names])
        sizes = torch.cat([weights[name].abs().flatten() for name in names])
        assert int(stays.sum()) == round(keep * len(sizes))
        if stays.any() and not stays.all():
            assert sizes[stays].min() >= sizes[~stays].max()
    assert masks.pruned(made) == sum(layer.numel() for layer in weights.values()) - sum(counts(made))


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.booleans())
def test_a_later_round_keeps_only_what_an_earlier_kept(first: float, then: float, per_layer: bool) -> None:
    earlier = masks.by_magnitude(some_weights(1), first, per_layer=per_layer)
    later = masks.by_magnitude(some_weights(2), first * then, per_layer=per_layer, among=earlier)
    assert not any((later[name] & ~earlier[name]).any() for name in later)
    if not per_layer:
        assert sum(counts(later)) == round(first * then * sum(mask.numel() for mask in later.values()))


def test_random_masks_keep_as_much_of_each_layer() -> None:
    ticket = masks.by_magnitude(some_weights(), 0.3)
    drawn = masks.at_random(ticket, seed=5)
    assert counts(drawn) == counts(ticket) and not all(torch.equal(drawn[name], ticket[name]) for name in drawn)
    again, other = masks.at_random(ticket, seed=5), masks.at_random(ticket, seed=6)
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    assert not all(torch.equal(drawn[name], other[name]) for name in drawn)


def test_norms_and_biases_are_left_alone_unless_asked() -> None:
    assert list(masks.prunable(some_weights())) == ["first", "second"]
    assert list(masks.prunable(some_weights(), vectors=True)) == list(LAYERS)


def test_a_layer_may_be_left_empty() -> None:
    weights = {"small": torch.full((4, 4), 0.01), "large": torch.ones(8, 8)}
    made = masks.by_magnitude(weights, 0.5)
    assert masks.empty_layers(made) == ["small"] and masks.pruned(made) == 40


def test_they_come_back_from_their_file(tmp_path: Path) -> None:
    made = masks.by_magnitude(some_weights(), 0.3)
    (tmp_path / "mask.pt").write_bytes(masks.to_bytes(made))
    read = masks.read(tmp_path / "mask.pt")
    assert list(read) == list(made) and all(torch.equal(read[name], made[name]) for name in made)
    (tmp_path / "none.pt").write_bytes(checkpoint.to_bytes({}))
    with pytest.raises(CheckpointError, match=r"none\.pt is not whole"):
        masks.read(tmp_path / "none.pt")


def test_masks_of_another_model_are_refused() -> None:
    made = masks.by_magnitude(dict(build_model("small_cnn", 3).named_parameters()), 0.3)
    with pytest.raises(CheckpointError, match=r"of another model \(classifier\.3\.weight\)"):
        masks.Held(made, build_model("small_cnn", 4))


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("inf"), 3.0])
def test_whatever_stands_there_becomes_a_plain_zero(value: float) -> None:
    model = nn.Linear(4, 4)
    held = masks.Held({"weight": torch.zeros(4, 4, dtype=torch.bool)}, model)
    with torch.no_grad():
        model.weight.fill_(value)
    held.weights()
    assert model.weight.view(torch.int32).eq(0).all()
    model.weight.grad = torch.full((4, 4), value)
    held.gradients()
    assert model.weight.grad.view(torch.int32).eq(0).all()


def test_what_is_left_out_has_no_share_in_the_gradients_norm(configure: Configure, tmp_path: Path) -> None:
    made = masks.by_magnitude(dict(build_model("small_cnn", 3).named_parameters()), 0.0)
    (tmp_path / "mask.pt").write_bytes(masks.to_bytes(made))
    heard: list[Event] = []
    train(configure(mask=tmp_path / "mask.pt", clip_norm=1.0, epochs=1), [heard.append])
    assert {event["grad_norm"] for event in heard if event["event"] == "step"} == {0.0}


@pytest.mark.parametrize("extra", [
    {},
    {"clip_norm": 0.5, "accumulate": 2, "ema_decay": 0.9},
    {"model": "mobilenet_v2", "image_size": 32, "batch_size": 32, "ema_decay": 0.9, "epochs": 1},
])  # fmt: skip
def test_momentum_and_weight_decay_revive_nothing(
    configure: Configure, tmp_path: Path, extra: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "warmup_epochs": 0, **extra}
    config = configure(**settings)
    chance = torch.Generator().manual_seed(1)
    parameters = dict(build_model(config.model, 3).named_parameters())
    made = {
        name: torch.rand(weights.shape, generator=chance) < 0.3
        for name, weights in masks.prunable(parameters, vectors=config.model == "mobilenet_v2").items()
    }
    (tmp_path / "mask.pt").write_bytes(masks.to_bytes(made))
    train(configure(mask=tmp_path / "mask.pt", keep_epochs=(0,), **settings))
    for name in ("epoch-0000.pt", "best.pt"):
        state = checkpoint.read(tmp_path / "run/checkpoints" / name)
        trained = [parameters_of(state)]
        trained += [parameters_of(state | {"model": state["ema"]})] if config.ema_decay else []
        for weights in trained:
            for layer, mask in made.items():
                assert weights[layer][~mask].view(torch.int32).eq(0).all(), (name, layer)
            assert any(weights[layer].ne(0).any() for layer in made)
