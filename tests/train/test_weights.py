"""Statistics of weights are NumPy's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from feedline.cli.inspect import weights_page
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import CheckpointError, by_name
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.weights import WeightsConfig, describe, parameters_of

QUANTILES = (0.6, 0.9, 0.99)


@pytest.fixture
def run(configure: Callable[..., TrainConfig], tmp_path: Path) -> Path:
    train(configure(epochs=1, keep_epochs=(0, 1), eval_every=0))
    return tmp_path / "run"


def test_they_are_numpys_by_layer_and_in_all(run: Path) -> None:
    path = by_name(run)["step-0000006"]
    told = describe(path, WeightsConfig(quantiles=QUANTILES))
    state = checkpoint.read(path)["model"]
    assert list(told["layers"]) == list(state)  # the small CNN has no buffers
    for name, row in told["layers"].items():
        layer = state[name].numpy().astype(np.float64)
        assert row["shape"] == list(layer.shape) and row["count"] == layer.size
        assert (row["min"], row["max"], row["mean"]) == (layer.min(), layer.max(), layer.mean())
        assert [*row["quantiles"].values()] == np.quantile(np.abs(layer), QUANTILES).tolist()
    pruned = [layer.numpy() for layer in masks.prunable(state).values()]
    every = np.concatenate([layer.ravel() for layer in pruned]).astype(np.float64)
    assert told["all"]["count"] == every.size and told["all"]["mean"] == every.mean()
    assert [*told["all"]["quantiles"].values()] == np.quantile(np.abs(every), QUANTILES).tolist()
    for row, quantile in zip(told["thresholds"], QUANTILES, strict=True):
        assert row["threshold"] == np.quantile(np.abs(every), quantile)
        assert row["below"] == (np.abs(every) < row["threshold"]).sum()
        assert row["below"] == pytest.approx(quantile * every.size, abs=1)


def test_a_run_has_its_kept_epochs_and_the_newest(run: Path) -> None:
    assert list(by_name(run)) == ["epoch-0000", "epoch-0001", "step-0000006"]
    assert by_name(run / "checkpoints/epoch-0000.pt") == {"epoch-0000": run / "checkpoints/epoch-0000.pt"}
    found = {name: describe(where, WeightsConfig()) for name, where in by_name(run).items()}
    assert [one["epoch"] for one in found.values()] == [0, 1, 1]
    page = weights_page("RUN", found)
    assert "classifier.1.weight" in text(page) and "THRESHOLDS\n  Of step-0000006." in text(page)
    assert document(page).count("<svg") >= 2


def test_statistics_of_batch_norm_are_no_weights() -> None:
    from feedline.train.models import build_model

    model = build_model("mobilenet_v2", 3)
    state = {"model": model.state_dict(), "config": {"model": "mobilenet_v2", "widths": [6, 16]},
             "dataset": {"classes": ["a", "b", "c"]}}  # fmt: skip
    assert list(parameters_of(state)) == [name for name, _ in model.named_parameters()]


def test_zeros_are_counted_and_a_layer_that_a_threshold_empties_is_named(tmp_path: Path, run: Path) -> None:
    state = checkpoint.read(by_name(run)["step-0000006"])
    state["model"]["features.0.weight"] *= 1e-6
    state["model"]["classifier.3.weight"][0] = 0
    (tmp_path / "crafted.pt").write_bytes(checkpoint.to_bytes(state))
    told = describe(tmp_path / "crafted.pt", WeightsConfig(quantiles=(0.0, 0.5)))
    assert told["layers"]["classifier.3.weight"]["zeros"] == told["all"]["zeros"] == 84
    assert [row["empty_layers"] for row in told["thresholds"]] == [[], ["features.0.weight"]]


def test_what_is_no_run_or_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no checkpoints"):
        by_name(tmp_path)
    (tmp_path / "x.pt").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match=r"x\.pt is not a feedline checkpoint"):
        describe(by_name(tmp_path / "x.pt")["x"], WeightsConfig())
    torch.save({"format": checkpoint.FORMAT, "version": checkpoint.VERSION}, tmp_path / "y.pt")
    with pytest.raises(CheckpointError, match=r"y\.pt is not whole"):
        describe(tmp_path / "y.pt", WeightsConfig())
    with pytest.raises(UsageError, match=r"--quantiles 1\.5"):
        WeightsConfig(quantiles=(1.5,))
