"""A user's function reaches a fresh interpreter whatever module it was defined in."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.workers import ship

SHADE = 4


def of_this_module(value: int) -> int:
    return value + SHADE


class Callme:
    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, value: int) -> int:
        return of_this_module(value) + self.step


def elsewhere(function: Callable[..., Any], value: int) -> int:
    """What the function gives in an interpreter that, like a worker, has this one's import path and nothing else."""
    script = (
        "import sys; from feedline.pipeline.workers.ship import unpack; print(unpack(sys.argv[1])(int(sys.argv[2])))"
    )
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, ship.pack(function), str(value)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_lambdas_closures_and_objects_of_modules_nobody_can_import(tmp_path: Path) -> None:
    offset = 30
    assert elsewhere(lambda value: value + offset, 1) == 31
    assert elsewhere(of_this_module, 1) == 5
    assert elsewhere(Callme(100), 1) == 105
    assert elsewhere(abs, -3) == 3
    path = tmp_path / "from_a_file.py"
    path.write_text("FACTOR = 3\ndef triple(value):\n    return value * FACTOR\n")
    spec = importlib.util.spec_from_file_location("from_a_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_a_file"] = module
    try:
        spec.loader.exec_module(module)
        assert elsewhere(module.triple, 5) == 15
    finally:
        del sys.modules["from_a_file"]


def test_what_cannot_travel_is_said() -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(UsageError, match="at its first call"):
        ship.pack(lambda value: (lock, value))


def test_who_wants_random_numbers_says_so_by_name() -> None:
    assert ship.takes_rng(lambda image, rng: image)
    assert not ship.takes_rng(lambda image: image)
    assert not ship.takes_rng(max)
