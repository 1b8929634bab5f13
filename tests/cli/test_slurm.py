"""`feedline slurm`: what it prints is for pasting."""

import shlex
from pathlib import Path

from typer.testing import CliRunner

from feedline.cli.main import app
from feedline.pipeline.base.errors import UsageError


def test_the_command_that_starts_the_script_names_it_as_one_word(tmp_path: Path) -> None:
    script = tmp_path / "my $(touch x); job.sbatch"
    done = CliRunner().invoke(app, ["slurm", "/data", "--script", str(script)])
    assert done.exit_code == 0, done.output
    assert shlex.split(done.stdout.partition("start it with: ")[2]) == ["sbatch", str(script)]


def test_an_array_of_a_sweep_takes_the_options_of_the_sweep(tmp_path: Path) -> None:
    script = tmp_path / "array.sbatch"
    words = ["slurm", "/data", "--script", str(script), "--array", "sweep", "--tasks", "7"]
    study = ["--space", "space.toml", "--study", "/shared/sweep", "--model", "small_cnn", "--reduction", "4"]
    done = CliRunner().invoke(app, [*words, *study])
    assert done.exit_code == 0, done.output
    assert "#SBATCH --array=0-6\n" in script.read_text() and "--trials 7\n" in script.read_text()
    for more, said in ((study[:2], "and --study"), ([*study, "--rewind-to", "3"], "`feedline sweep`, to which")):
        refused = CliRunner().invoke(app, [*words, *more])
        assert isinstance(refused.exception, UsageError) and said in str(refused.exception)


def test_trials_are_not_counted_twice(tmp_path: Path) -> None:
    words = ["slurm", "/data", "--script", str(tmp_path / "x"), "--array", "sweep", "--space", "s", "--study", "d"]
    refused = CliRunner().invoke(app, [*words, "--trials", "50"])
    assert isinstance(refused.exception, UsageError) and "--tasks says how many" in str(refused.exception)
    assert not (tmp_path / "x").exists()


def test_options_of_the_training_stand_behind_the_dataset(tmp_path: Path) -> None:
    script = tmp_path / "x"
    for word in ("--model", "--epochs=9"):
        refused = CliRunner().invoke(app, ["slurm", "--script", str(script), word, "resnet50", "/data"])
        assert isinstance(refused.exception, UsageError) and f"{word} stands before OUT" in str(refused.exception)
    assert not script.exists()


def test_the_settings_of_tune_go_to_the_training(tmp_path: Path) -> None:
    script = tmp_path / "x"
    done = CliRunner().invoke(app, ["slurm", "/data", "--script", str(script), "--config", "tuned.json"])
    assert done.exit_code == 0, done.output
    assert "--config tuned.json" in script.read_text()
    study = ["--array", "prune", "--config", "tuned.json"]
    refused = CliRunner().invoke(app, ["slurm", "/data", "--script", str(tmp_path / "y"), *study])
    assert "`feedline prune`, to which" in str(refused.exception)
