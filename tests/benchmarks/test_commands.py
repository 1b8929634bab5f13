"""Verbs that run other verbs: what becomes of these when the first is told to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from feedline.benchmarks.commands import FEEDLINE


@pytest.mark.slow
def test_what_is_terminated_takes_the_verb_it_runs_with_it(tmp_path: Path) -> None:
    """To this process alone, as `kill` sends it: the prepare below would go on, with a JVM."""
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / "in" / name / f"{number}.png")
    temporary = tmp_path / "t"
    temporary.mkdir()
    words = ["compare", str(tmp_path / "in"), "--codec", "jpeg,raw", "--size", "16", "--work", str(tmp_path / "work")]
    process = subprocess.Popen(
        [*FEEDLINE, *words],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watched = psutil.Process(process.pid)
    while not (children := watched.children(recursive=True)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(1.0)  # into the start of the verb or of its Spark
    children = watched.children(recursive=True) or children
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert errors.splitlines()[-1] == "terminated: the same command resumes", sys.platform
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert gone
    assert not alive
    assert not list(temporary.glob("feedline-*"))
