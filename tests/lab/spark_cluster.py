"""A real Spark standalone cluster on this machine: a master and two workers, each worker on a loopback address.

Two addresses because Spark never runs a speculative copy on the host of the attempt it doubts.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from feedline.preprocess.spark import LIGHT_JVM

WORKERS = ("127.0.0.1", "127.0.0.2")
START_S = 120
SPECULATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": LIGHT_JVM,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.5",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.cores.max": "2",
}
"""Settings of a driver on such a cluster: one core on each worker, slow tasks copied soon."""


class Cluster:
    """`start`, then `stop`, which leaves no process. All files, logs too, go to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port(WORKERS[0])
        self.master = f"spark://{WORKERS[0]}:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Raises TimeoutError when the workers do not register."""
        self._launch("master", "master.Master", WORKERS[0], "--port", str(self.port))
        wait_until(lambda: "I have been elected leader" in self.log("master"), START_S)
        for host in WORKERS:
            work = str(self.folder / f"work-{host}")
            options = ["--cores", "1", "--memory", "1g", "--work-dir", work, self.master]
            self._launch(host, "worker.Worker", host, *options)
        wait_until(lambda: self.log("master").count("Registering worker") == len(WORKERS), START_S)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def family(self, host: str) -> list[psutil.Process]:
        """What the worker on this address has started: executors' JVMs and their Python processes."""
        return family_of(self._processes[host].pid)

    def stop(self) -> None:
        family = [one for process in self._processes.values() for one in family_of(process.pid)]
        for process in self._processes.values():
            process.kill()
            process.wait()
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()
        wait_until(lambda: not alive(family), START_S)

    def _launch(self, name: str, what: str, host: str, *options: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command += ["--host", host, "--webui-port", "0", *options]
        java = f"-Dspark.ui.enabled=false -XX:-UsePerfData -Djava.io.tmpdir={self.folder} {LIGHT_JVM}"
        environment = os.environ | {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": java,
            "SPARK_LAUNCHER_OPTS": LIGHT_JVM,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def spark_home() -> Path:
    """Without importing pyspark. Raises FileNotFoundError when it is not installed."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise FileNotFoundError("pyspark is not installed: pip install feedline[prepare]")
    return Path(found.origin).parent


def free_port(host: str) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


def family_of(pid: int) -> list[psutil.Process]:
    """All descendants; none when the process is gone."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def alive(family: list[psutil.Process]) -> list[psutil.Process]:
    """Zombies count as gone: whoever adopts them reaps them in its own time."""
    found: list[psutil.Process] = []
    for one in family:
        with contextlib.suppress(psutil.Error):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def wait_until(what: Callable[[], object], seconds: float) -> None:
    """Polls, because files and processes send no signal. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain")
        time.sleep(0.02)
