"""The journal of a search: whole after kills, shared by processes, followed by what the tasks' records say."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from feedline.pipeline.base.errors import FeedlineError
from feedline.train.study import search as module
from feedline.train.study.search import JOURNAL, Search, mend
from feedline.train.study.space import Choices, Range, Space

SPACE: Space = {
    "lr": Range(low=1e-3, high=1.0, log=True),
    "batch_size": Range(low=16, high=64, whole=True),
    "widths": Choices(values=((6, 16), (8, 32))),
}
Program = Callable[..., "subprocess.Popen[str]"]


def lines(study: Path) -> list[dict[str, object]]:
    """All of the journal: each line is JSON, and the last one ends."""
    text = (study / JOURNAL).read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def states(search: Search) -> list[str]:
    return [trial.state.name for trial in search._study.get_trials()]


def test_what_was_drawn_for_a_task_stays_and_lies_in_the_space(study: Path) -> None:
    search = Search(study, SPACE)
    drawn = [search.draw(task) for task in range(4)]
    assert [Search(study, SPACE).draw(task) for task in range(4)] == drawn
    assert len({params["lr"] for params in drawn}) == 4 and states(search) == ["RUNNING"] * 4
    for params in drawn:
        assert 1e-3 <= params["lr"] <= 1.0 and params["batch_size"] in range(16, 65)
        assert params["widths"] in ((6, 16), (8, 32))


def test_a_study_that_goes_on_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    search = Search(whole, SPACE, seed=3)
    at_once = [search.draw(task) for task in range(14)]
    in_two = [Search(halves, SPACE, seed=3).draw(task) for task in range(14)]
    assert at_once == in_two


def test_a_trial_that_is_behind_others_after_as_many_epochs_is_to_end(study: Path) -> None:
    search = Search(study, SPACE, min_epochs=1, reduction=2)
    for task, top1 in enumerate((0.5, 0.6, 0.7)):
        search.draw(task)
        assert not search.report(task, 1, top1)
    search.draw(3)
    assert search.report(3, 1, 0.1)
    never = Search(study, SPACE, reduction=1)
    never.draw(3)
    assert not never.report(3, 2, 0.1)


def test_the_journal_follows_the_records(study: Path) -> None:
    search = Search(study, SPACE)
    for task in range(4):
        search.draw(task)
    search.report(1, 1, 0.25)
    records = {
        0: {"state": "complete", "value": 0.5},
        1: {"state": "pruned", "value": 0.25},
        2: {"state": "failed", "value": None},
        9: {"state": "complete", "value": 0.1},  # failed before anything was drawn
    }
    for _ in range(2):
        search.catch_up(records)
        Search(study, SPACE).catch_up(records)
    assert states(search) == ["COMPLETE", "PRUNED", "FAIL", "RUNNING"]
    assert search._study.best_value == 0.5


def test_importance_names_what_mattered(study: Path) -> None:
    search = Search(study, SPACE)
    for task in range(20):
        assert search.importance() == {}
        top1 = search.draw(task)["batch_size"] / 64
        search.report(task, 1, top1)
        search.catch_up({task: {"state": "complete", "value": top1}})
    importance = search.importance()
    assert max(importance, key=lambda name: importance[name]) == "batch_size"
    assert sum(importance.values()) == pytest.approx(1)


HALF = """
import os, signal, sys
from pathlib import Path
from feedline.train.study import search
from tests.train.study.test_search import SPACE
opened = search.Search(Path(sys.argv[1]), SPACE)
opened.draw(0)

def killed(descriptor):
    os.truncate(descriptor, os.fstat(descriptor).st_size - 9)
    os.kill(os.getpid(), signal.SIGKILL)

os.fsync = killed  # what Optuna calls behind a write, while it has the lock
opened.report(0, 1, 0.5)
"""


def test_a_line_that_a_killed_process_left_is_cut_off_by_the_next(
    study: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program(HALF, study).wait() == -9
    torn = (study / JOURNAL).read_text()
    assert not torn.endswith("\n") and (study / f"{JOURNAL}.lock").is_symlink()
    monkeypatch.setattr(module, "GRACE_S", 3)
    search = Search(study, SPACE)  # reading it is no trouble
    assert states(search) == ["RUNNING"]
    params = search.draw(0)
    search.report(0, 1, 0.25)
    search.draw(1)
    assert len(lines(study)) > torn.count("\n")
    assert Search(study, SPACE).draw(0) == params
    assert Search(study, SPACE)._study.get_trials()[0].intermediate_values == {1: 0.25}


@pytest.mark.parametrize(("torn", "whole"), [(b"", b""), (b"a\nb\n", b"a\nb\n"), (b"a\nb", b"a\n"), (b"ab", b"")])
def test_only_a_last_line_without_an_end_is_cut_off(tmp_path: Path, torn: bytes, whole: bytes) -> None:
    path = tmp_path / JOURNAL
    path.write_bytes(torn)
    mend(path)
    assert path.read_bytes() == whole


def test_a_journal_that_is_damaged_in_its_middle_is_refused(study: Path) -> None:
    Search(study, SPACE).draw(0)
    path = study / JOURNAL
    path.write_bytes(path.read_bytes().replace(b"op_code", b'op"code', 1))
    with pytest.raises(FeedlineError, match=r"journal\.log is damaged .* another folder"):
        Search(study, SPACE)


JOINED = """
import sys
from pathlib import Path
from feedline.train.study.search import Search
from tests.train.study.test_search import SPACE
search = Search(Path(sys.argv[1]), SPACE)
for task in range(int(sys.argv[2]), 12, 2):
    search.draw(task)
    search.report(task, 1, 0.5)
    search.catch_up({task: {"state": "complete", "value": 0.5}})
"""


def test_two_processes_write_one_journal(study: Path, program: Program) -> None:
    assert [process.wait() for process in [program(JOINED, study, first) for first in range(2)]] == [0, 0]
    lines(study)
    search = Search(study, SPACE)
    assert states(search) == ["COMPLETE"] * 12
    assert {trial.user_attrs["task"] for trial in search._study.get_trials()} == set(range(12))
