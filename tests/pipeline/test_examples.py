"""The examples run as printed, stop in the middle of an epoch and go on there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def where(said: str) -> tuple[int, int, int]:
    """(epoch, samples into it, steps) of the last line that says so."""
    epoch, samples, steps = re.findall(r"epoch (\d+), (\d+) samples into it, (\d+) steps", said)[-1]
    return int(epoch), int(samples), int(steps)


@pytest.mark.slow
def test_the_plain_loop_stops_and_goes_on(split: Path, tmp_path: Path) -> None:
    command = [EXAMPLES / "plain_torch.py", split, "--batch-size", "8", "--image-size", "32", "--num-workers", "1",
               "--checkpoint", tmp_path / "run.pt"]  # fmt: skip
    assert where(run(*command, "--stop-after", "3")) == (0, 24, 3)
    assert where(run(*command)) == (2, 0, 8 + 5)


@pytest.mark.slow
def test_the_plain_loop_goes_on_behind_an_epoch_s_last_batch(split: Path, tmp_path: Path) -> None:
    command = [EXAMPLES / "plain_torch.py", split, "--batch-size", "8", "--image-size", "32", "--num-workers", "0",
               "--checkpoint", tmp_path / "run.pt"]  # fmt: skip
    assert where(run(*command, "--stop-after", "8")) == (0, 60, 8)
    assert where(run(*command)) == (2, 0, 8)


@pytest.mark.slow
def test_lightning_saves_and_restores_the_loaders_place(split: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    command = [EXAMPLES / "with_lightning.py", split, "--batch-size", "8", "--image-size", "32", "--num-workers", "1"]
    assert where(run(*command, "--steps", "3", "--save", tmp_path, "--save-every", "3")) == (0, 24, 3)
    epoch, samples, steps = where(run(*command, "--resume", tmp_path / "step=3.ckpt"))
    assert steps == 3 + 5 + 8, "the rest of the first epoch, and the second"
    assert (epoch, samples) in ((1, 60), (2, 0))
