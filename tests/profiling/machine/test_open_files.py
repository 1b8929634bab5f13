"""Files that other processes read, seen from outside, and what of them the sampler tells."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.machine.open_files import OpenFiles, is_data
from feedline.profiling.machine.resources import ResourceSampler

HOLDS = """
import sys, time
held = [open(sys.argv[1], "rb"), open(sys.argv[2], "ab")]
"""
CHANGES = """
import sys
for name in sys.argv[3:]:
    with open(name, "rb"):
        print(name, flush=True)
        sys.stdin.readline()
"""


@contextmanager
def running(text: str, *arguments: Path) -> Iterator["subprocess.Popen[str]"]:
    """A script, once it has said something."""
    command = [sys.executable, "-c", f"{text}\nprint(flush=True)\nsys.stdin.readline()", *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def written(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(b"x" * 5000)
    return [folder / name for name in names]


def test_a_file_that_is_read_is_seen_and_one_that_is_written_is_not(tmp_path: Path) -> None:
    data, log = written(tmp_path, "data.bin", "events")
    files = OpenFiles()
    with running(HOLDS, data, log) as child:
        for _ in range(20):
            files.look([child.pid])
    assert files.told == {"paths": [str(data)], "changing": 0.0, "all": True}
    files.look([child.pid])  # which has ended
    assert files.told["paths"] == [str(data)]


def test_a_file_a_sample_changes_from_look_to_look(tmp_path: Path) -> None:
    names = written(tmp_path, *(f"{number}.jpg" for number in range(5)))
    files = OpenFiles()
    with running(CHANGES, tmp_path, tmp_path, *names) as child:
        assert child.stdin is not None and child.stdout is not None
        for _ in names:
            files.look([child.pid])
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()
    assert files.told == {"paths": [*map(str, names)], "changing": 1.0, "all": False}


@pytest.mark.parametrize("path", ["/data/x.jpg", "/home/me/lib/x.npy", "/usr/scratch/x.npy", "/library/1.jpg"])
def test_data(path: str) -> None:
    assert is_data(path)


@pytest.mark.parametrize(
    "path", ["pipe:[12]", "/dev/null", "/proc/1/stat", "/usr/lib/x", "/home/e/site-packages/a.dat", "/d/x (deleted)",
             "/work/train.py"]
)  # fmt: skip
def test_no_data(path: str) -> None:
    assert not is_data(path)


def test_the_sampler_tells_the_files_of_processes_that_have_a_name(tmp_path: Path) -> None:
    data, log = written(tmp_path, "data.bin", "events")
    told: list[dict[str, Any]] = []
    with running(HOLDS, data, log) as child, log.open("rb"):  # this very process has no name
        names = {child.pid: "worker:0"}
        sampler = ResourceSampler(os.getpid(), period_s=0.1, scopes=lambda _: names, tell_files=told.append)
        sampler.start()
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            time.sleep(0.05)
        sampler.stop()
    assert told[-1]["paths"] == [str(data)]


def test_each_reading_asks_for_names_until_there_is_one(tmp_path: Path) -> None:
    """A loop of a second would be over before the processes are looked for again."""
    data, log = written(tmp_path, "data.bin", "events")
    asked_at: list[int] = []
    told: list[dict[str, Any]] = []
    with running(HOLDS, data, log) as child:

        def scopes(_: object) -> dict[int, str]:
            asked_at.append(sampler.looks)
            return {child.pid: "trainer"} if len(asked_at) > 3 else {}

        sampler = ResourceSampler(os.getpid(), period_s=0.05, scopes=scopes, tell_files=told.append)
        sampler.start()
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            time.sleep(0.05)
        sampler.stop()
    assert asked_at[:4] == [0, 1, 2, 3]
    assert told[-1]["paths"] == [str(data)]
