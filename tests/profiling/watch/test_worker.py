"""What a worker process does, and for whom."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from feedline.profiling.profile import Profile
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig

TRAINING = """
import time
from torch.utils.data import DataLoader

for batch in DataLoader(list(range(400)), batch_size=4, num_workers=1):
    time.sleep(0.002)
"""
BOTH = """
import subprocess, sys

for _ in range(2):
    subprocess.run([sys.executable, sys.argv[1]])
"""


@pytest.mark.slow
def test_of_two_trainings_one_after_the_other_both_are_seen(tmp_path: Path) -> None:
    """Each is rank 0."""
    training, both = tmp_path / "training.py", tmp_path / "both.py"
    training.write_text(TRAINING)
    both.write_text(BOTH)
    first, second = study(StudyConfig(argv=[str(both), str(training)])).recording.workers
    assert min(first.samples, second.samples) > 200


class Heavy:
    """Made in no time, serialised in milliseconds."""

    def __reduce__(self) -> Any:
        until_s = time.thread_time() + 0.003
        while time.thread_time() < until_s:
            pass
        return Heavy, ()


class Objects(Dataset[Any]):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> Any:
        return Heavy()


def other_queue(_: int) -> None:
    threading.Thread(target=threading.Event().wait, name="QueueFeederThread", daemon=True).start()


def test_sending_is_what_the_thread_of_the_workers_own_queue_does() -> None:
    loader = DataLoader(Objects(), batch_size=4, num_workers=1, collate_fn=list, worker_init_fn=other_queue)
    with Profile(resources=False) as seen:
        for _ in loader:
            pass
    (worker,) = seen.recording.workers
    assert worker.stages["send"] > 0.1  # of 0.48 s


class Boxes(Dataset[Any]):
    """Pictures of three channels, each of its own size."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 8 + index % 5, 8), {"boxes": torch.zeros(1 + index % 3, 4)}


def one_by_one(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def test_samples_that_are_handed_over_one_by_one_are_counted_on_both_sides() -> None:
    with Profile(resources=False) as seen:
        for _ in DataLoader(Boxes(), batch_size=8, num_workers=1, collate_fn=one_by_one):
            time.sleep(0.005)
    assert {step.samples for step in seen.recording.steps} == {8}
    (worker,) = seen.recording.workers
    assert worker.samples == pytest.approx(8 * worker.batches, abs=4)


class Stream(IterableDataset[Any]):
    def __init__(self, *, divided: bool) -> None:
        self.divided = divided

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 64, info.num_workers) if self.divided else range(64))


def divided_elsewhere(worker: int) -> None:
    pass


@pytest.mark.parametrize(
    ("divided", "workers", "init", "told"),
    [(False, 2, None, True), (True, 2, None, False), (False, 1, None, False), (False, 2, divided_elsewhere, False)],
)
def test_workers_that_all_give_every_sample_are_told_of(divided: bool, workers: int, init: Any, told: bool) -> None:
    with Profile(resources=False) as seen:
        for _ in DataLoader(Stream(divided=divided), batch_size=4, num_workers=workers, worker_init_fn=init):
            pass
    said = [note for note in seen.recording.notes if "each of the 2 workers gives all" in note]
    assert len(said) == told


class Signed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([get_worker_info()] * 4)


def test_what_torch_says_of_a_worker_may_still_be_sent() -> None:
    with Profile(resources=False):
        given = list(DataLoader(Signed(), batch_size=None, num_workers=2))
    assert sorted(one.id for one in given) == [0] * 4 + [1] * 4
