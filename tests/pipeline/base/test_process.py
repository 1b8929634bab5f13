"""Freed memory stays: seen as page faults of a process of its own, so that no other test's allocator is changed."""

import os
import subprocess
import sys

import pytest

from feedline.pipeline.base.process import CpuClocks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")

STEPS = """
import resource, sys
import numpy as np
from feedline.pipeline.base.process import keep_freed_memory
told = sys.argv[1] == "keep" and keep_freed_memory()

def step():
    activations = [np.ones(900_000, np.float32) for _ in range(40)]  # held together, then freed together

for _ in range(3): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): step()
print(int(told), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> tuple[bool, int]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], env=env | environment, capture_output=True, text=True, check=True
    )
    told, count = done.stdout.split()
    return told == "1", int(count)


def test_a_step_takes_no_page_faults_once_its_memory_is_kept() -> None:
    left_alone, kept = faults("leave"), faults("keep")
    assert kept[0]
    assert left_alone[1] > 1000
    assert kept[1] < 0.1 * left_alone[1]


def test_what_the_user_has_chosen_is_left_alone() -> None:
    assert not faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[0]


def test_others_have_what_is_left_of_the_busy_cores() -> None:
    before = CpuClocks(own_s=1.0, children_s=2.0, busy_s=100.0, clock_s=50.0)
    spent = CpuClocks(own_s=4.0, children_s=4.0, busy_s=113.0, clock_s=54.0).since(before)
    assert spent == (3.0, 2.0, 13.0, 4.0) and spent.others_cores == 2.0
    assert spent._replace(busy_s=4.9).others_cores == 0.0  # ticks of other clocks
    assert min(CpuClocks.now()) >= 0.0
