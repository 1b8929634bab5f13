"""The epoch plan: every sample exactly once, the same batches whatever the ranks, and nothing lost by a resume."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import count_of
from feedline.pipeline.draw.order import (
    PADDING,
    EpochPlan,
    class_balanced,
    drawn_classes,
    keyed_randoms,
    part_labels,
    subset,
)

plans = st.builds(
    EpochPlan,
    samples=st.integers(0, 300),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 8),
    policy=st.sampled_from(["drop", "wrap", "pad"]),
    shuffle=st.booleans(),
)


def delivered(plan: EpochPlan, batches: int | None = None) -> list[int]:
    """What all ranks get, in order of positions."""
    ranks = [replace(plan, rank=rank) for rank in range(plan.world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    count = len(ranks[0]) if batches is None else batches
    return [sample for number in range(count) for rank in ranks for sample in rank.batch(number).tolist()]


@given(plans)
@settings(max_examples=300)
def test_every_sample_exactly_once_or_exactly_the_stated_rest(plan: EpochPlan) -> None:
    got = delivered(plan)
    real = [sample for sample in got if sample != PADDING]
    whole = plan.samples // plan.global_batch * plan.global_batch
    rounded = -(-plan.samples // plan.global_batch) * plan.global_batch
    if plan.policy == "drop":
        assert len(got) == whole and len(set(got)) == whole
    elif plan.policy == "pad":
        assert sorted(real) == list(range(plan.samples)) and len(got) == rounded
    else:
        assert len(real) == rounded
        assert real[: plan.samples] == plan.order_N.tolist()
        assert all(sample == real[place % plan.samples] for place, sample in enumerate(real))


@given(plans, st.integers(1, 8), st.integers(1, 40), st.data())
@settings(max_examples=300)
def test_a_resume_with_other_ranks_and_batch_size_gives_exactly_the_rest(
    plan: EpochPlan, world_size: int, batch_size: int, data: st.DataObject
) -> None:
    stopped = data.draw(st.integers(0, len(plan)))
    before = delivered(plan, stopped)
    rest = replace(plan, world_size=world_size, batch_size=batch_size, policy="pad", start=plan.delivered(stopped))
    after = [sample for sample in delivered(rest) if sample != PADDING]
    seen = [sample for sample in before if sample != PADDING][: plan.samples]
    assert seen + after == plan.order_N.tolist()


@given(plans, st.integers(1, 8))
@settings(max_examples=100)
def test_the_global_batch_does_not_depend_on_the_ranks_that_share_it(plan: EpochPlan, ranks: int) -> None:
    one = replace(plan, world_size=1, batch_size=plan.batch_size * ranks)
    many = replace(plan, world_size=ranks)
    assert delivered(one) == delivered(many)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 12))
def test_a_shard_window_keeps_few_shards_open_and_loses_nothing(shards: list[int], window: int) -> None:
    shards_N = np.array(sorted(shards), np.int32)
    plan = EpochPlan(samples=len(shards), batch_size=1, shards_N=shards_N, window_shards=window)
    order = plan.order_N
    assert sorted(order.tolist()) == list(range(len(shards)))
    spans: dict[int, tuple[int, int]] = {}
    for place, shard in enumerate(shards_N[order].tolist()):
        first, _ = spans.get(shard, (place, place))
        spans[shard] = (first, place)
    open_at_once = max(sum(a <= place <= b for a, b in spans.values()) for place in range(len(order)))
    assert open_at_once <= window


def test_epochs_and_seeds_differ_and_repeat() -> None:
    plan = EpochPlan(samples=1000, batch_size=10, seed=3, epoch=1)
    assert np.array_equal(plan.order_N, replace(plan).order_N)
    for other in (replace(plan, epoch=2), replace(plan, seed=4)):
        assert (plan.order_N == other.order_N).mean() < 0.02


def test_the_order_is_fixed_for_good() -> None:
    """A resume may happen under a later NumPy: these numbers must never change."""
    assert EpochPlan(samples=12, batch_size=1, seed=1, epoch=2).order_N.tolist() == FIXED_ORDER
    assert keyed_randoms(0, 1, 1).tolist() == []


FIXED_ORDER = [5, 10, 6, 3, 4, 9, 0, 11, 2, 7, 1, 8]


def test_the_first_places_are_as_likely_to_be_any_sample() -> None:
    firsts = Counter(int(EpochPlan(samples=8, batch_size=1, epoch=e).batch(0)[0]) for e in range(4000))
    assert all(400 < firsts[sample] < 600 for sample in range(8))


def test_a_subset_is_the_same_in_every_epoch() -> None:
    chosen = subset(1000, 100, seed=5)
    plans = [EpochPlan(samples=1000, chosen=chosen, batch_size=7, epoch=e, policy="pad") for e in (0, 1)]
    first, second = (sorted(s for s in delivered(plan) if s != PADDING) for plan in plans)
    assert first == second == chosen.tolist()
    with pytest.raises(UsageError, match="11 samples"):
        subset(10, 11, seed=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 10), st.integers(0, 50))
def test_a_part_has_classes_numbered_anew_and_so_many_of_their_samples(
    labels: list[int], count: int, few: int
) -> None:
    labels_N, classes_C = np.array(labels, np.int32), drawn_classes(10, count, seed=3)
    assert len(set(classes_C.tolist())) == count and sorted(classes_C) == classes_C.tolist()
    of_classes_N = part_labels(labels_N, classes_C, None, seed=3)
    for old, new in zip(labels, of_classes_N.tolist(), strict=True):
        assert new == (classes_C.tolist().index(old) if old in classes_C else PADDING)
    there = int((of_classes_N >= 0).sum())
    if few > there:
        with pytest.raises(UsageError, match=f"a subset of {count_of(few, 'sample')} cannot be taken from {there}"):
            part_labels(labels_N, classes_C, few, seed=3)
        return
    part_N = part_labels(labels_N, classes_C, few, seed=3)
    assert (part_N >= 0).sum() == few
    assert (part_N[part_N >= 0] == of_classes_N[part_N >= 0]).all()
    assert np.array_equal(part_N, part_labels(labels_N, classes_C, few, seed=3))


def test_other_seeds_draw_other_classes_and_no_more_than_there_are() -> None:
    assert any(drawn_classes(10, 5, seed).tolist() != drawn_classes(10, 5, 0).tolist() for seed in range(1, 6))
    for count in (0, 11):
        with pytest.raises(UsageError, match=f"{count} classes cannot be taken from 10"):
            drawn_classes(10, count, seed=0)


def test_class_balanced_leaves_out_what_a_part_leaves_out() -> None:
    chosen = class_balanced(np.array([0, PADDING, 1, 0, PADDING], np.int32), seed=1, epoch=0)
    assert sorted(chosen.tolist()) == [0, 2, 3, 2 + 5], "a repeat has a number beyond the dataset's"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200))
def test_class_balanced_shows_each_class_equally_and_repeats_evenly(labels: list[int]) -> None:
    labels_N = np.array(labels, np.int32)
    chosen = class_balanced(labels_N, seed=1, epoch=0)
    assert len(set(chosen.tolist())) == len(chosen)
    chosen %= len(labels)
    per_class = Counter(labels_N[chosen].tolist())
    assert len(set(per_class.values())) == 1 and set(per_class) == set(labels)
    times = Counter(chosen.tolist())
    for label in per_class:
        counts = [times[sample] for sample in np.flatnonzero(labels_N == label).tolist()]
        assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(PADDING, 5), max_size=200))
def test_the_length_of_a_class_balanced_epoch_needs_no_order(labels: list[int]) -> None:
    labels_N = np.array(labels, np.int32)
    plan = EpochPlan(samples=len(labels), balanced_N=labels_N, seed=1, epoch=2, batch_size=1, shuffle=False)
    assert len(plan) == len(class_balanced(labels_N, seed=1, epoch=2))
    assert "order_N" not in vars(plan)
    assert np.array_equal(plan.order_N, class_balanced(labels_N, seed=1, epoch=2))
