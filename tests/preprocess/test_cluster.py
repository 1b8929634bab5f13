"""Prepare on a real standalone cluster: two workers on two loopback addresses, one of them slow, speculation on."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.preprocess.test_job import all_gone, calm, digests, run, source, wait_for

__all__ = ["calm", "source"]  # fixtures

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.1", "127.0.0.2")

pytestmark = pytest.mark.spark


def free_port(host: str) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


class Cluster:
    """A master and two workers, each worker on its own address, so that speculative copies may run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port("127.0.0.1")
        self.master = f"spark://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._launch("master", "master.Master", "127.0.0.1", "--port", str(self.port))
        wait_for(lambda: "I have been elected leader" in self.log("master"))
        for host in WORKERS:
            work = str(self.folder / f"work-{host}")
            options = ["--cores", "1", "--memory", "1g", "--work-dir", work, self.master]
            self._launch(host, "worker.Worker", host, *options)
        wait_for(lambda: self.log("master").count("Registering worker") == len(WORKERS))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def executor_pythons(self, host: str) -> list[psutil.Process]:
        """The Python processes of the executor on a worker."""
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.processes[host].pid).children(recursive=True)
            return [one for one in family if "python" in one.name()]
        return []

    def stop(self) -> None:
        family = [one for process in self.processes.values() for one in family_of(process.pid)]
        for process in self.processes.values():
            process.kill()
            process.wait()
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()
        wait_for(lambda: all_gone(family), 30)

    def _launch(self, name: str, what: str, host: str, *options: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command += ["--host", host, "--webui-port", "0", *options]
        environment = os.environ | {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.ui.enabled=false -XX:-UsePerfData -Djava.io.tmpdir={self.folder}",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def family_of(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
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
            stopped = self._cluster.executor_pythons(self._host)
            for one in stopped:
                with contextlib.suppress(psutil.Error):
                    one.suspend()
            self._end.wait(0.38)
            for one in stopped:
                with contextlib.suppress(psutil.Error):
                    one.resume()
            self._end.wait(0.02)


def test_a_slow_executor_is_overtaken_and_no_byte_changes(
    source: Path, calm: dict[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.5",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": "2",
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
