"""The plan: every sample once, balanced, a seeded shuffle, an identity that changes when the bytes would."""

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.config import PrepareConfig, parse_bytes, parse_output
from feedline.preprocess.picture import Output
from feedline.preprocess.plan import (
    Plan,
    checked,
    choose_shards,
    in_class_order,
    make_plan,
    seeded_subset,
    with_val_split,
)
from feedline.preprocess.sources.base import Columns


def config(**said: Any) -> PrepareConfig:
    return PrepareConfig(source="in", out="out", **said)


def table(samples: int, classes: int = 5, splits: tuple[str, ...] = ("train",)) -> Columns:
    numbers = np.arange(samples)
    return Columns(
        keys=[f"c{n % classes}/im{n}" for n in range(samples)],
        labels_N=(numbers % classes).astype(np.int32),
        splits_N=(numbers % len(splits)).astype(np.int8),
        split_names=list(splits),
        paths=["a.tar", "b.tar"],
        path_N=(numbers % 2).astype(np.int32),
        offsets_N=(numbers * 1024).astype(np.int64),
        lengths_N=np.full(samples, 100_000, np.int64),
        troubles={},
    )


def planned(columns: Columns, **said: Any) -> Plan:
    return make_plan(columns, config(**said), [{"name": "c"}], "print")


