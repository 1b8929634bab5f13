"""Announcing what comes changes no byte, no order and no state; and everything is announced in time, in pieces."""

import os
import signal
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.loader import Loader
from feedline.pipeline.workers.ahead import ADVICE, OFF, READS, WAYS
from tests.pipeline.loading import SMALL, labels

MakeSplit = Callable[..., Path]
INLINE = SMALL | {"num_workers": 0}
WINDOW, PAGE = 128 << 10, 4096


def reaching(loader: Loader, batches: int, way: int = ADVICE, most_bytes: int = 1 << 30) -> Loader:
    """The loader, which announces so far ahead whatever its reads wait for."""
    ahead = loader._ahead
    ahead.most_bytes, ahead.reach.batches, ahead.reach.way = most_bytes, batches, way
    ahead.reach.told = lambda now: None  # type: ignore[method-assign]
    return loader


class FakeKernel:
    """Its read-ahead window is 128 KiB of whole pages: of an announcement it takes in no more. It keeps what it has
    read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: set[tuple[int, int]] = set()
        self.asked: list[tuple[int, int]] = []
        self.read: list[tuple[int, int]] = []
        self.missed = 0
        self.advice: set[int] = set()
        self._pread = os.pread
        monkeypatch.setattr(os, "posix_fadvise", self.posix_fadvise)
        monkeypatch.setattr(os, "pread", self.pread)

    def posix_fadvise(self, descriptor: int, offset: int, length: int, advice: int) -> None:
        self.advice.add(advice)
        if advice == os.POSIX_FADV_WILLNEED:
            assert length <= WINDOW
            self.asked.append((os.fstat(descriptor).st_ino, offset))
            self.pages |= set(sorted(self._pages(descriptor, offset, length))[: WINDOW // PAGE])

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self.read.append((os.fstat(descriptor).st_ino, offset - offset % PAGE))
        self.missed += not self._pages(descriptor, offset, length) <= self.pages
        return self._pread(descriptor, length, offset)

    def _pages(self, descriptor: int, offset: int, length: int) -> set[tuple[int, int]]:
        file = os.fstat(descriptor).st_ino
        return {(file, page) for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1)}


@pytest.mark.parametrize("px", [40, 300])
def test_every_sample_is_announced_before_it_is_read_in_pieces_that_a_small_window_takes(
    make_split: MakeSplit, monkeypatch: pytest.MonkeyPatch, px: int
) -> None:
    """300 px raw are 270 KB; from the first batch on, and when an epoch goes on in its middle."""
    folder, kernel = make_split(samples=40, px=px, codec="raw"), FakeKernel(monkeypatch)
    loader = Loader(folder, **INLINE)
    for _ in islice(loader, 2):
        pass
    loader.load_state_dict(loader.state_dict())
    labels(loader)
    assert len(kernel.read) == 40 and kernel.missed == 0
    whole = [one for one in dict.fromkeys(kernel.asked) if one in set(kernel.read)]
    assert whole == list(dict.fromkeys(kernel.read)), "in the plan's order"
    assert kernel.advice == {os.POSIX_FADV_WILLNEED, os.POSIX_FADV_RANDOM}, "nothing is dropped that others may need"
    assert len(kernel.asked) >= 40 * -(-3 * px * px // WINDOW)


def test_an_order_that_is_the_files_own_is_left_to_the_kernel_s_read_ahead_too(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel(monkeypatch)
    labels(Loader(split, **INLINE | {"train": False}))
    assert kernel.advice == {os.POSIX_FADV_WILLNEED}


def test_where_the_data_is_cached_nothing_is_announced_any_more(split: Path) -> None:
    loader = Loader(split, **INLINE)
    for _ in range(20):
        labels(loader)
    stats = loader.stats()["ahead"]
    assert stats["way"] == "off" and stats["batches"] == 0 and "cached" in stats["why"]
    assert stats["announced_bytes"] > 0
    labels(loader)
    assert loader.stats()["ahead"]["announced_bytes"] == stats["announced_bytes"]


def test_announcing_that_itself_has_to_wait_counts_as_waiting(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads are tried where the kernel answers an announcement only when it has read it all."""

    def slow(descriptor: int, offset: int, length: int, advice: int) -> None:
        time.sleep(0.001)

    monkeypatch.setattr(os, "posix_fadvise", slow)
    loader = Loader(split, **INLINE)
    reach = loader._ahead.reach
    for _ in range(100):
        if reach._tried:
            break
        labels(loader)
    assert reach._tried and reach.way == READS and loader.stats()["ahead"]["blocked_fraction"] > 0.1


