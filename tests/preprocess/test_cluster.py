"""Prepare on a real standalone cluster: two workers on two loopback addresses, one of them slow, speculation on."""

import contextlib
import json
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from feedline.preprocess.spark import LIGHT_JVM
from tests.lab.spark_cluster import SPECULATION, WORKERS, Cluster
from tests.preprocess.jobs import run
from tests.preprocess.making import digests

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Cluster]:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", LIGHT_JVM)  # the driver's; the others' are the cluster's own affair
    try:
        with socket.socket() as probe:
            probe.bind((WORKERS[1], 0))
    except OSError:
        pytest.skip(f"this system has no second loopback address {WORKERS[1]}")
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def executor_pythons(cluster: Cluster, host: str) -> list[psutil.Process]:
    return [one for one in cluster.family(host) if name_of(one).startswith("python")]


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


class Slowed:
    """Lets the Python processes of one executor run a twentieth of the time."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Slowed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            stopped = executor_pythons(self._cluster, self._host)
            for one in stopped:
                with contextlib.suppress(psutil.Error):
                    one.suspend()
            self._end.wait(0.38)
            for one in stopped:
                with contextlib.suppress(psutil.Error):
                    one.resume()
            self._end.wait(0.02)


@pytest.mark.slow
def test_a_slow_executor_is_overtaken_and_no_byte_changes(
    source: Path, calm: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = SPECULATION | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{events}",
    }
    options = [text for key, value in conf.items() for text in ("--conf", f"{key}={value}")]
    with Slowed(cluster, WORKERS[1]):
        done = run(source, tmp_path / "out", "--master", cluster.master, *options)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "out") == calm
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quarantine", "report.json", "train"]
    tasks = started_tasks(next(events.iterdir()))
    assert {task["Host"] for task in tasks} == set(WORKERS)
    assert any(task["Speculative"] for task in tasks)


def started_tasks(log: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [record["Task Info"] for record in records if record["Event"] == "SparkListenerTaskStart"]
