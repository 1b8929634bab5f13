"""What is computed of a window's shuffle, beside orders that are drawn."""

import numpy as np
import pytest

from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.draw.shuffle_quality import shuffle_quality

SHARDS, OF_SHARD, CLASSES, BATCH = 24, 50, 40, 25
SAMPLES = SHARDS * OF_SHARD
BY_CLASS = np.arange(SAMPLES, dtype=np.int32) * CLASSES // SAMPLES  # as tars of others often are
MIXED = np.arange(SAMPLES, dtype=np.int32) % CLASSES
SHARDS_N = np.arange(SAMPLES, dtype=np.int32) // OF_SHARD


def batches(window_shards: int, epoch: int, seed: int) -> np.ndarray:
    plan = EpochPlan(samples=SAMPLES, seed=seed, epoch=epoch, batch_size=BATCH, shards_N=SHARDS_N,
                     window_shards=window_shards)  # fmt: skip
    return plan.order_N.reshape(-1, BATCH)


@pytest.mark.parametrize("labels_N", [BY_CLASS, MIXED], ids=["by class", "mixed"])
@pytest.mark.parametrize("window_shards", [0, 3, 8])
def test_classes_of_a_batch_are_as_many_as_those_of_drawn_ones(labels_N: np.ndarray, window_shards: int) -> None:
    said, drawn = list[float](), list[int]()
    full = shuffle_quality(labels_N, SHARDS_N, window_shards=0, batch_size=BATCH)
    for seed in range(40):
        found = shuffle_quality(labels_N, SHARDS_N, window_shards=window_shards, batch_size=BATCH, seed=seed)
        said.append(found.classes)
        drawn += [len({*labels_N[batch].tolist()}) for batch in batches(window_shards, 0, seed)]
        assert found.classes_at_random == full.classes
    assert np.mean(said) == pytest.approx(np.mean(drawn), rel=0.01)


@pytest.mark.parametrize("window_shards", [0, 3, 8])
def test_who_comes_with_whom_again_is_as_often_as_in_drawn_epochs(window_shards: int) -> None:
    pairs = again = 0
    for seed in range(40):
        first, then = (batches(window_shards, epoch, seed) for epoch in (0, 1))
        batch_of = np.empty(SAMPLES, np.int64)
        batch_of[then.ravel()] = np.arange(SAMPLES) // BATCH
        for batch in first:
            _, together = np.unique(batch_of[batch], return_counts=True)
            pairs, again = pairs + BATCH * (BATCH - 1), again + int((together * (together - 1)).sum())
    found = shuffle_quality(MIXED, SHARDS_N, window_shards=window_shards, batch_size=BATCH)
    at_random = (BATCH - 1) / (SAMPLES - 1)
    assert found.meets_again == pytest.approx(again / pairs / at_random, rel=0.06)


def test_a_window_of_all_shards_is_full_random_order() -> None:
    found = shuffle_quality(BY_CLASS, SHARDS_N, window_shards=SHARDS, batch_size=BATCH)
    assert found.classes == found.classes_at_random and found.meets_again == 1.0
    almost = shuffle_quality(BY_CLASS, SHARDS_N, window_shards=SHARDS - 1, batch_size=BATCH)
    assert almost.meets_again == pytest.approx(1.0, abs=0.1)


def test_windows_of_one_sample_are_full_random_order() -> None:
    numbers = np.arange(9, dtype=np.int32)
    assert shuffle_quality(numbers, numbers, window_shards=1, batch_size=4).meets_again == 1.0


def test_shards_of_one_class_in_small_windows_show() -> None:
    labels_N = SHARDS_N.copy()
    found = shuffle_quality(labels_N, SHARDS_N, window_shards=2, batch_size=BATCH)
    assert found.classes == pytest.approx(2.0, abs=1e-6) and found.classes_at_random > 14
    assert shuffle_quality(labels_N, SHARDS_N, window_shards=1, batch_size=4 * OF_SHARD).classes == 1.0
