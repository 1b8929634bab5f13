"""The lab's C programs build, and every level gives one answer; the lab itself builds them in other ways, too."""

import re
import shutil
from pathlib import Path

import pytest

from tests.lab.kernel_builds import LAB, built, outcome, pictures

DRIVERS = sorted(LAB.glob("*_cases.c"))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("driver", DRIVERS, ids=[driver.stem for driver in DRIVERS])
def test_every_level_has_one_hash(driver: Path, tmp_path: Path) -> None:
    program = tmp_path / driver.stem
    assert built(driver, ("gcc", "-O1"), program) == ""
    told = outcome(str(program), "300", "7", str(pictures(tmp_path)))
    assert len({line.split()[-1] for line in told.splitlines()}) == 1
    assert re.fullmatch("[0-9a-f]{16}", told.split()[-1]), told
    decoded = re.search(r"decoded (\d+) of 300", told)
    assert decoded is None or int(decoded[1]) > 30, "most damage is not in the region, or does not show"
