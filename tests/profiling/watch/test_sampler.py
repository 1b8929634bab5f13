"""The thread that looks at stacks."""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.sampler import StackSampler, TimeSums


def test_what_looks_saw_may_be_read_once_it_was_stopped(tmp_path: Path) -> None:
    looking, looks = threading.Event(), list[str]()

    def look(_: dict[int, FrameType], __: float, ___: bool | None) -> None:
        looks.append("begun")
        looking.set()
        time.sleep(0.1)
        looks.append("over")

    sampler = StackSampler(look, Journal(tmp_path), rate_hz=100)
    sampler.start()
    assert looking.wait(5)
    sampler.stop()
    assert looks == ["begun", "over"]
    sampler.gone()
    assert looks == ["begun", "over"]


def test_a_look_may_stop_the_sampler(tmp_path: Path) -> None:
    looks: list[float] = []

    def look(_: dict[int, FrameType], seconds: float, __: bool | None) -> None:
        looks.append(seconds)
        sampler.stop()

    sampler = StackSampler(look, Journal(tmp_path), rate_hz=100)
    sampler.start()
    sampler.join(timeout=5)
    assert len(looks) == 1


def test_cpu_time_of_looks_is_not_the_script_s(tmp_path: Path) -> None:
    def look(_: dict[int, FrameType], __: float, ___: bool | None) -> None:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass

    sums, sampler = TimeSums(), StackSampler(look, Journal(tmp_path), rate_hz=100)
    sampler.start()
    while sampler.looks < 5:
        time.sleep(0.05)
    sampler.gone()
    assert sampler.cpu_s >= 0.1 > 2 * sums.take(sampler.cpu_s)[-1].cpu_s


COLLECTING = """
import gc, pathlib, sys, threading, time
from feedline.profiling.record.journal import Journal
from feedline.profiling.watch import sampler

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)  # gives up the interpreter lock

def deep(depth):
    if depth:
        return deep(depth - 1) + 1
    number = 0
    while number < 300:
        number += 1
    return 0

def look(frames, seconds, held):
    frame = frames[main]
    while frame is not None:
        frame = frame.f_back

main = threading.get_ident()
sampler.BUDGET = 1.0
one = sampler.StackSampler(look, Journal(pathlib.Path(sys.argv[1])), rate_hz=2000)
one.start()
gc.set_threshold(5, 1000, 1000)
end = time.monotonic() + 5
while time.monotonic() < end:
    gc.disable()
    Cycle()
    gc.enable()
    for _ in range(100):
        deep(20)
one.stop()
one.gone()
print(one.looks, gc.get_threshold())
"""


@pytest.mark.slow
def test_no_finalizer_runs_amid_a_look(tmp_path: Path) -> None:
    """Under Python 3.11 this ended by SIGSEGV, or in an endless walk."""
    done = subprocess.run([sys.executable, "-c", COLLECTING, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    looks, thresholds = done.stdout.split(maxsplit=1)
    assert int(looks) > 100
    assert thresholds.strip() == "(5, 1000, 1000)"


def test_a_process_that_is_forked_amid_a_look_collects(tmp_path: Path) -> None:
    looking, forked = threading.Event(), threading.Event()

    def look(_: dict[int, FrameType], __: float, ___: bool | None) -> None:
        looking.set()
        forked.wait(5)

    usual = gc.get_threshold()
    sampler = StackSampler(look, Journal(tmp_path), rate_hz=100)
    sampler.start()
    assert looking.wait(5)
    assert gc.get_threshold() != usual
    child = os.fork()
    if not child:
        os._exit(gc.get_threshold() != usual)
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
    sampler.gone()
    assert gc.get_threshold() == usual
