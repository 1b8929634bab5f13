"""A state goes on in the order it was made in, or not at all."""

from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.loader import Loader
from tests.pipeline.loading import SMALL, labels

INLINE = SMALL | {"num_workers": 0}
OTHER: dict[str, Any] = {"shuffle": False, "window_shards": 2, "subset": 48, "class_balanced": True, "seed": 9}


def amid(split: Path, **options: Any) -> tuple[dict[str, Any], list[int]]:
    """A state after three batches, and the labels that follow."""
    loader = Loader(split, **INLINE | options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict(), [int(label) for _, labels_N in batches for label in labels_N]


@pytest.mark.parametrize("name", OTHER)
def test_a_state_of_another_order_is_refused_by_name_and_taken_with_the_setting_it_names(
    split: Path, name: str
) -> None:
    state, rest = amid(split, **{name: OTHER[name]})
    loader = Loader(split, **INLINE)
    before = loader.state_dict()
    with pytest.raises(UsageError, match=f"made with {name}=.*give it {name}={OTHER[name]!r}") as refused:
        loader.load_state_dict(state)
    assert "\n" not in str(refused.value) and loader.state_dict() == before
    if name == "shuffle":
        assert labels(Loader(split, **INLINE | {"shuffle": False}))[24:] == rest
    same = Loader(split, **INLINE | {name: OTHER[name]})
    same.load_state_dict(state)
    assert labels(same) == rest


def test_a_window_without_a_shuffle_is_none(split: Path) -> None:
    loader = Loader(split, **INLINE | {"shuffle": False})
    loader.load_state_dict(Loader(split, **INLINE | {"shuffle": False, "window_shards": 2}).state_dict())


@pytest.mark.parametrize("version", [0, 1, 3, "2", None])
def test_another_version_is_none(split: Path, version: Any) -> None:
    loader = Loader(split, **INLINE)
    with pytest.raises(UsageError, match="version 2"):
        loader.load_state_dict(loader.state_dict() | {"version": version})
