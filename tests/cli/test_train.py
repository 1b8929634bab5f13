"""`feedline train`: what it says of itself."""

import shlex
from pathlib import Path

import pytest

from feedline.cli.train import opening
from tests.commands import Commands
from tests.train.conftest import PX, write_dataset

INTERRUPTED = """
from feedline.cli.train import Terminal
say = Terminal.__call__
def call(self, event):
    say(self, event)
    if event["event"] == "epoch" and event["epoch"] == 2:
        raise KeyboardInterrupt
Terminal.__call__ = call
"""
TERMINATED = "import os, signal" + INTERRUPTED.replace(
    "raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)"
)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["interrupted", "terminated"])
def test_an_interrupted_one_says_what_goes_on_with_it(feedline: Commands, tmp_path: Path, end: str) -> None:
    """The folder that it made up is in the words, and they are the ones to add."""
    write_dataset(tmp_path / "OUT")
    words = f"train OUT --model small_cnn --image-size {PX} --batch-size 32 --epochs 3 --num-workers 0".split()
    words += ["--no-tensorboard", "--threads", "1"]
    done = feedline(*words, cwd=tmp_path, first=INTERRUPTED if end == "interrupted" else TERMINATED)
    (run,) = (tmp_path / "runs").iterdir()
    more = f"--run-dir runs/{run.name} --resume auto"
    status = 130 if end == "interrupted" else 143
    assert (done.returncode, done.stderr) == (status, f"{end}: {more} goes on from step 3\n")
    done = feedline(*words, *shlex.split(more), cwd=tmp_path)
    assert done.returncode == 0 and "step-0000003.pt at step 3" in done.stdout
    assert list((tmp_path / "runs").iterdir()) == [run]


@pytest.mark.slow
def test_of_another_run_s_checkpoint_there_is_nothing_to_go_on_with_yet(feedline: Commands, tmp_path: Path) -> None:
    write_dataset(tmp_path / "OUT")
    words = f"train OUT --model small_cnn --image-size {PX} --batch-size 32 --epochs 1 --num-workers 0".split()
    feedline(*words, "--no-tensorboard", "--run", "old", cwd=tmp_path)
    (file,) = (tmp_path / "old/checkpoints").glob("step-*.pt")
    first = INTERRUPTED.replace('event["event"] == "epoch" and event["epoch"] == 2', 'event["event"] == "start"')
    done = feedline(*words, "--no-tensorboard", "--run", "new", "--resume", str(file), cwd=tmp_path, first=first)
    assert done.stderr.splitlines()[-1].startswith("interrupted before the first checkpoint")
    done = feedline(*words, "--no-tensorboard", "--run", "old", "--resume", "auto", cwd=tmp_path, first=first)
    assert done.stderr.splitlines()[-1] == "interrupted: --run-dir old --resume auto goes on from step 3"


@pytest.mark.slow
def test_without_checkpoints_there_is_nothing_to_go_on_with(feedline: Commands, tmp_path: Path) -> None:
    write_dataset(tmp_path / "OUT")
    words = f"train OUT --model small_cnn --image-size {PX} --batch-size 32 --epochs 3 --num-workers 0".split()
    done = feedline(*words, "--no-tensorboard", "--keep-last", "0", cwd=tmp_path, first=INTERRUPTED)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.slow
def test_before_its_first_checkpoint_it_says_so(feedline: Commands, tmp_path: Path) -> None:
    write_dataset(tmp_path / "OUT")
    words = f"train OUT --model small_cnn --image-size {PX} --batch-size 32 --epochs 3 --num-workers 0".split()
    first = INTERRUPTED.replace('event["event"] == "epoch" and event["epoch"] == 2', 'event["event"] == "start"')
    done = feedline(*words, "--no-tensorboard", cwd=tmp_path, first=first)
    assert done.stderr == "interrupted before the first checkpoint (--checkpoint-every N writes more)\n"


@pytest.mark.parametrize(
    ("asked", "workers", "words"),
    [(1, 1, "1 loader worker a rank"), (0, 0, "0 loader workers a rank"),
     ("auto", 1, "1 or more loader workers a rank")],
)  # fmt: skip
def test_its_first_line_counts_workers(asked: int | str, workers: int, words: str) -> None:
    event = {"config": {"model": "small_cnn", "num_workers": asked}, "num_workers": workers, "parameters": 9,
             "classes": 2, "device": "cpu", "world_size": 1, "global_batch": 64, "train_samples": 96,
             "val_samples": 32}  # fmt: skip
    assert f"global batch 64, {words}, 96 training" in opening(event)
