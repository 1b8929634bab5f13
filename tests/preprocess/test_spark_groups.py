"""How shards are put together for Spark's tasks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedline.preprocess.plan import ShardTask
from feedline.preprocess.spark import TASK_SAMPLES, TASK_SHARDS, grouped


def shard_of(number: int, samples: int) -> ShardTask:
    nothing = np.zeros(0, np.int64)
    return ShardTask(split="train", shard=number, keys=[""] * samples, labels_N=nothing.astype(np.int32), paths=[],
                     splits_N=nothing.astype(np.int8), split_names=[],
                     path_N=nothing.astype(np.int32), offsets_N=nothing, lengths_N=nothing, troubles={})  # fmt: skip


@given(samples=st.lists(st.integers(0, 2 * TASK_SAMPLES), max_size=80), slots=st.integers(1, 9))
def test_small_shards_share_a_task_and_the_last_ones_do_not(samples: list[int], slots: int) -> None:
    shards = [shard_of(number, count) for number, count in enumerate(samples)]
    groups = grouped(shards, slots)
    assert [task.shard for group in groups for task in group] == list(range(len(samples)))
    for group in groups:
        assert 1 <= len(group) <= TASK_SHARDS
        assert len(group) == 1 or sum(len(task.keys) for task in group) <= TASK_SAMPLES
    assert all(len(group) == 1 for group in groups[-slots:])
