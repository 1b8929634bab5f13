"""The order of the differential legs, and the batches that are handed out again."""

import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.profile_run import chosen_legs
from feedline.profiling.record.journal import Journal, LegRow, StudyConfig
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.feed import Feed, Feeds, WatchedLoader
from feedline.profiling.watch.legs.cached import Cache
from feedline.profiling.watch.legs.neighbours import Neighbours
from feedline.profiling.watch.legs.ways import Batches, LoaderOnly, Way, plan
from feedline.profiling.watch.patches import Patches


@given(st.lists(st.integers(1, 8), unique=True, max_size=3), st.integers(1, 4))
def test_every_leg_once_a_round_then_the_cold_one_and_last_what_may_end_the_script(
    counts: list[int], rounds: int
) -> None:
    lines = Way()
    planned = plan(chosen_legs(True), "torch", counts, rounds, [lines])
    order = [(way.leg, way.count) for way in planned]
    warm = [("normal", None), ("cached", None), ("loader_only", None), *(("loader_only", one) for one in counts)]
    first, behind = order[: rounds * len(warm)], order[rounds * len(warm) :]
    for turn in range(rounds):
        this = first[turn * len(warm) : (turn + 1) * len(warm)]
        assert sorted(map(str, this)) == sorted(map(str, warm))
        assert this[0] == warm[turn % len(warm)]
    assert behind[0] == ("cold", None) and planned[rounds * len(warm) + 1] is lines
    last = [leg for leg, _ in behind[2:]]
    assert sorted(last) == ["kept"] * rounds + ["laid_out"] * rounds
    assert last[0] == "kept" or rounds == 1
    assert all(set(last[at : at + 2]) == {"kept", "laid_out"} for at in range(0, len(last), 2))  # compared in pairs
    longest = max(len(list(same)) for _, same in groupby(last))
    assert longest <= max(rounds // 2, 1) + 1  # in turn, so that drift cancels


@pytest.mark.parametrize(("kind", "more"), [("torch", {"kept", "laid_out"}), ("feedline", set[str]())])
def test_what_belongs_to_the_ceiling_is_measured_with_it(kind: str, more: set[str]) -> None:
    assert {way.leg for way in plan(("normal", "cached"), kind, [], 1)} == {"normal", "cached", *more}
    assert [way.leg for way in plan(("normal",), kind, [], 1)] == ["normal"]
    assert plan((), kind, [], 1) == []


class ShortPasses:
    """A pass takes 30 ms to begin, and 2 ms a batch."""

    def __iter__(self) -> Iterator[Any]:
        time.sleep(0.03)
        for _ in range(6):
            time.sleep(0.002)
            yield torch.zeros(4, 1)


class Turns:
    """Three workers' batches at once, every 20 ms."""

    num_workers = 3

    def __iter__(self) -> Iterator[Any]:
        for _ in range(300):
            time.sleep(0.02)
            yield from [torch.zeros(4, 1)] * 3


class Adapter(WatchedLoader):
    kind = "torch"

    def workers(self, loader: Any) -> int:
        return getattr(loader, "num_workers", 0)

    def again(self, loader: Any, num_workers: int) -> Any:
        return type(loader)()


def drained(loader: Any, folder: Path, count: int | None, window_s: float) -> LegRow:
    capture = Capture(Journal(folder), StudyConfig())
    capture.leave(None)
    feed = Feed(Feeds(capture, Patches(print)), Adapter(), loader, iter)
    feed.begin_again()
    row = LoaderOnly(count).measure(Batches(feed, Journal(folder)), window_s, Neighbours(0))
    assert row is not None
    return row


@pytest.mark.parametrize("count", [None, 3])
def test_workers_that_hand_over_in_turn_are_drained_by_whole_turns(tmp_path: Path, count: int | None) -> None:
    """Ended at the first batch of a turn, the others would be missing: a sixth of the rate here."""
    assert drained(Turns(), tmp_path, count, 0.035).samples % (3 * 4) == 0


@pytest.mark.parametrize("count", [None, 1])
def test_what_passes_begin_with_is_not_in_the_loaders_own_rate(tmp_path: Path, count: int | None) -> None:
    row = drained(ShortPasses(), tmp_path, count, 0.2)
    assert row.samples / row.seconds > 0.4 * 4 / 0.002
    assert row.seconds >= 0.2


def test_the_page_cache_is_left_alone_when_told() -> None:
    assert "cold" not in chosen_legs(True, cold=False)
    assert chosen_legs(False) == chosen_legs(False, cold=False) == ()


def test_batches_are_laid_out_as_feedline_hands_them_over_and_stay_what_they_are() -> None:
    images, labels = torch.rand(8, 3, 5, 7), torch.arange(8)
    cache = Cache()
    cache.keep({"pixels": [images], "labels": labels})
    ours = cache.laid_out()
    assert ours is not None
    batch = ours.next()
    assert batch["pixels"][0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch["pixels"][0], images) and torch.equal(batch["labels"], labels)
    assert images.is_contiguous() and cache.next()["pixels"][0] is images
    batch["pixels"][0].zero_()
    assert torch.equal(ours.next()["pixels"][0], images)


def test_batches_are_laid_out_where_feedline_hands_them_over() -> None:
    """A device without memory stands for a GPU."""
    cache = Cache()
    cache.keep([torch.rand(8, 3, 5, 7), {"labels": torch.arange(8)}])
    ours = cache.laid_out("meta")
    assert ours is not None
    images, labels = ours.next()[0], ours.next()[1]["labels"]
    assert images.is_meta and labels.is_meta and images.is_contiguous(memory_format=torch.channels_last)
    assert not cache.next()[0].is_meta


def replaced(batch: Any) -> None:
    batch["image"] = batch["image"].permute(0, 2, 3, 1)


def taken_out(batch: Any) -> None:
    batch.pop("name")


def moved(batch: Any) -> None:
    batch["pair"][0] = batch["pair"][0].double()


def changed(batch: Any) -> None:
    batch["image"].add_(1)


@pytest.mark.parametrize("script", [replaced, taken_out, moved, changed])
def test_what_the_script_does_with_a_kept_batch_is_undone_before_it_comes_again(script: Any) -> None:
    image, label = torch.rand(2, 3, 4, 5), torch.arange(2)
    cache, before = Cache(), image.clone()
    cache.keep({"image": image, "pair": [label, 1], "name": "a"})
    for _ in range(3):
        batch = cache.next()
        assert batch.keys() == {"image", "pair", "name"} and batch["pair"][0] is label
        assert torch.equal(batch["image"], before)
        assert script is changed or batch["image"] is image  # nothing was copied
        script(batch)


def test_a_batch_that_nobody_touched_comes_again_as_it_is() -> None:
    cache = Cache()
    cache.keep(lent := torch.rand(2, 3), lent=True)
    assert cache.next() is not lent and bool((cache.next() == lent).all())
    cache = Cache()
    cache.keep(batch := [torch.rand(2, 3), ("a", "b")])
    assert cache.next() is cache.next() is batch


def test_a_batch_that_the_script_took_apart_is_laid_out_all_the_same() -> None:
    batch = {"image": torch.rand(2, 3, 4, 4), "label": torch.arange(2)}
    cache = Cache()
    cache.keep(batch)
    batch.pop("label")
    ours = cache.laid_out()
    assert ours is not None and set(ours.next()) == {"image", "label"}


def test_batches_without_images_are_not_laid_out() -> None:
    cache = Cache()
    cache.keep([torch.rand(8, 40), torch.rand(8, 40, 5, 5)])
    assert cache.laid_out() is None
