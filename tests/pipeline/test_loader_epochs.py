"""Workers go on into the next epoch: what they have made ahead is never seen but as that epoch's own batches."""

import os
import signal
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import DatasetError, UsageError, WorkerError
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.loader import Loader
from feedline.pipeline.workers.pool import WorkerCrew
from feedline.pipeline.workers.slots import Ledger
from tests.pipeline.loading import SMALL, damage, labels

MakeSplit = Callable[..., Path]
ONE = SMALL | {"num_workers": 1}
"""With one worker, what it has been given by an epoch's end is known: two batches of the next one."""
EPOCH, AHEAD = 56, 16


@pytest.fixture(autouse=True)
def no_slot_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is always a task under way or a slot for one; the trainer would wait for ever."""

    def wait(ledger: Ledger) -> None:
        raise AssertionError("no task is under way, and no slot is free")

    monkeypatch.setattr(Ledger, "wait", wait)


def filled(loader: Loader) -> int:
    """The samples that its workers have filled once they have done all that they were given."""
    workshop = loader._workshops[0]
    while workshop.outstanding:
        workshop.take_reply()
    return sum(worker["samples"] for worker in loader.stats()["workers"])


def slots(loader: Loader) -> int:
    """Those whose whereabouts are known."""
    workshop = loader._workshops[0]
    ledger, waiting = workshop.ledger, sum(len(run._replies) for run in workshop._runs.values())
    return len(ledger._free) + len(ledger._returned) + ledger.lent + waiting + workshop.outstanding


def in_epoch(split: Path, epoch: int, **options: Any) -> list[int]:
    fresh = Loader(split, **SMALL | options | {"num_workers": 0})
    fresh.set_epoch(epoch)
    return labels(fresh)


@pytest.mark.parametrize(
    ("epochs", "samples"),
    [
        ((0, 1, 2, 3), (EPOCH, 2 * EPOCH + AHEAD, 3 * EPOCH + AHEAD, 4 * EPOCH + AHEAD)),
        ((4, 4, 4, 4), (EPOCH, 2 * EPOCH + AHEAD, 3 * EPOCH + AHEAD, 4 * EPOCH + AHEAD)),
        ((0, 1, 7, 8), (EPOCH, 2 * EPOCH + AHEAD, 3 * EPOCH + AHEAD, 4 * EPOCH + 2 * AHEAD)),
        ((0, 2, 4, 3), (EPOCH, 2 * EPOCH, 3 * EPOCH, 4 * EPOCH)),
    ],
)
def test_they_go_on_into_the_epoch_that_followed_before(
    split: Path, epochs: tuple[int, ...], samples: tuple[int, ...]
) -> None:
    """A right guess makes nothing twice, a wrong one costs what was made ahead, and without reason none is made."""
    loader, found = Loader(split, **ONE), list[int]()
    for epoch in epochs:
        loader.set_epoch(epoch)
        assert labels(loader) == in_epoch(split, epoch)
        found.append(filled(loader))
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (epoch + 1, 0)
        assert (loader.stats()["samples"], loader.batches_left) == (len(found) * EPOCH, 7)
    assert tuple(found) == samples


def test_without_being_told_the_next_epoch_is_the_next(split: Path) -> None:
    loader = Loader(split, **ONE)
    assert [labels(loader) for _ in range(4)] == [in_epoch(split, epoch) for epoch in range(4)]
    assert filled(loader) == 4 * EPOCH + AHEAD


def test_a_state_within_the_epoch_that_was_expected_gives_its_rest(split: Path) -> None:
    loader = Loader(split, **ONE)
    for _ in range(2):
        labels(loader)
    loader.load_state_dict(loader.state_dict() | {"epoch": 2, "samples": 24})
    assert labels(loader) == in_epoch(split, 2)[24:]


def test_workers_that_do_not_persist_end_with_their_epoch(split: Path) -> None:
    loader = Loader(split, **ONE | {"persistent_workers": False})
    for number in range(3):
        batches = iter(loader)
        assert len(loader._workshops[0]._runs) == 1, "nothing is begun ahead"
        assert [int(label) for _, labels_N in batches for label in labels_N] == in_epoch(split, number)
        assert loader.worker_pids == []
    assert sum(worker["samples"] for worker in loader.stats()["workers"]) == 3 * EPOCH


STEPS = st.fixed_dictionaries(
    {
        "named": st.none() | st.integers(0, 2),
        "resumed": st.none() | st.tuples(st.integers(0, 2), st.integers(0, 60)),
        "px": st.sampled_from([16, 16, 16, 12]),
        "taken": st.sampled_from([*range(7), *[99] * 9]),
        "held": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(STEPS, min_size=3, max_size=8), st.sampled_from(["drop", "pad", "wrap"]), st.integers(1, 3))
def test_whatever_is_guessed_the_batches_are_those_of_a_loader_that_makes_none_ahead(
    split: Path, steps: list[dict[str, Any]], policy: str, workers: int
) -> None:
    loader, twin = (Loader(split, **SMALL | {"policy": policy, "num_workers": number}) for number in (workers, 0))
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in steps:
        for one in (loader, twin):
            if step["resumed"] is not None:
                epoch, samples = step["resumed"]
                one.load_state_dict(one.state_dict() | {"epoch": epoch, "samples": samples})
            if step["named"] is not None:
                one.set_epoch(step["named"])
            one.set_image_size(step["px"])
        both = (islice(one, step["taken"]) for one in (loader, twin))
        for (images_NHWC, labels_N), (expected_NHWC, expected_N) in zip(*both, strict=True):
            assert torch.equal(images_NHWC, expected_NHWC) and torch.equal(labels_N, expected_N)
            held += [(images_NHWC, expected_NHWC.clone())] * step["held"]
        assert loader.state_dict() == twin.state_dict()
        assert slots(loader) == loader._workshops[0].depth + 3
        assert all(torch.equal(one, as_delivered) for one, as_delivered in held)
    loader.close()


def test_an_epoch_that_is_left_for_the_one_begun_ahead_has_ended(split: Path) -> None:
    loader = Loader(split, **ONE)
    labels(loader)
    left = iter(loader)
    for _ in range(6):
        next(left)
    [_, ahead] = loader._workshops[0]._runs.values()
    batches = iter(loader)
    assert batches._run is ahead  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="has ended"):
        next(left)
    assert [int(label) for _, labels_N in batches for label in labels_N] == in_epoch(split, 2)


def test_the_end_of_an_epoch_takes_nothing_from_the_next(split: Path) -> None:
    """As the device's side asks, which has one batch ready ahead."""
    loader = Loader(split, **ONE)
    labels(loader)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    filled(loader)
    assert batches._run.next_if_ready() is None  # type: ignore[attr-defined]
    assert next(batches, None) is None
    assert labels(loader) == in_epoch(split, 2)


