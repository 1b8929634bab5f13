"""A real Slurm on this host runs what `feedline slurm` writes. Only as root, where Debian's slurm-wlm and munge are
installed, and when FEEDLINE_SLURM=1 asks for it: it starts three daemons."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedline.train.metrics import read_events
from feedline.train.study.tasks import Tasks

pytestmark = pytest.mark.skipif(
    os.environ.get("FEEDLINE_SLURM") != "1" or os.geteuid() != 0 or not shutil.which("slurmctld"),
    reason="FEEDLINE_SLURM=1, root and the packages slurm-wlm and munge",
)
SLURM = """
ClusterName=feedline
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort=26817
SlurmdPort=26818
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch finds it."""
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
             f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log",
             f"--seed-file={folder}/munge.seed"]  # fmt: skip
    daemons = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
               for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"])
               if time.sleep(1) is None]  # fmt: skip
    yield environment
    for daemon in reversed(daemons):
        daemon.terminate()
        daemon.wait(timeout=30)


def test_sbatch_runs_the_script_on_two_ranks(tmp_path: Path, cluster: dict[str, str], dataset: Path) -> None:
    run = tmp_path / "run"
    subprocess.run(
        [sys.executable, "-c", "from feedline.cli.main import run; run()", "slurm", str(dataset), "--script",
         "job.sbatch", "--run", str(run), "--ranks-per-node", "2", "--workers-per-rank", "1", "--model-cpus", "1",
         "--time", "00:10:00", "--setup", f"export PATH={Path(sys.executable).parent}:$PATH",
         "--model", "small_cnn", "--image-size", "20", "--batch-size", "8", "--epochs", "2"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run(
        ["sbatch", "--wait", "job.sbatch"], cwd=tmp_path, env=cluster, text=True, capture_output=True
    )
    said = "\n".join(path.read_text() for path in tmp_path.glob("feedline-*.out"))
    assert done.returncode == 0, done.stderr + said
    assert len(read_events(run, "epoch")) == 2, said
    assert "2 ranks" in said


def test_an_array_of_jobs_runs_a_study_to_its_end(tmp_path: Path, cluster: dict[str, str], dataset: Path) -> None:
    study = tmp_path / "study"
    (tmp_path / "space.toml").write_text("[lr]\nlow = 1e-3\nhigh = 0.3\nlog = true\n")
    subprocess.run(
        [sys.executable, "-c", "from feedline.cli.main import run; run()", "slurm", str(dataset), "--script",
         "array.sbatch", "--array", "sweep", "--tasks", "4", "--at-once", "2", "--workers-per-rank", "1",
         "--model-cpus", "1", "--time", "00:10:00", "--setup", f"export PATH={Path(sys.executable).parent}:$PATH",
         "--space", str(tmp_path / "space.toml"), "--study", str(study), "--model", "small_cnn",
         "--image-size", "20", "--batch-size", "8", "--epochs", "2", "--no-tensorboard"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run(
        ["sbatch", "--wait", "array.sbatch"], cwd=tmp_path, env=cluster, text=True, capture_output=True
    )
    said = "\n".join(path.read_text() for path in tmp_path.glob("feedline-*.out"))
    assert done.returncode == 0, done.stderr + said
    rows = Tasks(study).told(4)
    assert {row["state"] for row in rows} <= {"complete", "pruned"}, said
    assert [row["attempts"] for row in rows] == [1] * 4
    assert (study / "study.html").exists()
