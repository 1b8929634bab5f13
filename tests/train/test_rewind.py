"""A run that begins at a kept epoch of another is that run from there on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import CheckpointError
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.metrics import Event
from feedline.train.weights import parameters_of

Configure = Callable[..., TrainConfig]
KINDS: list[dict[str, Any]] = [
    {"epochs": 3, "lr": 0.05, "ema_decay": 0.9, "clip_norm": 1.0},
    {"epochs": 2, "model": "mobilenet_v2", "image_size": 32, "batch_size": 32, "ema_decay": 0.99},
]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, of whatever a state is made of."""
    if isinstance(one, torch.Tensor):
        one_N, other_N = (tensor.flatten().view(torch.uint8) for tensor in (one, other))
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one_N, other_N)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def kept(run: Path, name: str) -> checkpoint.State:
    return checkpoint.read(run / "checkpoints" / name)


def full_mask(path: Path, state: checkpoint.State) -> Path:
    path.write_bytes(masks.to_bytes(masks.by_magnitude(masks.prunable(parameters_of(state)), 1.0)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_with_a_full_mask_it_is_the_uninterrupted_run(
    configure: Configure, tmp_path: Path, kind: dict[str, Any], epoch: int
) -> None:
    """Weights, statistics, average, momentum and random states; dropout and augmentation are among what is drawn."""
    config = configure(run=tmp_path / "whole", keep_epochs=(0, 1), **kind)
    train(config)
    name = checkpoint.epoch_name(epoch)
    again = replace(
        config, run=tmp_path / "again", keep_epochs=(epoch,), rewind=tmp_path / "whole/checkpoints" / name,
        mask=full_mask(tmp_path / "mask.pt", kept(tmp_path / "whole", name)),
    )  # fmt: skip
    record = train(again)
    last = checkpoint.Checkpoints(tmp_path / "whole").steps()[-1].name
    for which in (name, last):
        theirs, mine = kept(tmp_path / "whole", which), kept(tmp_path / "again", which)
        for part in ("model", "ema", "optimizer", "random", "schedule"):
            assert same(theirs[part], mine[part]), (which, part)
        assert (mine["progress"]["epoch"], mine["progress"]["step"]) == (
            theirs["progress"]["epoch"], theirs["progress"]["step"]
        )  # fmt: skip
    assert [entry["epoch"] for entry in record["epochs"]] == list(range(epoch + 1, config.epochs + 1))


@pytest.mark.parametrize("change", [{"rewind_optimizer": False}, {"seed": 1}])
def test_an_empty_optimiser_or_another_seed_gives_another_rest(
    configure: Configure, tmp_path: Path, change: dict[str, Any]
) -> None:
    config = configure(run=tmp_path / "whole", keep_epochs=(1,), lr=0.05, epochs=2)
    train(config)
    path = tmp_path / "whole/checkpoints/epoch-0001.pt"
    train(replace(config, run=tmp_path / "again", rewind=path, **change))
    begun, ended = kept(tmp_path / "again", "epoch-0001.pt"), kept(tmp_path / "again", "step-0000012.pt")
    assert same(begun["model"], checkpoint.read(path)["model"])
    assert not same(ended["model"], kept(tmp_path / "whole", "step-0000012.pt")["model"])
    assert bool(begun["optimizer"]["state"]) == ("seed" in change)


def test_rewound_weights_that_stay_are_bit_for_bit_those_kept(configure: Configure, tmp_path: Path) -> None:
    config = configure(run=tmp_path / "whole", keep_epochs=(0, 1), epochs=2, lr=0.05)
    train(config)
    final = parameters_of(kept(tmp_path / "whole", "step-0000012.pt"))
    made = masks.by_magnitude(masks.prunable(final), 0.2)
    (tmp_path / "mask.pt").write_bytes(masks.to_bytes(made))
    for epoch in (0, 1):
        path = tmp_path / "whole/checkpoints" / checkpoint.epoch_name(epoch)
        run = tmp_path / f"from-{epoch}"
        train(replace(config, run=run, rewind=path, mask=tmp_path / "mask.pt", keep_epochs=(epoch,)))
        then, now = parameters_of(checkpoint.read(path)), parameters_of(kept(run, path.name))
        for name, weights in now.items():
            stays = made.get(name, torch.ones_like(weights, dtype=torch.bool))
            assert torch.equal(weights[stays].view(torch.int32), then[name][stays].view(torch.int32))
            assert weights[~stays].view(torch.int32).eq(0).all()


def test_a_killed_one_goes_on_where_it_was(configure: Configure, tmp_path: Path) -> None:
    config = configure(run=tmp_path / "whole", keep_epochs=(1,), epochs=3, lr=0.05)
    train(config)
    state = kept(tmp_path / "whole", "epoch-0001.pt")
    again = replace(
        config, run=tmp_path / "again", keep_epochs=(), rewind=tmp_path / "whole/checkpoints/epoch-0001.pt",
        mask=full_mask(tmp_path / "mask.pt", state), resume="auto",
    )  # fmt: skip
    train(replace(again, steps=9))
    heard: list[Event] = []
    train(again, [heard.append])
    assert next(event["step"] for event in heard if event["event"] == "resume") == 9
    last = "step-0000018.pt"
    assert same(kept(tmp_path / "whole", last)["model"], kept(tmp_path / "again", last)["model"])


def test_what_cannot_be_rewound_to_is_one_line(configure: Configure, tmp_path: Path) -> None:
    config = configure(run=tmp_path / "whole", epochs=2, checkpoint_every=4, keep_last=9)
    train(config)
    within = tmp_path / "whole/checkpoints/step-0000004.pt"
    with pytest.raises(CheckpointError, match="is from within an epoch"):
        train(replace(config, run=tmp_path / "again", rewind=within))
    with pytest.raises(CheckpointError, match="of another model"):
        train(replace(config, run=tmp_path / "again", widths=(8, 16), rewind=within.with_name("step-0000006.pt")))
    with pytest.raises(UsageError, match="--init says otherwise"):
        replace(config, rewind=within, init=within)
    with pytest.raises(UsageError, match="--keep-last 0"):
        configure(keep_last=0, keep_epochs=(0,))
