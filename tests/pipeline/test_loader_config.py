"""What a loader cannot be told is one line, before anything is opened or started."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader import Loader, LoaderConfig

WRONG: dict[str, tuple[Any, ...]] = {
    "batch_size": (0, 1.5, "x", None, True), "image_size": (10**6, 0, "x"), "num_workers": ("x", 1.5, -1),
    "seed": ("x", 1.5, None, -1, 2**64), "subset": ("x", 0, 1.5),
    "classes": ("x", 0), "subset_seed": ("x", -1), "window_shards": (-1, "x"), "rank": (-1, "0"),
    "device": ("nosuch", 1.5), "dtype": ("float32",), "mean": (0.5, (1, 2), (math.nan,) * 3, ("a", "b", "c")),
    "std": ((0, 1, 1),), "augment": ("x", 5), "train": ("no",), "shuffle": ("x",), "policy": ("x", []),
    "on_bad": (None, "x"), "transform": ("x",), "cache_bytes": (-1, math.inf), "cache_dir": (5,),
    "storage_options": ("x", None, {"key": {1}}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_named(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(UsageError, match=name) as caught:
            LoaderConfig(**{name: value})
        assert "\n" not in str(caught.value)


def test_two_choices_of_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="subset and class_balanced"):
        LoaderConfig(subset=8, class_balanced=True)


def test_what_counts_as_a_number_is_one() -> None:
    config = LoaderConfig(batch_size=np.int64(8), seed=np.uint64(2**63), pin_memory=None, shuffle=np.bool(1), train=1)  # type: ignore[arg-type]
    assert type(config.batch_size) is int and config.seed == 2**63


@pytest.mark.parametrize("given", [{"scale": 1}, {"scale": (0.5, "x")}, {"ratio": (1, math.inf)}, {"flip": None}])
def test_a_wrong_augmentation_is_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Augment(**given)


def test_states_epochs_and_sizes_that_are_none_leave_the_loader_as_it_was(split: Path) -> None:
    loader = Loader(split, batch_size=8, num_workers=0)
    state = loader.state_dict()
    lacking = [{name: value for name, value in state.items() if name != one} for one in state]
    wrong = [{"samples": "x"}, {"samples": -1}, {"epoch": "x"}, {"epoch": -1}, {"epoch": 1.5}, {"epoch": 2**70}]
    for bad in (None, [], "x", *lacking, *(state | one for one in wrong)):
        with pytest.raises(UsageError):
            loader.load_state_dict(bad)  # type: ignore[arg-type]
    for epoch in ("x", -1, 2**70, 1.5, None):
        with pytest.raises(UsageError, match="epoch"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]
    for px in (0, 1.5, 10**6):
        with pytest.raises(UsageError, match="image_size"):
            loader.set_image_size(px)  # type: ignore[arg-type]
    assert loader.state_dict() == state
