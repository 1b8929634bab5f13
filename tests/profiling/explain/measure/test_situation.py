"""The model set to a run."""

from dataclasses import replace

import pytest

from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.record.recording import Leg
from tests.profiling.recordings import made


def test_preparing_whose_cpu_time_nobody_counted_is_what_the_trainer_needs_less_of_with_free_data() -> None:
    """4 ms a sample with its preparing in it, 1 ms on cached batches."""
    seen = made(workers=0, trainer_cpu_s=0.004)
    cached = Leg(name="cached", samples_per_s=[1000.0] * 3, trainer_cpu_s_per_sample=[0.001] * 3)
    seen = replace(seen, legs=[cached], costs=replace(seen.costs, worker_cpu_s=None))
    at = situation(measure(seen))
    assert at is not None
    assert (at.now.trainer_cpu_s, at.now.worker_cpu_s) == pytest.approx((0.001, 0.003))
