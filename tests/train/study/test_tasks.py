"""Tasks that processes share: taken once, renewed, lost when their process is, recorded once."""

import errno
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import BusyError, FeedlineError
from feedline.train.study import tasks as module
from feedline.train.study.tasks import FAILURES, Claim, LeaseLost, Task, Tasks, lives, started_s

ALL = [Task(number=number, name=f"task-{number}", params={"keep": number / 10}) for number in range(6)]
Program = Callable[..., "subprocess.Popen[str]"]


def taken(tasks: Tasks, number: int = 0) -> Claim:
    claim = tasks.take([ALL[number]])
    assert claim is not None
    return claim


def fail(tasks: Tasks, error: BaseException) -> None:
    with pytest.raises(type(error)), taken(tasks):
        raise error


def as_if_from(study: Path, name: str = "0000.1.lease", **changes: Any) -> Path:
    """The lease, as another process would have written it."""
    path = study / "tasks" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_task_is_taken_once_and_its_record_says_what_became_of_it(study: Path) -> None:
    mine, theirs = Tasks(study), Tasks(study)
    with taken(mine) as claim:
        assert theirs.take(ALL[:1]) is None
        assert theirs.standing(0, theirs.attempts()[0]) == "running"
        claim.show(epoch=3)
        assert theirs.running()[0]["progress"] == {"epoch": 3}
        claim.finish("complete", value=0.5, zeros=7)
    assert theirs.take(ALL[:1]) is None
    record = theirs.records()[0]
    assert (record["state"], record["value"], record["zeros"], record["params"]) == (
        "complete",
        0.5,
        7,
        {"keep": 0.0},
    )
    assert record["run"] == "runs/task-0"


def test_a_task_that_fails_is_named_and_tried_once_more(study: Path) -> None:
    tasks = Tasks(study)
    for attempt in range(FAILURES):
        assert not tasks.records()
        assert taken(tasks).attempt == attempt + 1
        (study / "tasks" / f"0000.{attempt + 1}.lease").unlink()  # that look only
        fail(tasks, ValueError("it cannot\nbe done"))
    assert tasks.take(ALL[:1]) is None
    row = tasks.told(2)[0]
    assert (row["name"], row["state"], row["error"], row["attempts"]) == ("task-0", "failed", "it cannot", FAILURES)
    assert tasks.told(2)[1]["state"] == "open"
    assert taken(tasks, 1).attempt == 1  # the study goes on


def full_disk() -> FeedlineError:
    error = FeedlineError("metrics.jsonl cannot be written")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), full_disk(), BusyError("it is still at it")])
def test_what_is_not_the_tasks_fault_gives_it_back(study: Path, error: BaseException) -> None:
    tasks = Tasks(study)
    fail(tasks, error)
    assert not tasks.attempts()
    assert taken(tasks).attempt == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from feedline.train.study.tasks import Task, Tasks
with Tasks(Path(sys.argv[1])).take([Task(number=0, name="task-0")]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_task_of_a_killed_process_is_done_again_at_once(study: Path, program: Program) -> None:
    assert program(KILLED, study).wait() == -9
    tasks = Tasks(study)
    with taken(tasks) as claim:
        assert claim.attempt == 2
        claim.finish("complete")
    lost = json.loads((study / "tasks" / "0000.1.json").read_text())
    assert lost["state"] == "lost" and "ended" in lost["error"]
    assert tasks.told(1)[0]["attempts"] == 2


def test_a_lease_of_another_host_counts_while_it_is_renewed(study: Path) -> None:
    mine, other = Tasks(study), Tasks(study, renew_s=0.01)
    other.me |= {"host": "elsewhere", "place": "elsewhere"}
    with taken(other) as claim:
        lease = as_if_from(study)
        os.utime(lease, (0, 0))
        while lease.stat().st_mtime == 0:
            pass
        assert mine.take(ALL[:1]) is None
        claim.finish("complete")


def test_an_owner_that_was_only_slow_has_lost_its_lease(study: Path) -> None:
    mine, slow = Tasks(study), Tasks(study)
    slow.me |= {"host": "elsewhere", "place": "elsewhere"}
    claim = taken(slow)
    os.utime(study / "tasks" / "0000.1.lease", (0, 0))
    second = taken(mine)
    for late in (claim.check, claim.show, lambda: claim.finish("complete", value=1.0)):
        with pytest.raises(LeaseLost):
            late()
    second.finish("complete", value=0.25)
    assert mine.records()[0]["value"] == 0.25


def test_a_requeued_job_takes_its_own_task_up_again(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    taken(Tasks(study))
    as_if_from(study, host="node1", place="node1")
    assert Tasks(study).take(ALL[:1]) is None  # another step of the same job
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert taken(Tasks(study)).attempt == 2


def test_a_full_disk_ends_the_worker_and_not_the_task(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(study)
    with pytest.raises(OSError, match="No space"), taken(tasks) as claim:

        def refuse(*_: object) -> bool:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(module, "make_once", refuse)
        claim.finish("complete")
    assert not tasks.attempts()


MANY = """
import sys
from pathlib import Path
from feedline.train.study.tasks import Task, Tasks
tasks, every = Tasks(Path(sys.argv[1])), [Task(number=number, name=f"task-{number}") for number in range(60)]
while (claim := tasks.take(every)) is not None:
    with claim:
        claim.finish("complete")
        print(claim.task.number)
"""


def test_processes_that_join_do_each_task_once(study: Path, program: Program) -> None:
    joined = [program(MANY, study) for _ in range(3)]
    done = Counter(int(line) for process in joined for line in process.communicate()[0].splitlines())
    assert done == Counter(range(60))
    assert not [path for path in (study / "tasks").iterdir() if path.name.startswith(".")]


def test_a_process_lives_until_it_ends_and_another_of_its_number_is_not_it() -> None:
    assert lives(os.getpid(), started_s()) and not lives(os.getpid(), started_s() - 60)
    child = subprocess.Popen(["sleep", "60"])
    began = started_s(child.pid)
    assert lives(child.pid, began)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert not lives(child.pid, began)
    child.wait()
    assert not lives(child.pid, began)
