"""Whatever the ranks, batch sizes and policy: every sample exactly once, equal batch counts, and resumes that fit."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.loader import Loader
from feedline.pipeline.split import classes_in_use
from tests.pipeline.conftest import MakeSplit

pytestmark = pytest.mark.filterwarnings("ignore:no batch of")  # some draws have fewer samples than a batch
SAMPLES = 60
IN_THE_TRAINER: dict[str, Any] = {"image_size": 8, "num_workers": 0, "checksums": False}
few = settings(max_examples=50)  # the plans alone have many more: draw/test_order.py


def epoch(split: Path, state: dict[str, Any] | None = None, **options: Any) -> list[list[int]]:
    """Each rank's labels; checks that all ranks got as many batches."""
    ranks: list[list[int]] = []
    counts: set[int] = set()
    for rank in range(options["world_size"]):
        loader = Loader(split, **IN_THE_TRAINER | options | {"rank": rank})
        if state is not None:
            loader.load_state_dict(state)
        batches = [labels_N.tolist() for _, labels_N in loader]
        counts.add(len(batches))
        ranks.append([label for batch in batches for label in batch])
    assert len(counts) == 1, "a rank with fewer batches would leave the others hanging"
    return ranks


def expected(seen: Counter[int], left: int, global_batch: int, policy: str) -> None:
    real = Counter({label: count for label, count in seen.items() if label >= 0})
    missing = -left % global_batch
    if policy == "drop":
        assert set(real.values()) <= {1}
        assert real.total() == left // global_batch * global_batch
    elif policy == "pad":
        assert set(real.values()) <= {1}
        assert (real.total(), seen[-1]) == (left, missing)
    else:
        assert real.total() == left + missing


@few
@given(st.integers(1, 8), st.integers(1, 23), st.sampled_from(["drop", "pad", "wrap"]), st.integers(0, 3))
def test_an_epoch_over_all_ranks(split: Path, world_size: int, batch_size: int, policy: str, window: int) -> None:
    options = {"world_size": world_size, "batch_size": batch_size, "policy": policy, "window_shards": window}
    seen = Counter(label for rank in epoch(split, **options) for label in rank)
    expected(seen, SAMPLES, world_size * batch_size, policy)


@few
@given(
    st.integers(1, 9),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["drop", "pad", "wrap"]),
)
def test_a_resume_with_other_ranks_and_batches_gives_exactly_the_rest(
    split: Path, first_batch: int, taken: int, world_size: int, batch_size: int, policy: str
) -> None:
    first = Loader(
        split, **IN_THE_TRAINER | {"batch_size": first_batch, "rank": 0, "world_size": 1, "policy": "drop"}
    )
    batches = iter(first)
    before = [label for _, (_, labels_N) in zip(range(taken), batches, strict=False) for label in labels_N.tolist()]
    state = first.state_dict()
    options = {"world_size": world_size, "batch_size": batch_size, "policy": policy}
    after = Counter(label for rank in epoch(split, state, **options) for label in rank)
    assert state["samples"] == len(before)
    left = SAMPLES - len(before)
    next_epoch = policy == "drop" and left < world_size * batch_size  # no batch is left of this one
    expected(after, SAMPLES if next_epoch else left, world_size * batch_size, policy)
    if policy != "wrap" and not next_epoch:
        assert not set(before) & set(after)


@pytest.mark.parametrize(("workers", "world_size", "batch_size", "policy"), [(1, 2, 7, "pad"), (8, 1, 9, "wrap")])
def test_the_same_with_real_workers(split: Path, workers: int, world_size: int, batch_size: int, policy: str) -> None:
    options = {"world_size": world_size, "batch_size": batch_size, "policy": policy}
    assert epoch(split, **options, num_workers=workers) == epoch(split, **options)


PARTS = st.fixed_dictionaries({
    "classes": st.none() | st.integers(20, SAMPLES), "subset": st.none() | st.integers(1, 20),
    "subset_seed": st.none() | st.integers(0, 3),
})  # fmt: skip


