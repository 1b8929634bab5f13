"""`feedline slurm`: what it prints is for pasting."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from feedline.cli.main import app


def test_the_command_that_starts_the_script_names_it_as_one_word(tmp_path: Path) -> None:
    script = tmp_path / "my $(touch x); job.sbatch"
    done = CliRunner().invoke(app, ["slurm", "/data", "--script", str(script)])
    assert done.exit_code == 0, done.output
    assert shlex.split(done.stdout.partition("start it with: ")[2]) == ["sbatch", str(script)]


def test_somebody_at_a_terminal_is_asked_for_what_no_option_says(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"2\n4\n\n\n")  # nodes, GPUs; the default partition and time limit
    command = [sys.executable, "-c", "from feedline.cli.main import run; run()", "slurm", "/data", "--script", "x"]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    script = (tmp_path / "x").read_text()
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --gpus-per-node=4\n" in script
    assert "partition" not in script and "#SBATCH --time=04:00:00\n" in script
