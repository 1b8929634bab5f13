"""`python -m feedline.train.main` is `feedline train`: the same record, page, words and statuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Commands

from .conftest import PX

DOORS = {"verb": ["-c", "from feedline.cli.main import run; run()", "train"], "module": ["-m", "feedline.train.main"]}
MODULE = "import runpy; runpy.run_module('feedline.train.main', run_name='__main__')"


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_both_doors_write_the_record_and_the_curves(dataset: Path, tmp_path: Path, door: str) -> None:
    options = f"--model small_cnn --image-size {PX} --batch-size 16 --epochs 1 --num-workers 0 --no-tensorboard"
    command = [sys.executable, *DOORS[door], str(dataset), *options.split(), "--run", "run", "--json", "train.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "curves                run/curves.html" in done.stdout and (tmp_path / "run" / "curves.html").exists()
    record = json.loads((tmp_path / "train.json").read_text())
    assert record["verb"] == record["argv"][0] == "train" and record["epochs"][0]["samples"] == 96


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "words", [("OUT", "--modle", "x"), ("OUT", "--epochs", "0"), ("OUT", "--model", "no_such_net"), ("no/where",)]
)
def test_wrong_use_is_one_line_and_leaves_nothing(
    feedline: Commands, dataset: Path, tmp_path: Path, door: str, words: tuple[str, ...]
) -> None:
    words = tuple(str(dataset) if word == "OUT" else word for word in words)
    done = feedline("train", *words, cwd=tmp_path) if door == "verb" else feedline(*words, cwd=tmp_path, first=MODULE)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("feedline")
    assert list(tmp_path.iterdir()) == []
