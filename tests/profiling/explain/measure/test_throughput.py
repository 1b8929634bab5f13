"""The model: bounded by every limit, monotonic in every cost, and right where the answer is known."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.explain.measure.throughput import Throughput, soft_minimum
from feedline.profiling.explain.predict import all_predictions, predict
from feedline.profiling.explain.remedies.remedy import Change, Effort, Helps
from feedline.profiling.record.recording import Trial
from tests.profiling.recordings import made

costs = st.floats(1e-6, 0.1)
models = st.builds(
    Throughput,
    workers=st.integers(0, 16),
    step_s=costs,
    worker_s=costs,
    worker_cpu_s=costs,
    trainer_cpu_s=costs,
    handover_s=st.floats(0, 0.01),
    cores=st.floats(1, 64),
    ranks=st.integers(1, 8),
    storage_samples_per_s=st.one_of(st.none(), st.floats(1, 1e6)),
)


@given(models)
def test_never_above_any_limit(model: Throughput) -> None:
    assert 0 < model.rate() <= min(model.limits().values()) * (1 + 1e-9)
    assert model.binding() in model.limits()


@given(
    models, st.sampled_from(["step_s", "worker_s", "worker_cpu_s", "trainer_cpu_s", "handover_s"]), st.floats(1, 10)
)
def test_a_higher_cost_is_never_faster(model: Throughput, name: str, factor: float) -> None:
    assert replace(model, **{name: getattr(model, name) * factor}).rate() <= model.rate() * (1 + 1e-9)


@given(models, st.integers(1, 16))
def test_more_of_a_resource_is_never_slower(model: Throughput, more: int) -> None:
    if model.workers:
        assert replace(model, workers=model.workers + more).rate() >= model.rate() * (1 - 1e-9)
    assert replace(model, cores=model.cores + more).rate() >= model.rate() * (1 - 1e-9)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6))
def test_the_soft_minimum_is_close_below(values: list[float]) -> None:
    assert 0.85 * min(values) < soft_minimum(values) <= min(values) * (1 + 1e-9)


def test_known_answers() -> None:
    model = Throughput(workers=2, step_s=0.0001, worker_s=0.01, worker_cpu_s=0.01, trainer_cpu_s=0.0, cores=64)
    assert model.rate() == pytest.approx(200, rel=1e-3)
    assert replace(model, workers=0).rate() == pytest.approx(1 / 0.0101, rel=1e-3)
    assert replace(model, workers=64, cores=4).rate() == pytest.approx(400, rel=1e-3)
    assert replace(model, step_s=0.1).rate() == pytest.approx(10, rel=1e-3)
    assert replace(model, storage_samples_per_s=20).rate() == pytest.approx(20, rel=1e-3)
    assert replace(model, contention={2: 0.5}).rate() == pytest.approx(100, rel=1e-3)
    assert Throughput(workers=1, step_s=0, worker_s=0).rate() == math.inf
    with pytest.raises(ValueError, match="negative"):
        Throughput(workers=-1, step_s=0, worker_s=0)


def test_the_model_knows_what_it_was_set_to() -> None:
    """A run made by the model's own arithmetic: two workers at 3.5 ms a sample, a step of 0.5 ms a sample."""
    stages = {"read": 0.0005, "decode": 0.002, "transform": 0.001}
    seen = made(workers=2, stages=stages, batch=32, wait_s=32 * 0.0035 / 2 - 0.016, compute_s=0.016, cores=8)
    at = situation(seen)
    assert at is not None
    assert at.now.worker_s == pytest.approx(0.0035)
    assert at.now.rate() == pytest.approx(571.4, rel=0.01)


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


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2), st.integers(0, 4), st.floats(1.0, 20.0))
def test_predictions_keep_their_promises(wait: float, compute: float, workers: int, above: float) -> None:
    """Intervals hold their rate; no data remedy beats the ceiling; less preparing is never slower."""
    rate = 32 / (wait + compute)
    trials = [
        Trial(codec="jpeg", size_px=size, samples=9, bytes_per_sample=1.0, load_cpu_s_per_sample=cost)
        for size, cost in ((256, 0.0006), (160, 0.0003), (64, 0.00002))
    ]
    seen = made(wait_s=wait, compute_s=compute, workers=workers, ceiling=rate * above, trials=trials, steps=20)
    found = all_predictions(seen)
    assert found
    for one in found:
        assert 0 <= one.low <= one.samples_per_s <= one.high
        if one.remedy.startswith(("num_workers", "prepared", "cache", "faster", "cheaper")):
            assert one.high <= max(rate * above, rate) * 1.001
    by_size = {size: next(p for p in found if f"{size} px" in p.remedy).samples_per_s for size in (256, 160, 64)}
    assert by_size[256] <= by_size[160] * 1.001 <= by_size[64] * 1.002


def test_the_calibration_carries_over() -> None:
    """A run 20 % slower than its model: the prediction is as much slower, where the limit stays the same."""
    stages = {"decode": 0.004}
    seen = made(workers=1, stages=stages, batch=32, wait_s=32 * 0.005 - 0.001, compute_s=0.001, cores=16)
    at = situation(seen)
    assert at is not None
    assert at.factor == pytest.approx(0.8, rel=0.01)
    doubled = predict(at, Change(remedy="x", then=replace(at.now, workers=2), effort=Effort.SETTING, why=Helps("x")))
    assert doubled.samples_per_s == pytest.approx(400, rel=0.02)


def test_a_trial_replaces_the_workers_cost() -> None:
    trial = Trial(codec="raw", size_px=64, samples=99, bytes_per_sample=12_416.0, load_cpu_s_per_sample=0.0001)
    seen = made(
        workers=1, cores=8, stages={"decode": 0.01}, wait_s=0.31, compute_s=0.001, ceiling=9000.0, trials=[trial]
    )
    found = next(p for p in all_predictions(seen) if "64 px raw" in p.remedy)
    assert 0.85 * 9000 < found.samples_per_s <= 9000
    assert found.settings == {"codec": "raw", "size": 64, "loader": "feedline", "num_workers": 1}


def test_a_model_that_fills_the_cores_waits_for_each_worker() -> None:
    """One worker on two cores: what it takes and what the model takes then add up, as if nothing overlapped."""
    model = Throughput(workers=1, step_s=0.0004, worker_s=0.001, worker_cpu_s=0.001, trainer_cpu_s=0.0008, cores=2)
    assert model.limits()["cores"] == pytest.approx(2 / 0.0018)
    stalled = replace(model, stall={1: 1.0, 2: 0.5})
    assert stalled.limits()["cores"] == pytest.approx(1 / 0.0014)
    assert replace(stalled, workers=2).limits()["cores"] == pytest.approx(2 / 0.0023)
    assert replace(stalled, workers=0).limits()["cores"] == model.limits()["cores"]
