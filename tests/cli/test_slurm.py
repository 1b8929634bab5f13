"""`feedline slurm`: what it prints is for pasting."""

import shlex
from pathlib import Path

from typer.testing import CliRunner

from feedline.cli.main import app


def test_the_command_that_starts_the_script_names_it_as_one_word(tmp_path: Path) -> None:
    script = tmp_path / "my $(touch x); job.sbatch"
    done = CliRunner().invoke(app, ["slurm", "/data", "--script", str(script)])
    assert done.exit_code == 0, done.output
    assert shlex.split(done.stdout.partition("start it with: ")[2]) == ["sbatch", str(script)]
