"""Prepare in processes of this machine: the same bytes after any death, and nothing left behind.

`test_spark.py` holds that Spark writes the same.
"""

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess import picture
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.engine import EngineRun
from feedline.preprocess.fingerprint import Fingerprint, loaded_code
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.processes import ProcessEngine
from feedline.preprocess.spark import SparkEngine
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome
from tests.commands import Commands, all_gone
from tests.preprocess.jobs import Started, words
from tests.preprocess.making import Here, digests, prepare


@pytest.fixture(scope="module")
def expected(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run in this process writes."""
    out = tmp_path_factory.mktemp("expected") / "out"
    prepare(images, out, shards=8)
    return digests(out)


def workers() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "feedline.preprocess.processes" in child.cmdline():
                found.append(child)
    return found


@dataclass(kw_only=True)
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


@dataclass(kw_only=True)
class Poisoned(ProcessEngine):
    """One shard ends every process that takes it."""

    position: int

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        poisoned = replace(tasks[self.position], troubles={0: Deadly()})  # type: ignore[dict-item]
        tasks = [*tasks[: self.position], poisoned, *tasks[self.position + 1 :]]
        return super().run(order, tasks, on_outcome)


@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_writes_the_same_bytes(
    images: Path, tmp_path: Path, expected: dict[str, str], processes: int
) -> None:
    report = prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine(processes=processes))
    assert digests(tmp_path / "out") == expected
    assert report["parallelism"] == processes
    assert workers() == []


def test_a_process_that_dies_is_replaced_and_its_shards_are_made_again(
    images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    def kill() -> None:
        workers()[0].kill()

    prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=kill))
    assert digests(tmp_path / "out") == expected


@pytest.mark.parametrize("position", [0, 3])
def test_a_shard_over_which_two_processes_die_is_named(
    images: Path, tmp_path: Path, expected: dict[str, str], position: int
) -> None:
    """Also where another shard of the same process was not published yet."""
    with pytest.raises(FeedlineError, match=rf"two processes died over shard {position} of train.*with status 3"):
        prepare(images, tmp_path / "out", shards=8, engine=Poisoned(processes=1, position=position))
    assert workers() == []
    prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine())
    assert digests(tmp_path / "out") == expected


def test_a_process_that_cannot_begin_says_why(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no luck today')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FeedlineError, match=r"before it began.*no luck today|no luck today.*before it began"):
        prepare(images, tmp_path / "out", engine=ProcessEngine(processes=1))


def test_a_process_measures_its_fingerprint_where_its_code_is_not_its_parents(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told a false one, it believes that only while every file of code is the same."""
    false = Fingerprint(encoder="0" * 64, formats={})
    monkeypatch.setattr("feedline.preprocess.prepare.fingerprint", lambda outputs: false)
    prepare(images, tmp_path / "believed", engine=ProcessEngine())
    inode = Path(picture.__file__).stat().st_ino
    older = frozenset(state for state in loaded_code() if state[1] != inode)
    monkeypatch.setattr("feedline.preprocess.processes.loaded_code", lambda: older)
    with pytest.raises(FeedlineError, match="encodes differently"):
        prepare(images, tmp_path / "measured", engine=ProcessEngine())


def test_processes_that_got_no_task_end_with_the_job(images: Path, tmp_path: Path) -> None:
    """They start while the job is planned; here nothing can be planned, and then all is done already."""
    (tmp_path / "in" / "cats").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "in" / "cats" / "a.jpg")
    with pytest.raises(UsageError, match="at most one shard per sample"):
        prepare(tmp_path / "in", tmp_path / "out", shards=8, engine=ProcessEngine())
    assert workers() == []
    prepare(tmp_path / "in", tmp_path / "whole", shards=1, engine=ProcessEngine())
    assert prepare(tmp_path / "in", tmp_path / "whole", shards=1, engine=ProcessEngine())["already_complete"]
    assert workers() == []