@settings(max_examples=60)
@given(samples=st.integers(1, 700), shards=st.integers(1, 50), seed=st.integers(0, 99))
def test_every_sample_is_in_exactly_one_place_and_shards_are_balanced(samples: int, shards: int, seed: int) -> None:
    columns = table(samples, splits=("train", "val"))
    plan = planned(columns, shards=min(shards, max(samples // 2, 1)), seed=seed)
    rows = np.concatenate([split.rows_N for split in plan.splits])
    assert sorted(rows.tolist()) == list(range(samples))
    for split in plan.splits:
        sizes = np.diff(split.starts).tolist()
        assert max(sizes) - min(sizes) <= 1
        keys = [key for shard in range(split.shards) for key in plan.task(split, shard).keys]
        assert keys == [columns.keys[row] for row in split.rows_N.tolist()]


def test_a_task_reads_the_same_places_as_its_rows() -> None:
    columns = table(200)
    plan = planned(columns, shards=7)
    task = plan.task(plan.splits[0], 3)
    rows = plan.splits[0].rows_N[plan.splits[0].starts[3] : plan.splits[0].starts[4]]
    expected = [(columns.paths[columns.path_N[row]], columns.offsets_N[row]) for row in rows]
    assert [(place.path, place.offset) for place in task.where()] == expected


def test_the_shuffle_depends_on_names_and_seed_alone() -> None:
    columns = table(300)
    turned = list(range(299, -1, -1))
    other = replace(columns, keys=[columns.keys[row] for row in turned], labels_N=columns.labels_N[turned])
    assert planned(columns).hash == planned(other).hash
    order = [columns.keys[row] for row in planned(columns).splits[0].rows_N]
    assert order == [other.keys[row] for row in planned(other).splits[0].rows_N]
    assert order != [columns.keys[row] for row in planned(columns, seed=1).splits[0].rows_N]
    assert order != columns.keys


def test_the_hash_is_of_what_decides_the_bytes() -> None:
    columns = table(100)
    same = planned(columns).hash
    assert planned(columns, max_bad=0.5, overwrite=True, master="local[7]").hash == same
    assert planned(replace(columns, paths=["elsewhere/a.tar", "elsewhere/b.tar"])).hash == same
    for said in ({"seed": 1}, {"shards": 5}, {"outputs": (Output(quality=91),)}, {"metadata": True}):
        assert planned(columns, **said).hash != same
    relabelled = replace(columns, labels_N=columns.labels_N[::-1].copy())
    assert planned(relabelled).hash != same
    assert make_plan(columns, config(), [{"name": "c"}], "another print").hash != same


@pytest.mark.parametrize(
    ("samples", "bytes_each", "expected"),
    [(10, 27e3, 1), (400, 27e3, 12), (2_000, 27e3, 64), (50_000, 27e3, 64), (1_281_167, 27e3, 512), (12, 50e6, 8)],
)
def test_shard_counts_suit_readers_and_say_why(samples: int, bytes_each: float, expected: int) -> None:
    count, why = choose_shards(samples, bytes_each, config())
    assert count == expected
    assert "divides evenly" in why


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="at most one shard per sample"):
        planned(table(5), shards=6)


def test_nothing_to_prepare_is_refused() -> None:
    with pytest.raises(UsageError, match="no samples"):
        planned(table(0))


def test_a_million_descriptors_stay_small_and_quick() -> None:
    """A tenth of ImageNet here; the whole is measured by the benchmark."""
    columns = table(128_000, 1000)
    tracemalloc.start()
    started = time.process_time()
    plan = planned(columns)
    assert time.process_time() - started < 30
    assert tracemalloc.get_traced_memory()[1] < 150e6
    tracemalloc.stop()
    assert len(plan.splits[0].rows_N) == 128_000


# --- choosing -----------------------------------------------------------------------------------------


def test_a_subset_of_classes_is_seeded_and_keeps_order() -> None:
    columns, classes = table(100, 10), [{"name": f"c{n}"} for n in range(10)]
    one, names = seeded_subset(columns, classes, 3, seed=0)
    assert len(names) == 3
    assert names == sorted(names, key=lambda entry: entry["name"])
    assert len(one) == 30
    for key, label in zip(one.keys, one.labels_N.tolist(), strict=True):
        assert key.startswith(names[label]["name"] + "/")
    assert seeded_subset(columns, classes, 3, seed=0)[1] == names
    assert any(seeded_subset(columns, classes, 3, seed=seed)[1] != names for seed in range(1, 6))
    with pytest.raises(UsageError, match="the source has 10"):
        seeded_subset(columns, classes, 11, seed=0)


def test_labels_follow_the_users_order() -> None:
    columns, classes = table(10, 2), [{"name": "c0"}, {"name": "c1"}]
    found, names = in_class_order(columns, classes, ["c1", "c0"])
    assert [entry["name"] for entry in names] == ["c1", "c0"]
    assert found.labels_N.tolist() == [1, 0] * 5
    for order in (["c1"], ["c1", "c0", "c2"], ["c1", "c1"]):
        with pytest.raises(UsageError):
            in_class_order(columns, classes, order)


@settings(max_examples=30)
@given(fraction=st.floats(0.05, 0.95), seed=st.integers(0, 50))
def test_val_is_taken_class_by_class(fraction: float, seed: int) -> None:
    columns = table(200, 4)
    found = with_val_split(columns, fraction, seed)
    is_val = found.splits_N == found.split_names.index("val")
    for label in range(4):
        assert int(is_val[columns.labels_N == label].sum()) == round(50 * fraction)
    assert with_val_split(columns, fraction, seed).splits_N.tolist() == found.splits_N.tolist()


def test_val_is_taken_from_train_alone() -> None:
    columns = table(200, 5, splits=("train", "test"))
    found = with_val_split(columns, 0.1, 0)
    assert np.count_nonzero(found.splits_N == found.split_names.index("test")) == 100
    assert np.array_equal(found.splits_N == found.split_names.index("test"), columns.splits_N == 1)
    assert np.count_nonzero(found.splits_N == found.split_names.index("val")) == 10
    with pytest.raises(UsageError, match="no train split"):
        with_val_split(table(10, splits=("test",)), 0.1, 0)


def test_a_source_with_val_is_not_split_again() -> None:
    with pytest.raises(UsageError, match="has a val split already"):
        with_val_split(table(10, splits=("train", "val")), 0.1, 0)


@pytest.mark.parametrize(("fraction", "empty"), [(0.01, "val"), (0.99, "train")])
def test_a_split_that_would_be_empty_is_said(fraction: float, empty: str) -> None:
    with pytest.raises(UsageError, match=f"{empty} empty"):
        with_val_split(table(10, 2), fraction, 0)


def test_keys_that_come_twice_and_bad_labels_become_troubles_not_errors() -> None:
    columns = replace(table(5, 2), keys=["a", "a", "b", "c", "d"], labels_N=np.array([0, 1, 2, -1, 0], np.int32))
    found = checked(columns, 2)
    assert found.keys == columns.keys
    assert found.troubles == {1: "duplicate key", 2: "label out of range", 3: "no label"}


# --- words to settings --------------------------------------------------------------------------------


def test_outputs_are_parsed() -> None:
    assert parse_output("64:raw:square") == Output(size_px=64, codec="raw", resize="square")
    assert parse_output("256:jpeg", quality=80).quality == 80
    assert parse_output("keep").codec == "keep"
    for wrong in ("jpeg", "256", "256:jpeg:x:y", "a:jpeg", "256:gif", "64:raw:big"):
        with pytest.raises(UsageError):
            parse_output(wrong)
    with pytest.raises(UsageError, match="two outputs"):
        config(outputs=(Output(), Output(quality=80)))


@pytest.mark.parametrize(
    ("text", "expected"), [("64MiB", 64 << 20), ("1000", 1000), ("1.5KB", 1500), ("2g", 2 * 10**9)]
)
def test_sizes_are_parsed(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


def test_sizes_that_are_none_are_refused() -> None:
    for wrong in ("", "MiB", "-1", "64XB"):
        with pytest.raises(UsageError):
            parse_bytes(wrong)
