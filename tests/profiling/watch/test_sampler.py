"""The thread that looks at stacks."""

import threading
import time
from pathlib import Path
from types import FrameType

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.sampler import StackSampler


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
