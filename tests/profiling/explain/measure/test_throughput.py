"""The model: bounded by every limit, monotonic in every cost, and right where the answer is known."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.explain.measure.throughput import SHARED_S, TENSOR_S, Throughput, soft_minimum
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
    others=st.floats(0, 1),
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


@given(models, st.floats(0.05, 0.97))
def test_the_data_is_scaled_to_a_rate_below_the_models(model: Throughput, share: float) -> None:
    if model.workers:
        top = model.limits()["compute"]
        scale = model.data_factor(share * top)
        assert model.rate(scale) == pytest.approx(share * top)
        assert model.rate(model.data_factor(top)) >= 0.95 * top


def test_known_answers() -> None:
    model = Throughput(workers=2, step_s=0.0001, worker_s=0.01, worker_cpu_s=0.01, trainer_cpu_s=0.0, cores=64)
    assert model.rate() == pytest.approx(200, rel=1e-3)
    assert replace(model, workers=0).rate() == pytest.approx(1 / 0.0101, rel=1e-3)
    assert replace(model, workers=64, cores=4).rate() == pytest.approx(400, rel=1e-3)
    assert replace(model, step_s=0.1).rate() == pytest.approx(10, rel=1e-3)
    assert replace(model, storage_samples_per_s=20).rate() == pytest.approx(20, rel=1e-3)
    beside = replace(model, workers=0, cores=2, others=1.0)  # a process each on two cores, then three to one
    assert beside.limits()["cores"] == pytest.approx(100)
    assert replace(beside, workers=2).limits()["cores"] == pytest.approx(150)
    threads = replace(beside, cores=16, others=6.0)  # of one process, on all that the others leave
    assert threads.limits()["cores"] == pytest.approx(1000)
    assert replace(model, contention={2: 0.5}).rate() == pytest.approx(100, rel=1e-3)
    assert Throughput(workers=1, step_s=0, worker_s=0).rate() == math.inf
    with pytest.raises(ValueError, match="negative"):
        Throughput(workers=-1, step_s=0, worker_s=0)


def test_the_model_knows_what_it_was_set_to() -> None:
    """A run made by the model's own arithmetic: two workers at 3.5 ms a sample, a step of 0.5 ms a sample."""
    stages = {"read": 0.0005, "decode": 0.002, "transform": 0.001}
    seen = made(workers=2, stages=stages, batch=32, wait_s=32 * 0.0035 / 2 - 0.016, compute_s=0.016, cores=8)
    at = situation(measure(seen))
    assert at is not None
    assert at.now.worker_s == pytest.approx(0.0035)
    assert at.now.rate() == pytest.approx(571.4, rel=0.01)


def test_a_model_that_fills_the_cores_waits_for_each_worker() -> None:
    """One worker on two cores takes a second of the model's for each of its own, but no more than the model has."""
    model = Throughput(workers=1, step_s=0.0004, worker_s=0.001, worker_cpu_s=0.001, trainer_cpu_s=0.0008, cores=2)
    assert model.limits()["cores"] == pytest.approx(2 / 0.0018)
    stalled = replace(model, stall={1: 1.0, 2: 0.5})
    assert stalled.limits()["cores"] == pytest.approx(2 / 0.0026), "it spins no longer than it computes"
    assert replace(stalled, worker_s=0.0005, worker_cpu_s=0.0005).limits()["cores"] == pytest.approx(2 / 0.0018)
    assert replace(stalled, workers=2).limits()["cores"] == pytest.approx(2 / 0.0023)
    assert replace(stalled, workers=0).limits()["cores"] == model.limits()["cores"]


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 40), st.integers(1, 40))
def test_workers_that_live_on_begin_an_epoch_with_its_first_batch(n: int, workers: int, made: int, step: int) -> None:
    """Batches are dealt to workers in turn, each makes two ahead, the loop takes them in order: by the clock."""
    ready, taken, at = [0] * n, [0] * n, 0
    for i in range(n):
        free = ready[i - workers] if i >= workers else 0
        room = taken[i - 2 * workers] if i >= 2 * workers else 0
        ready[i] = max(free, room) + made
        taken[i] = max(at, ready[i])
        at = taken[i] + step
    batch = 4
    model = Throughput(
        workers=workers, step_s=step / batch, worker_s=made / batch, cores=64, epoch_samples=float(n * batch)
    )
    told = n * max(step, made / workers) + model.first_batch_s(batch)
    assert told - 1e-6 <= at <= told + made + 1e-6


def test_a_batch_from_a_worker_has_fresh_pages() -> None:
    """44 ms a step where 36 of cached batches, of 64 pictures of 224 px from 16 workers: 38.5 MB (H200,
    results/gpu-ladder.json)."""
    own = Throughput(workers=16, step_s=36.4e-3 / 64, worker_s=4.69e-3, cores=16, epoch_samples=1800)
    sent = own.sent(2, 64 * 3 * 224 * 224 * 4, 64)
    assert 64 * sent.busy_s == pytest.approx(44e-3, rel=0.03)
    assert sent.over_epochs(sent.rate()) == pytest.approx(1155, rel=0.06)
    assert own.sent(0, 0, 64).busy_s == own.busy_s


def test_where_cores_set_the_pace_an_epochs_first_batch_is_no_time_beside_it() -> None:
    """Model and four workers share four cores: 0.15 s a batch, all making included."""
    model = Throughput(workers=4, step_s=0.1, worker_s=0.2, worker_cpu_s=0.2, trainer_cpu_s=0.4, cores=4,
                       epoch_samples=8)  # fmt: skip
    assert model.binding() == "cores"
    assert model.first_batch_s(1) == pytest.approx(0.1)
    assert replace(model, cores=64).first_batch_s(1) == pytest.approx(0.2)


@pytest.mark.parametrize(("device", "pin"), [("cpu", False), ("cpu", True), ("cuda:0", False), ("cuda:0", True)])
def test_who_takes_batches_from_workers(device: str, pin: bool) -> None:
    """torch's pinning thread, where one has a device to pin for; an epoch's first batch is waited for anyway."""
    seen = made(workers=0, device=device, stages={"decode": 0.0005})
    loader = replace(seen.loaders[0], pin_memory=pin, batch_tensors=2, batch_bytes=40_000_000)
    at = situation(measure(replace(seen, loaders=[loader])))
    assert at is not None
    then, cheaper = at.with_workers(2), at.with_workers(2, left=0.25)
    taken_s = 0.0 if pin and device == "cuda:0" else 2 * TENSOR_S + 40_000_000 * SHARED_S
    assert 32 * (then.handover_s - at.now.handover_s) == pytest.approx(taken_s)
    assert then.trainer_cpu_s > at.now.trainer_cpu_s
    assert (then.epoch_start_s, cheaper.epoch_start_s) == (pytest.approx(32 * 0.0005), pytest.approx(8 * 0.0005))