@pytest.mark.parametrize(("epochs", "workers"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_worker_that_dies_between_two_epochs_is_told_at_the_next_one_s_start(
    split: Path, epochs: int, workers: int
) -> None:
    loader = Loader(split, **SMALL | {"num_workers": workers})
    for _ in range(epochs):
        labels(loader)
    pid = loader.worker_pids[-1]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerError, match=rf"worker {workers - 1} .*SIGKILL"):
        iter(loader)
    assert labels(loader) == in_epoch(split, epochs)


def bad_in_the_third(batch_size: int = 16) -> tuple[int, int, int]:
    """Seed, sample and batch: one that the first two epochs leave over, and the third has in what is made ahead."""
    for seed, sample in product(range(100), range(60)):
        plans = [EpochPlan(samples=60, seed=seed, epoch=epoch, batch_size=batch_size) for epoch in range(3)]
        comes = [[number for number in range(len(plan)) if sample in plan.batch(number)] for plan in plans]
        if comes in ([[], [], [0]], [[], [], [1]]):
            return seed, sample, comes[2][0]
    raise AssertionError


def test_a_bad_sample_of_the_next_epoch_is_told_when_its_turn_comes(make_split: MakeSplit) -> None:
    folder, (seed, sample, batch) = make_split(), bad_in_the_third()
    damage(folder, sample)
    options = ONE | {"batch_size": 16, "seed": seed}
    loader = Loader(folder, **options)
    assert [len(labels(loader)) for _ in range(2)] == [48, 48]
    filled(loader)
    batches = iter(loader)
    for _ in range(batch):
        next(batches)
    with pytest.raises(DatasetError, match=f"s{sample:05d}.*wrong CRC"):
        next(batches)
    for _ in range(2):
        loader.set_epoch(1)
        assert len(labels(loader)) == 48
    skipping = Loader(folder, **options | {"on_bad": "skip"})
    for bad in ([], [], [f"s{sample:05d}"]):
        labels(skipping)
        filled(skipping)
        assert [one["key"] for one in skipping.stats()["bad"]] == bad


def held_up(folder: Path) -> Callable[[Any], Any]:
    """A transform that leaves a mark for every sample, and waits with it until there is a file `go`."""

    def transform(image_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.001)
        return image_HWC

    return transform


def all_at_work(folder: Path, workers: int) -> None:
    while len({path.name.partition("-")[0] for path in folder.iterdir()}) < workers:
        time.sleep(0.001)


def test_a_batch_that_is_given_up_is_left_at_the_next_sample(split: Path, tmp_path: Path) -> None:
    loader = Loader(split, **SMALL | {"transform": held_up(tmp_path)})
    iter(loader)
    all_at_work(tmp_path, 2)
    loader.set_epoch(3)
    batches = iter(loader)
    (tmp_path / "go").touch()
    assert [int(label) for _, labels_N in batches for label in labels_N] == in_epoch(split, 3)
    assert filled(loader) == EPOCH


def test_a_loader_that_is_closed_waits_for_no_batch(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = WorkerCrew.close

    def close_and_go(crew: WorkerCrew) -> None:
        (tmp_path / "go").touch()
        close(crew)

    monkeypatch.setattr(WorkerCrew, "close", close_and_go)
    loader = Loader(split, **SMALL | {"transform": held_up(tmp_path)})
    iter(loader)
    all_at_work(tmp_path, 2)
    loader.close()
    assert len(list(tmp_path.iterdir())) == 3, "one sample of each worker, and the word to go on"
