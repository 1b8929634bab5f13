"""The kernel's face: what it refuses, how it is chosen, and that nothing needs it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.pipeline.kernel import compiled
from tests.pipeline.kernel.levels import kernel

KERNEL = kernel()
RGB, I420 = np.zeros((20, 30, 3), np.uint8), np.zeros((30, 30), np.uint8)


def arguments(**changes: Any) -> list[Any]:
    usual = {
        "pixels": RGB, "left": 0, "top": 0, "width": 10, "height": 10, "box": (0, 0, 10, 10), "filter": "plain",
        "flip": False, "out": np.zeros((8, 8, 3), np.uint8),
    }  # fmt: skip
    return [*(usual | changes).values()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"left": -1},
        {"top": -1},
        {"left": 21},
        {"top": 11},
        {"width": 0},
        {"height": -5},
        {"width": 31},
        {"height": 2**31},
        {"left": 2**31 - 1, "width": 2**31 - 1},
        {"filter": "sinc"},
        {"box": (0, 0, 31, 10)},
        {"filter": "bicubic", "box": (0, 0, 10, 10.01)},
        {"filter": "bicubic", "box": (-0.01, 0, 10, 10)},
        {"filter": "bicubic", "box": (3, 0, 3, 10)},
        {"filter": "bicubic", "box": (0, float("nan"), 10, 10)},
        {"pixels": np.zeros((20, 30, 2), np.uint8)},
        {"pixels": np.zeros((20, 30, 1), np.uint8)},
        {"pixels": np.zeros((20, 30, 5), np.uint8)},
        {"pixels": np.zeros((20, 30, 3), np.uint16)},
        {"pixels": np.zeros((20, 30, 6), np.uint8)[..., ::2]},
        {"pixels": np.zeros((20, 60, 3), np.uint8)[:, ::2]},
        {"pixels": np.zeros(1800, np.uint8)},
        {"pixels": np.zeros((0, 30, 3), np.uint8)},
        {"pixels": b"abc"},
        {"pixels": np.zeros((20, 30), np.uint8)},
        {"pixels": np.zeros((30, 31), np.uint8)},
        {"pixels": np.zeros((30, 60), np.uint8)[:, ::2]},
        {"pixels": I420, "top": 15},
        {"pixels": I420, "out": np.zeros((7, 8, 3), np.uint8)},
        {"out": np.zeros((8, 8, 4), np.uint8)},
        {"out": np.zeros((8, 8), np.uint8)},
        {"out": np.zeros((8, 0, 3), np.uint8)},
        {"out": np.zeros((8, 8, 3), np.float32)},
        {"out": np.zeros((8, 16, 3), np.uint8)[:, ::2]},
        {"out": np.zeros((8, 8, 3), np.uint8)[..., ::-1]},
        {"out": np.lib.stride_tricks.as_strided(np.zeros(3, np.uint8), (8, (1 << 20) + 1, 3), (0, 0, 1))},
    ],
    ids=repr,
)
def test_a_wrong_argument_is_a_value_error(wrong: dict[str, Any]) -> None:
    KERNEL.resize(*arguments())
    with pytest.raises(ValueError):
        KERNEL.resize(*arguments(**wrong))


def test_what_cannot_be_written_is_refused() -> None:
    out_HWC = np.zeros((8, 8, 3), np.uint8)
    out_HWC.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        KERNEL.resize(*arguments(out=out_HWC))
    for wrong in ({"pixels": None}, {"left": "0"}, {"filter": 3}, {"box": 5}):
        with pytest.raises(TypeError):
            KERNEL.resize(*arguments(**wrong))


@pytest.mark.parametrize("shape", [(9, 10, 4), (10, 9, 4), (10, 10, 3), (10, 40)])
def test_a_decoded_region_has_just_its_place(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        KERNEL.decode(b"", 0, 0, 10, 10, True, np.zeros(shape, np.uint8))
    assert not KERNEL.decode(b"", 0, 0, 10, 10, True, np.zeros((10, 10, 4), np.uint8))


def test_a_level_that_is_not_there_is_refused_and_nothing_changes() -> None:
    before = KERNEL.level()
    for wrong in {"avx2", "neon", "mmx"} - set(KERNEL.LEVELS):
        with pytest.raises(ValueError):
            KERNEL.use(wrong)
    assert KERNEL.level() == before and "plain" in KERNEL.LEVELS


def outcome(wanted: str, code: str) -> str:
    environment = os.environ | {compiled.VARIABLE: wanted}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    return (done.stdout + done.stderr).strip()


LEVEL = "from feedline.pipeline.kernel import compiled as c; print(c.KERNEL and c.KERNEL.level(), c.TROUBLE)"


def test_the_environment_chooses_python_or_a_level() -> None:
    assert outcome("python", LEVEL) == "None FEEDLINE_KERNEL=python"
    assert outcome("plain", LEVEL) == "plain"
    assert outcome("", LEVEL) == KERNEL.LEVELS[-1]
    assert "FEEDLINE_KERNEL=fast is none of python, plain" in outcome("fast", LEVEL)


def test_without_a_module_that_loads_the_fallback_runs(tmp_path: Path) -> None:
    code = f"import sys, feedline.pipeline.kernel as k; k.__path__ = [{str(tmp_path)!r}]; " + LEVEL
    (tmp_path / "compiled.py").write_text(Path(compiled.__file__).read_text())
    assert outcome("", code) == "None it was not built"
    (tmp_path / "native.py").write_text("raise ImportError('no such symbol')")
    assert outcome("", code) == "None it does not load: no such symbol"
