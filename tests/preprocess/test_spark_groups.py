"""What of Spark's engine needs no Java: how shards are put together for its tasks, and the end of a JVM left over."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.base.scratch import PREFIX, clear_abandoned
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.spark import TASK_SAMPLES, TASK_SHARDS, end_spark_of, grouped

SLEEPS = "import sys, time; print(flush=True); time.sleep(60)"


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


def test_a_jvm_that_never_came_up_goes_with_its_driver_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos found: a driver killed while its JVM starts leaves the JVM for good."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, other = tmp_path / f"{PREFIX}spark-gone", tmp_path / f"{PREFIX}spark-another"
    abandoned.mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEPS, what, f"-Dlog={folder}/log4j2"], stdout=subprocess.PIPE)
        for what, folder in (("org.apache.spark.deploy.SparkSubmit", abandoned), ("an editor", abandoned),
                             ("org.apache.spark.deploy.SparkSubmit", other))
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    try:
        clear_abandoned(end=end_spark_of)
        assert started[0].wait(10) < 0 and started[1].poll() is None and started[2].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
