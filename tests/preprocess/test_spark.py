"""Prepare on a real Spark: the same bytes on any number of cores and after any death; nothing left behind."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from py4j.protocol import Py4JNetworkError

from feedline.cli import main as feedline_main
from feedline.preprocess import spark
from tests.commands import Commands, all_gone
from tests.preprocess.jobs import Started, command, run, wait_for, words
from tests.preprocess.making import digests

SPARK_HOME = Path(pyspark.__file__).parent

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_the_number_of_cores_changes_no_byte(
    source: Path, calm: dict[str, str], tmp_path: Path, scratch: Path
) -> None:
    done = run(source, tmp_path / "out", "--master", "local[2]", "--json", str(tmp_path / "record.json"))
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == calm
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["input_samples"] == record["output_samples"] + record["quarantined"] == 61
    assert record["peak_rss_bytes"] < 500e6
    assert not list(scratch.iterdir())
    assert len(done.stderr.splitlines()) <= 2  # Spark's own chatter is not shown


@pytest.mark.slow
def test_processes_write_what_spark_writes(odd_ilsvrc: Path, tmp_path: Path) -> None:
    outputs = [word for form in ("48:jpeg", "32:raw:square", "40:planes", "keep") for word in ("--output", form)]
    for engine in ("spark", "processes"):
        done = run(odd_ilsvrc, tmp_path / engine, "--engine", engine, "--max-bad", "0.5", *outputs, usual=[])
        assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "spark") == digests(tmp_path / "processes")
    assert len(list((tmp_path / "spark").glob("*/*/manifest.json"))) == 8


@pytest.mark.slow
def test_killing_the_driver_leaves_no_process_and_a_rerun_finishes(
    source: Path, calm: dict[str, str], tmp_path: Path, scratch: Path
) -> None:
    started = Started(source, tmp_path / "out", "--master", "local[2]")
    started.until_receipts()
    family = started.family()
    started.process.kill()
    started.process.wait()
    assert all_gone(family, 30)
    started.end()
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert run(source, tmp_path / "out", "--master", "local[2]").returncode == 0
    assert digests(tmp_path / "out") == calm
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quarantine", "report.json", "train"]
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_killing_the_jvm_is_one_line_and_processes_finish_the_job(
    source: Path, calm: dict[str, str], tmp_path: Path, scratch: Path
) -> None:
    started = Started(source, tmp_path / "out", "--master", "local[2]")
    started.until_receipts()
    family = started.family()
    started.jvm().kill()
    status, errors = started.end()
    assert status == 1
    assert "JVM died" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert all_gone(family, 30)
    assert run(source, tmp_path / "out", "--engine", "processes").returncode == 0
    assert digests(tmp_path / "out") == calm
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_killing_a_python_worker_is_survived(
    source: Path, calm: dict[str, str], tmp_path: Path, scratch: Path
) -> None:
    started = Started(source, tmp_path / "out", "--master", "local[2]")
    started.until_receipts()
    wait_for(started.python_worker).kill()
    status, errors = started.end()
    assert status == 0, errors
    assert digests(tmp_path / "out") == calm
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_running_and_nothing_final(source: Path, tmp_path: Path, scratch: Path) -> None:
    started = Started(source, tmp_path / "out", "--master", "local[2]")
    started.until_receipts()
    family = started.family()
    worker = wait_for(started.python_worker)
    worker.suspend()  # so that the job is still there when the second has started
    second = run(source, tmp_path / "out", "--master", "local[2]")
    worker.resume()
    assert second.returncode == 2
    assert "another prepare is running" in second.stderr
    started.process.send_signal(signal.SIGINT)
    status, errors = started.end()
    assert status == 130
    assert "Traceback" not in errors
    assert all_gone(family, 30)
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert not list(scratch.iterdir())


def lines_of(processes: Iterable[psutil.Process]) -> list[str]:
    """The command lines of those that still live."""
    found: list[str] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


MOMENTS: dict[str, tuple[signal.Signals, Callable[[Started, Path], Any]]] = {
    "scratch": (signal.SIGTERM, lambda _, scratch: list(scratch.iterdir())),
    "script": (signal.SIGINT, lambda _, scratch: (scratch.parent / "held").exists()),
    "launcher": (signal.SIGTERM, lambda started, _: find_line(started, "spark.launcher.Main")),
    "jvm": (signal.SIGINT, lambda started, _: find_line(started, "deploy.SparkSubmit")),
    "context": (signal.SIGTERM, lambda _, scratch: list(scratch.glob("*/blockmgr-*"))),
    "workers": (signal.SIGINT, lambda started, _: started.python_worker()),
}
"""Of the start of Spark: a signal, and what is true from then on."""


def find_line(started: Started, text: str) -> list[str]:
    return [line for line in lines_of(started.family()) if text in line]


def hold_spark_submit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script, which else runs for milliseconds, says that it is there and stands still till it is ended."""
    os.mkfifo(folder / "never")
    (folder / "hold.sh").write_text(f"[[ $0 == */spark-submit ]] && : > {folder}/held && : < {folder}/never\n")
    monkeypatch.setenv("BASH_ENV", str(folder / "hold.sh"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_while_spark_starts_leaves_nothing(
    source: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    number, has_come = MOMENTS[moment]
    if moment == "script":
        hold_spark_submit(tmp_path, monkeypatch)
    started = Started(source, tmp_path / "out", "--master", "local[2]")
    wait_for(lambda: has_come(started, scratch))
    started.process.send_signal(number)
    status, errors = started.end()
    assert status == 128 + number, errors
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    *before, last = errors.splitlines()
    assert last == f"{word}: the same command resumes" and len(before) <= 2  # of classes and of shards
    assert not [line for line in lines_of(psutil.process_iter()) if str(scratch) in line]
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_spark_submit_runs_the_same_job(
    source: Path, calm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    script = Path(feedline_main.__file__).with_name("submit.py")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", str(script)]
    whole = [*submit, *command(source, tmp_path / "out")[1:]]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == calm


def test_a_full_temporary_folder_is_named() -> None:
    line = spark.one_line(OSError(errno.ENOSPC, "No space left on device"))
    assert tempfile.gettempdir() in line
    assert "TMPDIR" in line


# --- before Spark starts ------------------------------------------------------------------------------


def test_no_java_and_an_old_java_are_one_line(
    feedline: Commands, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = feedline(*words(source, tmp_path / "out", "--engine", "spark"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "no java" in done.stderr
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    done = feedline(*words(source, tmp_path / "out", "--engine", "spark"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "version 11" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_master_that_is_none_is_one_line(source: Path, tmp_path: Path, scratch: Path) -> None:
    done = run(source, tmp_path / "out", "--master", "nonsense")
    assert done.returncode == 1
    assert "master nonsense" in done.stderr.splitlines()[-1]
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local[*]", "local[*,4]"), ("local", "local[1,4]"), ("local[2,7]", "local[2,7]"), ("yarn", "yarn")],
)
def test_local_tasks_are_tried_again(master: str, expected: str) -> None:
    assert spark.with_retries(master) == expected


def test_a_master_among_the_settings_is_the_job_s_in_all(tmp_path: Path) -> None:
    """Bound to 127.0.0.1, a driver would wait for executors elsewhere for good."""
    settings = spark.settings("local[*]", tmp_path, {"spark.master": "spark://host:7077"})
    assert settings["spark.master"] == "spark://host:7077"
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.local.dir"} & settings.keys()
    assert spark.settings("local[*]", tmp_path, {"spark.master": "local[2]"})["spark.master"] == "local[2,4]"


@pytest.mark.parametrize(
    "death", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(), EOFError()]
)
def test_a_jvm_that_dies_under_any_call_is_one_line(death: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by chaos_prepare: killed while Python workers are started, before there is a job."""

    @contextlib.contextmanager
    def dies(*_: Any) -> Generator[Any]:
        raise death
        yield

    monkeypatch.setattr(spark, "spark_context", dies)
    order: Any = None
    with pytest.raises(spark.SparkFailed, match="JVM died"):
        spark.SparkEngine().run(order, [], lambda _: None)


def test_what_pyspark_leaves_when_killed_at_its_start_is_in_our_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "mine")
    before = dict(os.environ)
    with spark.what_a_start_reads(tmp_path, local=True):
        made = tempfile.mkdtemp()
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert Path(made).parent == tmp_path
    assert Path(tempfile.gettempdir()) != tmp_path
    assert dict(os.environ) == before
