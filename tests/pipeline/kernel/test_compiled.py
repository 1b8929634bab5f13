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
PLACES = np.zeros((2, 8, 8, 3), np.uint8)
HUGE = np.lib.stride_tricks.as_strided(np.zeros(3, np.uint8), (1, 8, (1 << 20) + 1, 3), (0, 0, 0, 1))


def fill(places: Any = PLACES, **changes: Any) -> tuple[int, int]:
    usual = {
        "pixels": RGB, "left": 0, "top": 0, "width": 10, "height": 10, "box": (0, 0, 10, 10), "antialias": False,
        "flip": False,
    }  # fmt: skip
    return KERNEL.fill([tuple((usual | changes).values())], True, places)  # type: ignore[list-item]


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
        {"left": 2**31 - 1, "width": 2**31 - 1},
        {"box": (0, 0, 31, 10)},
        {"antialias": True, "box": (0, 0, 10, 10.01)},
        {"antialias": True, "box": (-0.01, 0, 10, 10)},
        {"antialias": True, "box": (3, 0, 3, 10)},
        {"antialias": True, "box": (0, float("nan"), 10, 10)},
        {"pixels": np.zeros((20, 30, 2), np.uint8)},
        {"pixels": np.zeros((20, 30, 1), np.uint8)},
        {"pixels": np.zeros((20, 30, 5), np.uint8)},
        {"pixels": np.zeros((20, 30, 3), np.uint16)},
        {"pixels": np.zeros((20, 30, 6), np.uint8)[..., ::2]},
        {"pixels": np.zeros((20, 60, 3), np.uint8)[:, ::2]},
        {"pixels": np.zeros((1, 20, 30, 3), np.uint8)},
        {"pixels": np.zeros(1800, np.uint8)},
        {"pixels": np.zeros((0, 30, 3), np.uint8)},
        {"pixels": bytearray(b"abc")},
        {"pixels": np.zeros((20, 30), np.uint8)},
        {"pixels": np.zeros((30, 31), np.uint8)},
        {"pixels": np.zeros((30, 60), np.uint8)[:, ::2]},
        {"pixels": I420, "top": 15},
        {"pixels": I420, "places": np.zeros((1, 7, 8, 3), np.uint8)},
        {"pixels": b"a JPEG", "width": 0},
        {"pixels": b"a JPEG", "left": -1},
        {"pixels": b"a JPEG", "width": 2**31 - 1, "height": 2**31 - 1},
        {"places": np.zeros((1, 8, 8, 4), np.uint8)},
        {"places": np.zeros((8, 8, 3), np.uint8)},
        {"places": np.zeros((0, 8, 8, 3), np.uint8)},
        {"places": np.zeros((1, 8, 0, 3), np.uint8)},
        {"places": np.zeros((1, 8, 8, 3), np.float32)},
        {"places": np.zeros((1, 8, 16, 3), np.uint8)[:, :, ::2]},
        {"places": np.zeros((1, 8, 8, 3), np.uint8)[..., ::-1]},
        {"places": HUGE},
    ],
    ids="-".join,
)
def test_a_wrong_argument_is_a_value_error(wrong: dict[str, Any]) -> None:
    assert fill()[0] == 1
    with pytest.raises(ValueError):
        fill(**wrong)


def test_what_cannot_be_written_or_is_of_another_kind_is_refused() -> None:
    places = np.zeros((1, 8, 8, 3), np.uint8)
    places.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        fill(places)
    for wrong in ({"pixels": None}, {"left": "0"}, {"box": 5}):
        with pytest.raises(TypeError):
            fill(**wrong)
    with pytest.raises(OverflowError):
        fill(height=2**31)
    for jobs in (None, (), [None], [()], [(RGB, 0)]):
        with pytest.raises(TypeError):
            KERNEL.fill(jobs, True, PLACES)  # type: ignore[arg-type]


def test_more_jobs_than_places_are_refused_and_none_are_none() -> None:
    job = (RGB, 0, 0, 10, 10, (0, 0, 10, 10), False, False)
    assert KERNEL.fill([], True, PLACES) == (0, 0)
    assert KERNEL.fill([job, job], True, PLACES) == (2, 0)
    with pytest.raises(ValueError, match="more jobs than places"):
        KERNEL.fill([job] * 3, True, PLACES)


def test_jobs_that_come_while_the_list_is_read_are_left_out() -> None:
    """Python runs then: a box may be any iterable, and another thread may append."""
    jobs: list[Any] = []

    class Growing:
        def __iter__(self) -> Any:
            if len(jobs) < 100:
                jobs.append((RGB, 0, 0, 10, 10, Growing(), False, False))
            return iter((0, 0, 10, 10))

    jobs.append((RGB, 0, 0, 10, 10, Growing(), False, False))
    assert KERNEL.fill(jobs, True, np.zeros((200, 8, 8, 3), np.uint8)) == (1, 0) and len(jobs) == 2


def test_places_are_filled_up_to_a_jpeg_that_is_refused() -> None:
    white = np.full((20, 30, 3), 255, np.uint8)
    box = (0, 0, 10, 10)
    good, bad = (white, 0, 0, 10, 10, box, False, False), (b"no JPEG", 0, 0, 10, 10, box, False, False)
    for place in range(4):
        places = np.zeros((4, 8, 8, 3), np.uint8)
        jobs: list[compiled.Job] = [good] * 4
        jobs[place] = bad
        assert KERNEL.fill(jobs, True, places)[0] == place
        assert (places[:place] == 255).all() and not places[place:].any()


def test_a_level_that_is_not_there_is_refused_and_nothing_changes() -> None:
    before = KERNEL.level()
    for wrong in {"avx2", "avx512", "neon", "mmx"} - set(KERNEL.LEVELS):
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


@pytest.mark.parametrize("theirs", ["", f"INTERFACE = {compiled.INTERFACE - 1}"])
def test_a_module_that_other_code_was_compiled_for_is_refused_by_name(theirs: str, tmp_path: Path) -> None:
    code = f"import sys, feedline.pipeline.kernel as k; k.__path__ = [{str(tmp_path)!r}]; " + LEVEL
    (tmp_path / "compiled.py").write_text(Path(compiled.__file__).read_text())
    (tmp_path / "native.py").write_text(f"LEVELS = ['plain']\n{theirs}")
    said = outcome("", code).splitlines()[-1]
    assert f"{tmp_path / 'native.py'} was compiled for other Python code" in said and "bootstrap.py --kernel" in said
    assert outcome("python", code) == "None FEEDLINE_KERNEL=python"
