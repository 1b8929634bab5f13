"""Rows of a loader that counts for itself are what was done since the last ones, whoever has the worker's number."""

import os
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.record.journal import Journal, TimeRow
from feedline.profiling.watch import loader_stats
from feedline.profiling.watch.loader_stats import LoaderStats

FIRST, SECOND = 999_999_990, 999_999_991


class Counting:
    """Its workers' counters, as `stats()` shows them."""

    def __init__(self) -> None:
        self.workers: list[dict[str, Any]] = []

    def stats(self) -> dict[str, Any]:
        return {"workers": self.workers}

    def have(self, *pids: int, batches: int) -> None:
        """Every worker has made so many batches, each in a second."""
        counts = {"batches": batches, "samples": 8 * batches, "seconds": {"decode": float(batches)}}
        self.workers = [{"worker": number, "pid": pid, **counts} for number, pid in enumerate(pids)]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """CPU time and run-queue delay by process."""
    told: dict[int, float] = {}
    monkeypatch.setattr(loader_stats, "cpu_seconds", lambda pid: told.get(pid, 0.0))
    monkeypatch.setattr(loader_stats, "run_queue_delay_s", told.get)
    return told


def rows(journal: Journal, name: str) -> list[tuple[float, int, int, float]]:
    """(seconds of decoding, batches, samples, CPU seconds) of each."""
    return [(row.stages["decode"], row.batches, row.samples, row.cpu_s) for row in journal.rows(name, TimeRow)]


def test_a_row_is_what_was_done_since_the_one_before(tmp_path: Path, clocks: dict[int, float]) -> None:
    journal, loader = Journal(tmp_path), Counting()
    stats = LoaderStats(loader, 3, rank=1)
    for batches in (2, 5):
        loader.have(FIRST, SECOND, batches=batches)
        clocks |= {FIRST: 0.9 * batches, SECOND: 0.5 * batches}
        stats.write(journal)
    assert rows(journal, f"worker-{FIRST}") == [(2.0, 2, 16, 1.8), (3.0, 3, 24, pytest.approx(2.7))]
    assert rows(journal, f"worker-{SECOND}") == [(2.0, 2, 16, 1.0), (3.0, 3, 24, 1.5)]
    about = journal.read(f"worker-{SECOND}")
    assert about is not None and (about["worker"], about["loader"], about["rank"]) == (1, 3, 1)
    first, second = journal.rows(f"worker-{FIRST}", TimeRow)
    assert first.t1 == second.t0 and first.stages_delay is None
    assert second.stages_delay == {"decode": pytest.approx(2.7)}


def test_another_process_with_the_same_number_has_not_done_it_again(tmp_path: Path, clocks: dict[int, float]) -> None:
    """As the loader's epochs are with persistent_workers=False."""
    journal, loader = Journal(tmp_path), Counting()
    stats = LoaderStats(loader, 0, rank=0)
    loader.have(FIRST, batches=40)
    clocks[FIRST] = 36.0
    stats.write(journal)
    loader.have(0, batches=40)  # it is being started
    stats.write(journal)
    loader.have(SECOND, batches=43)
    clocks[SECOND] = 2.5
    stats.write(journal)
    assert rows(journal, f"worker-{FIRST}") == [(40.0, 40, 320, 36.0)]
    assert rows(journal, f"worker-{SECOND}") == [(3.0, 3, 24, 2.5)]
    assert sorted(path.stem for path in tmp_path.glob("*.jsonl")) == [f"worker-{FIRST}", f"worker-{SECOND}"]


def test_what_was_done_before_the_watch_is_not_in_it(tmp_path: Path, clocks: dict[int, float]) -> None:
    journal, loader = Journal(tmp_path), Counting()
    loader.have(FIRST, batches=1000)
    clocks[FIRST] = 900.0
    stats = LoaderStats(loader, 0, rank=0)
    loader.have(FIRST, batches=1001)
    clocks[FIRST] = 900.5
    stats.write(journal)
    assert rows(journal, f"worker-{FIRST}") == [(1.0, 1, 8, 0.5)]


def test_what_the_trainer_prepares_itself_has_none_of_its_clocks(tmp_path: Path, clocks: dict[int, float]) -> None:
    journal, loader = Journal(tmp_path), Counting()
    stats = LoaderStats(loader, 2, rank=0)
    for batches in (1, 3):
        clocks[os.getpid()] = 10.0 * batches
        loader.have(os.getpid(), batches=batches)
        stats.write(journal)
    name = f"loading-{os.getpid()}-2"
    assert rows(journal, name) == [(1.0, 1, 8, 0.0), (2.0, 2, 16, 0.0)]
    assert [row.stages_delay for row in journal.rows(name, TimeRow)] == [None, None]


def test_a_loader_that_cannot_tell_ends_nothing(tmp_path: Path) -> None:
    class Broken(Counting):
        def stats(self) -> dict[str, Any]:
            raise RuntimeError("not now")

    LoaderStats(Broken(), 0, rank=0).write(Journal(tmp_path))
    loader = Counting()
    loader.workers = [{"pid": FIRST}]
    LoaderStats(loader, 0, rank=0).write(Journal(tmp_path))
    assert not list(tmp_path.iterdir())
