"""Workers on one host: each with a place of its own, started anew when they are killed, none left at the end."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.train.study.crew import CrewConfig, Place, hire, places, work_on
from feedline.train.study.tasks import Tasks
from tests.commands import all_gone

KIND = """
import os, signal, time
from pathlib import Path
from feedline.pipeline.base.errors import FeedlineError
from feedline.train.config import TrainConfig
from feedline.train.study.tasks import Task


class Work:
    config = TrainConfig(dataset=Path("OUT"), device="cpu", threads=1)

    def __init__(self, study, settings):
        self.study, self.settings = study, settings
        if settings.get("refuse"):
            raise FeedlineError("this study is of another machine")
        if settings.get("end"):
            os._exit(7)

    def tasks(self):
        if self.settings.get("over"):
            raise FeedlineError("the first tasks have all failed")
        return [Task(number=number, name=f"task-{number}") for number in range(5)]

    def do(self, task, world, claim):
        if self.settings.get("whole"):
            import torch

            if task.number == 1 and world.rank == 1 and self.settings.get("alone") == "fails":
                raise ValueError("its sample is damaged")
            if task.number == 1 and self.settings.get("alone") == "dies" and not (self.study / "killed").exists():
                if world.rank == 1:
                    (self.study / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(3600)
            if task.number == 1 and self.settings.get("fails"):
                raise FeedlineError("there is not enough memory")
            return {"state": "complete", "sum": int(world.sum(torch.ones(1)))}
        if task.number == 1 and not (self.study / "killed").exists():
            (self.study / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task.number == 2:
            raise ValueError("it cannot be done")
        time.sleep(self.settings.get("seconds", 0))
        return {"state": "complete", "value": 1.0, "cores": sorted(os.sched_getaffinity(0)),
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}


begin = Work
"""


@pytest.fixture
def carry_out(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tasks]:
    (tmp_path / "fake_kind.py").write_text(KIND)
    monkeypatch.syspath_prepend(tmp_path)

    def run(config: CrewConfig, look: Callable[[], None] = lambda: None, **settings: Any) -> Tasks:
        tasks = Tasks(study)
        work_on(hire("fake_kind", study, settings, "cpu", config), config.ranks, tasks, look)
        return tasks

    return run


@pytest.mark.slow
def test_a_killed_worker_loses_its_task_only_and_a_task_that_fails_does_not_end_the_study(
    carry_out: Callable[..., Tasks],
) -> None:
    tasks = carry_out(CrewConfig(jobs=2))
    rows = tasks.told(5)
    assert [row["state"] for row in rows] == ["complete", "complete", "failed", "complete", "complete"]
    assert [row["attempts"] for row in rows] == [1, 2, 2, 1, 1]
    assert "it cannot be done" in rows[2]["error"]
    if len(os.sched_getaffinity(0)) > 1:
        assert len({tuple(row["cores"]) for row in rows if "cores" in row}) <= 2
        assert all(len(row["cores"]) < len(os.sched_getaffinity(0)) for row in rows if "cores" in row)
    assert "in do\n" in "".join(path.read_text() for path in (tasks.study / "logs").iterdir())  # where it failed


@pytest.mark.slow
def test_a_task_may_have_several_ranks(carry_out: Callable[..., Tasks]) -> None:
    rows = carry_out(CrewConfig(ranks=2), whole=True).told(5)
    assert [(row["state"], row["sum"], row["attempts"]) for row in rows] == [("complete", 2, 1)] * 5


@pytest.mark.slow
def test_a_task_of_several_ranks_that_fails_is_tried_again_and_does_not_end_the_study(
    carry_out: Callable[..., Tasks],
) -> None:
    rows = carry_out(CrewConfig(ranks=2), whole=True, fails=True).told(5)
    assert [(row["state"], row["attempts"]) for row in rows] == [
        ("complete", 1), ("failed", 2), *[("complete", 1)] * 3,
    ]  # fmt: skip
    assert "not enough memory" in rows[1]["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("alone", "state", "attempts"), [("fails", "failed", 2), ("dies", "complete", 2)])
def test_a_rank_that_fails_or_dies_alone_costs_an_attempt_and_not_the_study(
    carry_out: Callable[..., Tasks], alone: str, state: str, attempts: int
) -> None:
    tasks = carry_out(CrewConfig(ranks=2), whole=True, alone=alone)
    rows = tasks.told(5)
    assert [(row["state"], row["attempts"]) for row in rows] == [
        ("complete", 1), (state, attempts), *[("complete", 1)] * 3,
    ]  # fmt: skip
    if alone == "fails":
        assert "its sample is damaged" in rows[1]["error"]
    assert not [path for path in (tasks.study / "logs").iterdir() if path.suffix != ".log"]


@pytest.mark.slow
def test_a_task_that_fails_is_one_of_those_that_may_be_begun(carry_out: Callable[..., Tasks]) -> None:
    """However the worker ends with it: of several ranks, or killed."""
    tasks = carry_out(CrewConfig(ranks=2, at_most=2), whole=True, fails=True)
    assert {number: len(attempts) for number, attempts in tasks.attempts().items()} == {0: 1, 1: 1}


@pytest.mark.slow
def test_what_one_rank_alone_has_heard_of_the_study_is_said(carry_out: Callable[..., Tasks]) -> None:
    with pytest.raises(FeedlineError, match=r"^the first tasks have all failed$"):
        carry_out(CrewConfig(ranks=2), over=True)


@pytest.mark.slow
def test_when_it_is_interrupted_no_worker_is_left_and_what_it_did_is_given_back(
    carry_out: Callable[..., Tasks], study: Path
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def look() -> None:
        if Tasks(study).running():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(CrewConfig(), look, seconds=3600)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert not Tasks(study).attempts()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_study_that_cannot_go_on_says_why(carry_out: Callable[..., Tasks], ranks: int) -> None:
    with pytest.raises(FeedlineError, match=r"^this study is of another machine$"):
        carry_out(CrewConfig(ranks=ranks), refuse=True)
    with pytest.raises(FeedlineError, match=r"before it had begun anything: see .*log"):
        carry_out(CrewConfig(ranks=ranks), end=True)


def test_a_worker_that_ends_has_its_status_told(carry_out: Callable[..., Tasks]) -> None:
    with pytest.raises(FeedlineError, match=r"status 7 before it had begun anything: see .*log"):
        carry_out(CrewConfig(), end=True)


@pytest.mark.slow
def test_a_worker_ends_with_who_started_it(study: Path, tmp_path: Path, program: Callable[..., Any]) -> None:
    (tmp_path / "fake_kind.py").write_text(KIND)
    text = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from feedline.train.study.crew import CrewConfig, hire, work_on
from feedline.train.study.tasks import Tasks
study = Path(sys.argv[1])
orders = hire("fake_kind", study, {"seconds": 3600}, "cpu", CrewConfig())
work_on(orders, 1, Tasks(study), lambda: None)
"""
    starter = program(text, study, tmp_path)
    while not (running := Tasks(study).running()):
        time.sleep(0.05)
    starter.kill()
    worker = next(iter(running.values()))["pid"]
    assert all_gone([worker])
    assert not Tasks(study).attempts()  # it gave back what it was at


# --- places -------------------------------------------------------------------------------------------


def test_cores_are_shared_out_and_gpus_go_round() -> None:
    assert places(CrewConfig(jobs=2), range(4), []) == [Place(cores=(0, 1)), Place(cores=(2, 3))]
    assert places(CrewConfig(), range(4), []) == [Place()]
    assert [place.cores for place in places(CrewConfig(jobs=5), range(2), [])] == [(0,), (1,), (0,), (1,), (0,)]
    gpus = [place.gpus for place in places(CrewConfig(), range(4), ["0", "1"])]
    assert gpus == ["0", "1"]
    assert [place.gpus for place in places(CrewConfig(jobs_per_gpu=2), range(4), ["3", "5"])] == ["3", "5", "3", "5"]
    assert [place.gpus for place in places(CrewConfig(ranks=2), range(4), list("0123"))] == ["0,1", "2,3"]
    assert len(places(CrewConfig(at_most=1), range(4), ["0", "1"])) == 1
    orders = hire("kind", Path("study"), {}, "cpu", CrewConfig(jobs=2, at_most=5))
    assert [order.at_most for order in orders] == [3, 2]


@pytest.mark.parametrize("config", [CrewConfig(jobs=3), CrewConfig(ranks=4), CrewConfig(jobs=2, ranks=2)])
def test_more_trainings_than_gpus_are_refused(config: CrewConfig) -> None:
    with pytest.raises(UsageError, match="--jobs-per-gpu"):
        places(config, range(4), ["0", "1"])


def test_no_more_cores_are_shared_out_than_a_quota_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of 64: each of four trainings has one, and those of another command hardly the same."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("feedline.train.study.crew.usable_cores", lambda: 4)
    found = [hire("sweep", tmp_path, {}, "cpu", CrewConfig(jobs=4)) for _ in range(9)]
    shares = [[order.cores for order in orders] for orders in found]
    assert all(len({*each}) == 4 and all(len(cores) == 1 for cores in each) for each in shares)
    assert len(set(map(tuple, shares))) > 1
