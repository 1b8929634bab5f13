"""What a killed job left is cleared by the next one, and by nobody before."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from feedline.pipeline.base.scratch import PREFIX, clear_abandoned, scratch_folder

SLEEPS = "import sys, time; print(flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_in_use_stays_and_an_abandoned_one_goes(tmp_path: Path) -> None:
    abandoned = tmp_path / f"{PREFIX}spark-gone"
    abandoned.mkdir()
    with scratch_folder("spark") as folder:
        clear_abandoned()
        assert folder.exists() and not abandoned.exists()
    assert not folder.exists()


def test_a_jvm_that_never_came_up_goes_with_its_driver_s_folder(tmp_path: Path) -> None:
    """Chaos found: a driver killed while its JVM starts leaves the JVM for good."""
    abandoned, other = tmp_path / f"{PREFIX}spark-gone", tmp_path / f"{PREFIX}spark-another"
    abandoned.mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEPS, what, f"-Dlog={folder}/log4j2"], stdout=subprocess.PIPE)
        for what, folder in (("org.apache.spark.deploy.SparkSubmit", abandoned), ("an editor", abandoned),
                             ("org.apache.spark.deploy.SparkSubmit", other))
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    try:
        clear_abandoned()
        assert started[0].wait(10) < 0 and started[1].poll() is None and started[2].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