STEPS = st.fixed_dictionaries(
    {
        "named": st.none() | st.integers(0, 2),
        "resumed": st.none() | st.tuples(st.integers(0, 2), st.integers(0, 60)),
        "taken": st.sampled_from([1, 2, 5, *[99] * 4]),
        "reach": st.sampled_from([0, 1, 4, 50]),
        "way": st.sampled_from([ADVICE, READS]),
        "most_bytes": st.sampled_from([0, 5_000, 1 << 30]),
    }
)


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=2, max_size=6), st.sampled_from(["drop", "pad", "wrap"]), st.integers(0, 3))
def test_whatever_is_announced_batches_and_state_are_the_same(
    split: Path, steps: list[dict[str, Any]], policy: str, workers: int
) -> None:
    loader = Loader(split, **SMALL | {"policy": policy, "num_workers": workers})
    twin = reaching(Loader(split, **INLINE | {"policy": policy}), 0, OFF)
    for step in steps:
        reaching(loader, step["reach"], step["way"], step["most_bytes"])
        for one in (loader, twin):
            if step["resumed"] is not None:
                epoch, samples = step["resumed"]
                one.load_state_dict(one.state_dict() | {"epoch": epoch, "samples": samples})
            if step["named"] is not None:
                one.set_epoch(step["named"])
        both = (islice(one, step["taken"]) for one in (loader, twin))
        for (images_NHWC, labels_N), (expected_NHWC, expected_N) in zip(*both, strict=True):
            assert torch.equal(images_NHWC, expected_NHWC) and torch.equal(labels_N, expected_N)
        assert loader.state_dict() == twin.state_dict()
        runs = loader._workshops[0]._runs.values()
        assert all(batch >= run._shown for run in runs for batch in run.announced_bytes), "what has come is no longer"
        assert loader._ahead.under_way_bytes == sum(sum(run.announced_bytes.values()) for run in runs) >= 0
    assert twin.stats()["ahead"]["announced_bytes"] == 0
    loader.close()
    assert loader._ahead.under_way_bytes == 0


@pytest.mark.parametrize("way", [ADVICE, READS])
def test_a_kill_and_another_number_of_ranks_amid_an_epoch_give_exactly_the_rest(split: Path, way: int) -> None:
    whole = labels(reaching(Loader(split, **INLINE | {"batch_size": 4}), 0))
    loader = reaching(Loader(split, **SMALL), 50, way)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, loader.worker_pids[0], os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match="SIGKILL"):
        for _ in batches:
            pass
        next(iter(loader))
    state = loader.state_dict() | {"epoch": 0, "samples": 24}
    loader.load_state_dict(state)
    assert labels(loader) == whole[24:56]
    rest: list[int] = []
    for rank in range(3):
        options = SMALL | {"batch_size": 4, "num_workers": 1, "rank": rank, "world_size": 3}
        resumed = reaching(Loader(split, **options), 50, way)
        resumed.load_state_dict(state)
        rest += labels(resumed)
    assert sorted(rest) == sorted(whole[24:60])


def test_what_is_chosen_is_said(split: Path) -> None:
    loader = reaching(Loader(split, **SMALL | {"num_workers": 1}), 7, READS)
    labels(loader)
    stats = loader.stats()
    assert (stats["ahead"]["way"], stats["ahead"]["batches"], stats["ahead"]["most_bytes"]) == ("reads", 7, 1 << 30)
    assert stats["ahead"]["way"] in WAYS
    assert stats["ahead"]["announced_bytes"] == sum(worker["announced_bytes"] for worker in stats["workers"]) > 0
    assert stats["storage_bytes"] >= 0 and stats["headcount"] is None and stats["notes"] == []


def test_shards_of_a_window_are_announced_whole_in_the_order_of_their_need(
    make_split: MakeSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_split(samples=60, shard_count=6, px=100, codec="raw")
    loader, kernel = Loader(folder, **INLINE | {"window_shards": 2}), FakeKernel(monkeypatch)
    begun = iter(loader)
    plan = loader._run.plan  # type: ignore[union-attr]
    needed = list(dict.fromkeys(loader.split.shards_N[plan.order_N].tolist()))
    files = [(folder / loader.manifest.shard_names[number]).stat().st_ino for number in needed]
    for _ in range(2000):
        whole = [file for file, offset in kernel.asked if offset == 0]
        if len(whole) >= 3:
            break
        time.sleep(0.005)
    assert sorted(whole[:3]) == sorted(files[:3]), "the one that is needed, and a window's more"
    size_bytes = (folder / loader.manifest.shard_names[needed[0]]).stat().st_size
    assert [(files[0], start) for start in range(0, size_bytes, WINDOW)] == [
        (file, offset) for file, offset in kernel.asked if file == files[0] and offset % WINDOW == 0
    ]
    del begun
