"""A study whose tasks do not train, and programs that work on it as processes of their own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feedline.train.study.tasks import Task

ALL = [Task(number=number, name=f"task-{number}") for number in range(6)]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study").mkdir()
    return tmp_path / "study"


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts Python with this text and these arguments; what it prints is to be read."""

    def start(text: str, *words: object) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", text, *map(str, words)], stdout=subprocess.PIPE, text=True)

    return start
