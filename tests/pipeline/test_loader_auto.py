"""`num_workers="auto"`: workers come and go amid epochs, and nobody can tell by the batches."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import UsageError, WorkerError
from feedline.pipeline.loader import Loader, LoaderConfig
from feedline.pipeline.ranks import default_workers
from feedline.pipeline.workers.headcount import Headcount
from feedline.pipeline.workers.pool import WorkerCrew
from tests.pipeline.loading import SMALL, labels

AUTO = SMALL | {"num_workers": "auto"}


class Scripted(Headcount):
    """Wants these numbers, one batch after the other, whatever it is told."""

    def __init__(self, first: int, *then: int) -> None:
        super().__init__(4)
        self.workers, self.begun = first, 0
        self._script: Iterator[int] = chain(then, repeat(then[-1] if then else first))

    def begin_anew(self) -> None:
        self.begun += 1

    def told(self, now: Any, ready: int) -> int:
        self.workers = next(self._script)
        return self.workers


def scripted(split: Path, *numbers: int, **options: Any) -> Loader:
    loader = Loader(split, **AUTO | options)
    loader._headcount = Scripted(*numbers)
    return loader


def settle(loader: Loader, count: int) -> None:
    """Goes through epochs until so many workers are there; those that leave are seen off as batches come."""
    for _ in range(2000):
        if len(loader.worker_pids) == count:
            return
        labels(loader)
        time.sleep(0.005)
    raise AssertionError(loader.worker_pids)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=20),
    st.lists(st.sampled_from([2, 99, 99]), min_size=2, max_size=4),
    st.sampled_from(["drop", "pad", "wrap"]),
)
def test_workers_added_and_sent_away_amid_an_epoch_give_the_same_batches(
    split: Path, numbers: list[int], takes: list[int], policy: str
) -> None:
    loader, twin = (
        scripted(split, *numbers, policy=policy),
        Loader(split, **SMALL | {"policy": policy, "num_workers": 0}),
    )
    for number, taken in enumerate(takes):
        both = (islice(one, taken) for one in (loader, twin))
        for (images_NHWC, labels_N), (expected_NHWC, expected_N) in zip(*both, strict=True):
            assert torch.equal(images_NHWC, expected_NHWC) and torch.equal(labels_N, expected_N)
        assert loader.state_dict() == twin.state_dict()
        if number % 2:
            state = twin.state_dict() | {"epoch": 1, "samples": 24}
            for one in (loader, twin):
                one.load_state_dict(state)
    loader.close()


def test_those_who_are_sent_away_end_and_their_work_still_counts(split: Path) -> None:
    loader = scripted(split, 3, 3, 3, 1)
    labels(loader)
    settle(loader, 1)
    stats = loader.stats()
    assert stats["num_workers"] == 1 and len(stats["workers"]) in (2, 3)  # one may leave before its first batch
    assert sum(worker["samples"] for worker in stats["workers"]) >= stats["samples"]
    ended = {worker["pid"] for worker in stats["workers"]} - set(loader.worker_pids)
    assert len(ended) >= len(stats["workers"]) - 1  # the one that stays may not have had a batch
    for pid in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_those_who_come_work(split: Path) -> None:
    loader = scripted(split, 1, 1, 3)
    labels(loader)
    settle(loader, 3)
    for _ in range(2000):
        labels(loader)
        if all(worker["batches"] for worker in loader.stats()["workers"]) and len(loader.stats()["workers"]) == 3:
            return
    raise AssertionError(loader.stats()["workers"])


@pytest.mark.parametrize("numbers", [(3, 3, 1), (1, 1, 3)])
def test_a_worker_that_is_killed_is_told_though_others_left_or_came(split: Path, numbers: tuple[int, ...]) -> None:
    loader = scripted(split, *numbers)
    settle(loader, numbers[-1])
    pid = loader.worker_pids[-1]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match=rf"pid {pid}\) was killed by SIGKILL"):
        iter(loader)
    assert len(labels(loader)) == 56, "new workers for the next epoch"


def test_a_worker_that_is_killed_while_another_leaves_is_told(split: Path) -> None:
    loader = scripted(split, 2)
    labels(loader)
    loader._workshops[0].crew._leaving = 1  # type: ignore[union-attr]
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, loader.worker_pids[0], os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match=r"worker 0 .*SIGKILL"):
        iter(loader)


def test_where_no_process_can_be_started_those_that_are_there_go_on(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = scripted(split, 1, 1, 2)
    batches = iter(loader)

    def refuse(crew: WorkerCrew) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(WorkerCrew, "add", refuse)
    assert len(list(batches)) == 7
    assert loader._headcount is not None and loader._headcount.most == 1
    assert "temporarily unavailable" in loader._headcount.why


def test_a_loader_finds_its_number_and_says_why(split: Path) -> None:
    loader = Loader(split, **AUTO)
    assert loader.num_workers <= default_workers()
    for _ in range(3):
        expected = Loader(split, **SMALL)
        expected.load_state_dict(loader.state_dict())
        assert labels(loader) == labels(expected)
    headcount = loader.stats()["headcount"]
    assert headcount["most"] == default_workers() and headcount["why"]
    assert loader.stats()["num_workers"] == loader.num_workers == len(loader.worker_pids)


def test_what_was_found_is_kept_for_workers_that_do_not_persist(split: Path) -> None:
    loader = scripted(split, 1, 3, persistent_workers=False)
    labels(loader)
    batches = iter(loader)
    assert len(loader.worker_pids) == 3
    assert isinstance(loader._headcount, Scripted) and loader._headcount.begun == 2, "the totals count from there"
    assert len(list(batches)) == 7


def test_the_word_is_auto() -> None:
    assert LoaderConfig(num_workers="auto").num_workers == "auto"
    with pytest.raises(UsageError, match="num_workers must be a whole number from 0 to 4,096 or 'auto', not 'all'"):
        LoaderConfig(num_workers="all")  # type: ignore[arg-type]
