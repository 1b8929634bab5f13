"""Prepare in processes of this machine: the same bytes after any death, and nothing left behind."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from feedline.pipeline.base.errors import FeedlineError
from feedline.preprocess.engine import EngineRun
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.processes import ProcessEngine
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome
from tests.preprocess.making import digests, prepare


@pytest.fixture(scope="module")
def calm(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run in one process writes."""
    out = tmp_path_factory.mktemp("calm") / "out"
    prepare(images, out, shards=8)
    return digests(out)


def workers() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "feedline.preprocess.processes" in child.cmdline():
                found.append(child)
    return found


@dataclass(frozen=True, kw_only=True)
class Disturbed(ProcessEngine):
    """Something happens after the first outcome."""

    action: Callable[[], Any]

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        heard = 0

        def disturb(outcome: Outcome) -> None:
            nonlocal heard
            on_outcome(outcome)
            heard += 1
            if heard == 1:
                self.action()

        return super().run(order, tasks, disturb)


class Deadly:
    """Whoever unpickles it ends with status 3."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


@dataclass(frozen=True, kw_only=True)
class Poisoned(ProcessEngine):
    """One shard ends every process that takes it."""

    position: int

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        poisoned = replace(tasks[self.position], troubles={0: Deadly()})  # type: ignore[dict-item]
        tasks = [*tasks[: self.position], poisoned, *tasks[self.position + 1 :]]
        return super().run(order, tasks, on_outcome)


@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_writes_the_same_bytes(
    images: Path, tmp_path: Path, calm: dict[str, str], processes: int
) -> None:
    report = prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine(processes=processes))
    assert digests(tmp_path / "out") == calm
    assert report["parallelism"] == processes
    assert workers() == []


def test_a_process_that_dies_is_replaced_and_its_shards_are_made_again(
    images: Path, tmp_path: Path, calm: dict[str, str]
) -> None:
    def kill() -> None:
        workers()[0].kill()

    prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=kill))
    assert digests(tmp_path / "out") == calm


@pytest.mark.parametrize("position", [0, 3])
def test_a_shard_over_which_two_processes_die_is_named(
    images: Path, tmp_path: Path, calm: dict[str, str], position: int
) -> None:
    """Also where another shard of the same process was not published yet."""
    words = f"two processes died over shard {position} of train.*ended with status 3"
    with pytest.raises(FeedlineError, match=words):
        prepare(images, tmp_path / "out", shards=8, engine=Poisoned(processes=1, position=position))
    assert workers() == []
    prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine())
    assert digests(tmp_path / "out") == calm


def test_a_process_that_cannot_begin_says_why(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no luck today')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FeedlineError, match=r"before it began.*no luck today|no luck today.*before it began"):
        prepare(images, tmp_path / "out", engine=ProcessEngine())


def test_trouble_in_a_task_ends_the_job_in_one_line_and_leaves_no_attempt(images: Path, tmp_path: Path) -> None:
    def gone() -> None:
        raise FeedlineError("enough")

    with pytest.raises(FeedlineError, match="enough"):
        prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=gone))
    assert workers() == []
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_stopped_process_does_not_keep_the_job_from_ending(
    images: Path, tmp_path: Path, calm: dict[str, str]
) -> None:
    def stop_and_end() -> None:
        os.kill(workers()[0].pid, signal.SIGSTOP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=stop_and_end))
    assert workers() == []
    prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine())
    assert digests(tmp_path / "out") == calm