@pytest.mark.slow
@few
@given(PARTS, st.integers(0, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 2))
def test_a_part_is_the_same_for_all_ranks_and_resumes_exactly(
    split: Path, part: dict[str, Any], taken: int, world_size: int, batch_size: int, epoch_number: int, window: int
) -> None:
    """One sample a class: its label tells it."""
    options: dict[str, Any] = {"policy": "pad", "seed": 1, "window_shards": window, **part}
    alone = {**IN_THE_TRAINER, **options, "rank": 0, "world_size": 1}
    whole = Loader(split, **alone, batch_size=batch_size)
    whole.set_epoch(epoch_number)
    order = [label for _, labels_N in whole for label in labels_N.tolist() if label >= 0]
    size = part["subset"] or part["classes"] or SAMPLES
    assert len(order) == len(set(order)) == size and max(order) < (part["classes"] or SAMPLES)
    first = Loader(split, **alone, batch_size=batch_size)
    first.set_epoch(epoch_number)
    batches = iter(first)
    before = [label for _, (_, labels_N) in zip(range(taken), batches, strict=False) for label in labels_N.tolist()]
    state = first.state_dict()
    if (left := size - state["samples"]) > 0 and state["epoch"] == epoch_number:
        ranks = epoch(split, state, **options, world_size=world_size, batch_size=batch_size)
        assert Counter(label for rank in ranks for label in rank if label >= 0) == Counter(order[-left:])
        assert [label for label in before if label >= 0] == order[:-left]


def test_a_part_has_the_same_pictures_and_other_seeds_of_the_order_see_the_same(split: Path) -> None:
    """Old labels tell which samples they are: what is drawn augments them as before."""
    options = {**IN_THE_TRAINER, "rank": 0, "world_size": 1, "batch_size": 6, "shuffle": False, "policy": "drop"}
    every = {int(label): image for images, labels_N in Loader(split, **options)
             for image, label in zip(images.clone(), labels_N, strict=True)}  # fmt: skip
    part = Loader(split, **options, classes=18, subset_seed=4)
    kept = classes_in_use(part.manifest, part.config)
    seen = {int(label): image for images, labels_N in part
            for image, label in zip(images.clone(), labels_N, strict=True)}  # fmt: skip
    assert sorted(seen) == list(range(18)) and kept == sorted(kept) and len(set(kept)) == 18
    assert all(bool((seen[new] == every[old]).all()) for new, old in enumerate(kept))
    assert classes_in_use(part.manifest, replace(part.config, seed=9)) == kept
    assert classes_in_use(part.manifest, replace(part.config, subset_seed=5)) != kept


def test_balanced_classes_of_a_part(split: Path) -> None:
    options = {"world_size": 1, "batch_size": 5, "policy": "drop", "class_balanced": True, "classes": 20}
    assert sorted(epoch(split, **options)[0]) == list(range(20))


def test_a_subset_stays_the_same_and_classes_can_be_balanced(split: Path) -> None:
    options = {"world_size": 1, "batch_size": 5, "policy": "drop"}
    loader = Loader(split, **IN_THE_TRAINER | options | {"rank": 0, "subset": 20})
    first, second = ([label for _, labels_N in loader for label in labels_N.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second)
    assert first != second
    assert len(set(first)) == 20
    balanced = epoch(split, **options, class_balanced=True)[0]
    assert sorted(balanced) == list(range(SAMPLES)), "one sample a class: balanced is all of them"


@pytest.mark.parametrize("codec", ["jpeg", "planes", "raw", "keep"])
@pytest.mark.parametrize("window", [0, 2])
def test_what_comes_again_in_an_epoch_is_cropped_anew(make_split: MakeSplit, codec: str, window: int) -> None:
    split = make_split(24, codec=codec, classes=3)
    options: dict[str, Any] = {"image_size": 24, "batch_size": 11, "seed": 3, "class_balanced": True}
    options |= {"window_shards": window, "policy": "drop", "transform": noted}

    def batches(workers: int) -> list[tuple[Any, list[int]]]:
        loader = Loader(split, **options, num_workers=workers)
        shown = [(images.clone(), labels_N.tolist()) for images, labels_N in loader]
        loader.close()
        return shown

    alone = batches(0)
    assert Counter(label for _, labels in alone for label in labels) == {0: 22, 1: 22, 2: 22}
    shown = [image.numpy().tobytes() for images, labels in alone
             for image, label in zip(images, labels, strict=True) if label == 0]  # fmt: skip
    assert len(set(shown)) == 22
    for (one, labels), (other, others) in zip(alone, batches(2), strict=True):
        assert labels == others and bool((one == other).all())


def noted(image_HWC: Any, rng: Any) -> Any:
    """A picture whose first pixel is its generator's first draw."""
    image_HWC[0, 0] = rng.integers(0, 256, 3)
    return image_HWC