def test_trouble_in_a_task_ends_the_job_in_one_line_and_leaves_no_attempt(images: Path, tmp_path: Path) -> None:
    def gone() -> None:
        raise FeedlineError("enough")

    with pytest.raises(FeedlineError, match="enough"):
        prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=gone))
    assert workers() == []
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_stopped_process_does_not_keep_the_job_from_ending(
    images: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    def stop_and_end() -> None:
        os.kill(workers()[0].pid, signal.SIGSTOP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(images, tmp_path / "out", shards=8, engine=Disturbed(processes=2, action=stop_and_end))
    assert workers() == []
    prepare(images, tmp_path / "out", shards=8, engine=ProcessEngine())
    assert digests(tmp_path / "out") == expected


# --- as a command -------------------------------------------------------------------------------------

PROCESSES = ("--engine", "processes")


@pytest.mark.parametrize("stopped", [False, True])
def test_killing_the_driver_leaves_no_process_and_a_rerun_finishes(
    feedline: Commands, source: Path, calm: dict[str, str], tmp_path: Path, scratch: Path, stopped: bool
) -> None:
    """Also where a process had been stopped."""
    started = Started(source, tmp_path / "out", *PROCESSES)
    started.until_receipts()
    family = started.family()
    if stopped:
        max(family, key=lambda one: one.cpu_times().user).suspend()  # a new one may not have asked to die with us yet
    started.process.kill()
    assert all_gone(family, 30)
    started.end()
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert feedline(*words(source, tmp_path / "out", *PROCESSES)).returncode == 0
    assert digests(tmp_path / "out") == calm
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quarantine", "report.json", "train"]
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_running_and_nothing_final(
    source: Path, tmp_path: Path, scratch: Path, number: signal.Signals
) -> None:
    started = Started(source, tmp_path / "out", *PROCESSES)
    started.until_receipts()
    family = started.family()
    started.process.send_signal(number)
    status, errors = started.end()
    assert status == 128 + number
    assert errors.splitlines()[-1].endswith("ed: the same command resumes")
    assert "Traceback" not in errors
    assert all_gone(family)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.endswith((".tmp", "manifest.json"))]
    assert not list(scratch.iterdir())


def test_without_java_it_is_chosen_and_said(
    feedline: Commands, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = feedline(*words(images, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "processes of this machine (--engine processes)" in line]
    assert len(told) == 1
    assert told[0].startswith("no java in JAVA_HOME")


def test_why_spark_cannot_run_is_said_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, told = tmp_path / "java: none", list[str]()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert isinstance(door.chosen_engine(PrepareConfig(source="in", out="out"), told.append), ProcessEngine)
    assert told[0].startswith(f"no java in JAVA_HOME ({home}): preparing in ")


def test_java_is_asked_once(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes a part of a second."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(SparkEngine, "run", lambda _, *job: Here().run(*job))
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), max_bad=0.2, shards=2)
    assert door.prepare(config)["master"] == "none"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_the_start_of_the_processes_is_no_part_of_the_work(feedline: Commands, images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ("--engine", "processes", "--shards", "2", "--max-bad", "0.2", "--json", str(record))
    done = feedline(*words(images, tmp_path / "out", *options, usual=[]))
    assert done.returncode == 0, done.stderr
    said = json.loads(record.read_text())
    assert said["seconds"]["start"] > 0
    assert said["samples_per_s"] == pytest.approx(53 / said["seconds"]["run"], rel=0.05)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--engine", "processes", "--master", "local[2]"), "--master and --conf are for Spark"),
        (("--engine", "processes", "--conf", "a=b"), "--master and --conf are for Spark"),
        (("--engine", "dask"), "engine 'dask' is none of spark, processes"),
    ],
)
def test_what_no_engine_can_mean_is_one_line(
    feedline: Commands, images: Path, tmp_path: Path, options: tuple[str, ...], what: str
) -> None:
    done = feedline(*words(images, tmp_path / "out", *options))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert what in done.stderr
    assert not (tmp_path / "out").exists()
