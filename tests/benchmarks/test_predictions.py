"""What the benchmark of predictions makes of cached runs."""

import pytest

from feedline.benchmarks import predictions
from feedline.benchmarks.predictions import Free, stall_of
from feedline.benchmarks.subject import Window


def windows(seconds: float, trainer_cpu_s: float) -> list[Window]:
    """Of one sample."""
    return [Window(samples=1, seconds=seconds, batches=1, wait_s=0.0, trainer_cpu_s=trainer_cpu_s, worker_cpu_s=0.0)]


def test_the_stall_is_what_the_model_loses_to_a_second_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "usable_cores", lambda: 2)
    own = windows(1.0, 2.0)
    # Twice as long beside one process: one thread runs or spins all the time, the other half of it.
    free = Free(own=own, channels_last=own, crowded={1: windows(2.0, 3.0), 2: windows(2.0, 2.0)})
    assert stall_of(free) == {1: pytest.approx(1.0), 2: 0.0}


def test_a_model_on_one_core_loses_nothing_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "usable_cores", lambda: 2)
    own = windows(1.0, 1.0)
    assert stall_of(Free(own=own, channels_last=own, crowded={1: windows(1.0, 1.0)})) == {1: 0.0}
