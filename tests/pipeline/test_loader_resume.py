"""An epoch that is left, resumed, named or begun again: where the loader goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.loader import Loader
from tests.pipeline.loading import SMALL, labels

MakeSplit = Callable[..., Path]


def test_resuming_gives_the_same_rest_with_other_workers_ranks_and_batch_size(split: Path) -> None:
    whole = [(images.clone(), labels_N) for images, labels_N in Loader(split, **SMALL | {"batch_size": 4})]
    pictures = {
        int(label): image for images, labels_N in whole for image, label in zip(images, labels_N, strict=True)
    }
    order = [int(label) for _, labels_N in whole for label in labels_N]
    loader = Loader(split, **SMALL)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    del iterator
    rest: dict[int, torch.Tensor] = {}
    for rank in range(2):
        resumed = Loader(split, **SMALL | {"batch_size": 3, "num_workers": rank, "rank": rank, "world_size": 2})
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        for images_NHWC, labels_N in resumed:
            rest |= zip(labels_N.tolist(), images_NHWC.clone(), strict=True)
    assert sorted(rest) == sorted(order[24:])
    assert all(torch.equal(rest[label], pictures[label]) for label in rest)


def test_state_counts_delivered_batches_and_moves_on_at_the_epochs_end(split: Path) -> None:
    loader = Loader(split, **SMALL)
    assert loader.state_dict()["samples"] == 0
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["samples"] == 8
    resumed = Loader(split, **SMALL)
    resumed.load_state_dict(loader.state_dict())
    assert (loader.batches_left, resumed.batches_left, len(resumed)) == (7, 6, 7)
    for _ in iterator:
        pass
    assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 0)


@pytest.mark.parametrize("batch_size", [6, 8])
def test_a_state_taken_behind_the_last_batch_goes_on_with_the_next_epoch(split: Path, batch_size: int) -> None:
    options = SMALL | {"num_workers": 0, "batch_size": batch_size}
    loader = Loader(split, **options)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    state = loader.state_dict()
    resumed = Loader(split, **options)
    resumed.load_state_dict(state)
    after = labels(resumed)
    assert len(after) == len(loader) * batch_size
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert labels(resumed) == [], "of the epoch that was asked for, nothing is left"
    resumed.set_epoch(1)
    assert labels(resumed) == after


@pytest.mark.parametrize("batch_size", [8, 61])
@pytest.mark.filterwarnings("ignore:no batch of")
def test_an_iterator_at_its_end_stays_there(split: Path, batch_size: int) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0, "batch_size": batch_size})
    iterator = iter(loader)
    assert len(list(iterator)) == len(loader)
    assert next(iterator, None) is None
    iter(loader)
    assert next(iterator, None) is None


def test_looking_at_nothing_does_not_use_up_an_epoch(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    iter(loader)
    assert labels(loader) == labels(Loader(split, **SMALL | {"num_workers": 0}))


def test_another_epoch_drops_the_resumed_position(split: Path) -> None:
    loader = Loader(split, **SMALL)
    loader.load_state_dict(loader.state_dict() | {"samples": 24})
    loader.set_epoch(1)
    assert len(labels(loader)) == 56


def test_an_epoch_named_while_another_is_under_way_begins_at_its_start(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    for _ in loader:
        loader.set_epoch(3)
        break
    iterator = iter(loader)
    loader.set_epoch(5)
    next(iterator)
    assert len(labels(loader)) == 56
    assert loader.state_dict()["epoch"] == 6


def test_the_state_of_a_named_epoch_is_its_start(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    for _ in loader:
        loader.set_epoch(1)
        break
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    resumed = Loader(split, **SMALL | {"num_workers": 0})
    resumed.load_state_dict(state)
    assert labels(resumed) == labels(loader)


def test_an_epoch_that_is_named_early_is_the_next_and_what_is_delivered_until_then_counts(split: Path) -> None:
    loader = Loader(split, **SMALL | {"num_workers": 0})
    loader.set_epoch(1)
    expected = labels(loader)
    loader.set_epoch(0)
    for number, _ in enumerate(loader):
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (0, 8 * (number + 1))
        loader.set_epoch(1)
    assert (loader.state_dict()["epoch"], loader.batches_left) == (1, 7)
    assert labels(loader) == expected


def test_naming_the_epoch_that_has_just_begun_changes_nothing(split: Path) -> None:
    """As where a framework takes the iterator first, and tells the epoch then."""
    loader, found = Loader(split, **SMALL | {"num_workers": 0}), list[int]()
    for epoch in range(3):
        batches = iter(loader)
        loader.set_epoch(epoch)
        found += [int(label) for _, labels_N in batches for label in labels_N]
    plain = Loader(split, **SMALL | {"num_workers": 0})
    assert found == [label for _ in range(3) for label in labels(plain)]


def test_the_rest_of_a_resumed_epoch_is_there_until_something_is_taken_of_it(split: Path) -> None:
    whole = labels(Loader(split, **SMALL))
    loader = Loader(split, **SMALL | {"num_workers": 0})
    loader.load_state_dict(loader.state_dict() | {"samples": 24})
    for _ in range(2):
        iter(loader)
        assert (loader.state_dict()["samples"], loader.batches_left) == (24, 4)
    loader.set_epoch(0)
    assert labels(loader) == whole[24:]
    assert loader.state_dict()["epoch"] == 1


def test_the_state_of_a_changed_dataset_is_refused(split: Path, make_split: MakeSplit) -> None:
    other = Loader(make_split(samples=61), **SMALL)
    with pytest.raises(UsageError, match="another dataset"):
        other.load_state_dict(Loader(split, **SMALL).state_dict())
    with pytest.raises(UsageError, match="seed"):
        Loader(split, **SMALL | {"seed": 9}).load_state_dict(Loader(split, **SMALL).state_dict())


def test_the_state_of_another_subset_is_refused(split: Path) -> None:
    some = {"classes": 30, "subset": 20}
    state = Loader(split, **SMALL | some).state_dict()
    Loader(split, **SMALL | some | {"subset_seed": SMALL["seed"]}).load_state_dict(state)
    for other in ({}, *(some | change for change in ({"classes": 31}, {"subset": 19}, {"subset_seed": 8}))):
        with pytest.raises(UsageError, match="subset"):
            Loader(split, **SMALL | other).load_state_dict(state)
    with pytest.raises(UsageError, match="subset"):
        Loader(split, **SMALL | some).load_state_dict(Loader(split, **SMALL).state_dict())


def test_leaving_an_epoch_early_and_starting_another(split: Path) -> None:
    loader = Loader(split, **SMALL)
    for _ in range(4):
        for _ in loader:
            break
    loader.set_epoch(0)
    assert labels(loader) == labels(Loader(split, **SMALL))


def test_an_iterator_of_the_epoch_before_says_that_it_has_ended(split: Path) -> None:
    loader = Loader(split, **SMALL)
    old = iter(loader)
    iter(loader)
    with pytest.raises(UsageError, match="has ended"):
        next(old)
