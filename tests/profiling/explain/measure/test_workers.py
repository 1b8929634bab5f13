"""What a worker costs with a core to itself: fights for cores are no cost, sleeping is."""

import pytest

from feedline.profiling.explain.measure.situation import measure
from tests.profiling.recordings import made


def test_fought_over_cores_are_seen_as_slowdown_not_as_cost() -> None:
    """Recorded at half speed on busy cores: alone, a worker would take its CPU time."""
    cpu = {"decode": 0.002, "transform": 0.001}
    seen = made(stages={"decode": 0.004, "transform": 0.002}, stages_cpu=cpu, workers=2, cores=2)
    workers = measure(seen).workers
    assert workers.slowdown == pytest.approx(2.0)
    assert workers.alone_s == pytest.approx(0.003)


def test_a_sleeping_transform_is_cost_not_contention() -> None:
    cpu = {"transform": 0.00001}
    measured = measure(made(stages={"transform": 0.003}, stages_cpu=cpu, workers=1, cores=2))
    assert measured.workers.alone_s == pytest.approx(0.003, rel=0.02)
