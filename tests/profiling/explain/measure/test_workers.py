"""What a worker costs with a core to itself, and when one is slow: only what the kernel and enough looks say."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.measure.workers import Workers
from feedline.profiling.record.recording import Recording
from tests.profiling.recordings import made


def workers_of(seen: Recording, **fields: Any) -> Workers:
    """Every worker changed so."""
    return measure(replace(seen, workers=[replace(one, **fields) for one in seen.workers])).workers


def crowded(delay: float | None) -> Workers:
    """Two workers of 6 ms a sample, that share of it without a core; None: the kernel did not tell."""
    seen = made(stages={"decode": 0.004, "transform": 0.002}, workers=2, cores=2, wait_s=0.09, compute_s=0.006)
    wall_s = seen.workers[0].stages
    told = {name: delay * seconds for name, seconds in wall_s.items()} if delay is not None else None
    return workers_of(seen, stages_delay_s=told)


def test_waiting_for_a_core_is_no_cost() -> None:
    workers = crowded(0.5)
    assert workers.delay == pytest.approx(0.5)
    assert workers.alone_s == pytest.approx(0.003)
    assert workers.stage_alone_s["decode"] == pytest.approx(0.002)


def test_where_the_kernel_does_not_tell_wall_time_counts_and_that_is_said() -> None:
    workers = crowded(None)
    assert workers.delay is None
    assert workers.alone_s == pytest.approx(0.006)
    assert any("lacked cores cannot be told" in note for note in measure(made()).notes)
    assert not any("lacked cores" in note for note in measure(made(workers=0)).notes)


def test_one_worker_that_does_not_tell_hides_the_delay_of_all() -> None:
    seen = made(workers=2)
    told = [replace(one, stages_delay_s={"decode": 1.0} if one.worker else None) for one in seen.workers]
    assert measure(replace(seen, workers=told)).workers.delay is None


def test_sleeping_is_cost_not_contention() -> None:
    seen = made(stages={"blocked": 0.003}, stages_cpu={"blocked": 0.00001}, workers=1, cores=2)
    asleep_s = seen.workers[0].stages["blocked"]
    for delay_s in (0.0, 0.5 * asleep_s):  # what came before may have waited for a core
        assert workers_of(seen, stages_delay_s={"blocked": delay_s}).alone_s == pytest.approx(0.003)


def test_errors_are_those_over_blocks_and_no_less_than_the_looks_can_tell() -> None:
    seen = made(workers=2)
    by_looks = measure(seen).workers
    share = by_looks.stages["decode"]
    assert by_looks.stage_errors["decode"] == pytest.approx((share * (1 - share) / 2000) ** 0.5)
    seconds = seen.workers[0].seconds
    over_blocks = workers_of(seen, stages_error_s={"decode": 0.05 * seconds})
    assert over_blocks.stage_errors["decode"] == pytest.approx(0.05 / 2**0.5)
    assert over_blocks.stage_errors["transform"] == by_looks.stage_errors["transform"]


@pytest.mark.parametrize(
    ("slow", "fields", "named"),
    [
        (6.0, {}, True),
        (6.0, {"ticks": 6}, False),  # a handful of looks
        (1.65, {"ticks": 15}, False),
        (1.65, {}, False),  # in all that it does alike: its core may be slower
        (2.6, {}, True),
        (1.5, {}, False),
        (3.0, {"sample_error_s": 0.0012}, False),  # from batch to batch it varies as much
        (3.0, {"sample_error_s": 0.0001}, True),
        (40.0, {"sample_error_s": 0.0035}, True),  # of a few batches, but so much
    ],
)
def test_a_slow_worker_is_named_only_on_good_ground(slow: float, fields: dict[str, Any], *, named: bool) -> None:
    seen = made(wait_s=0.04, compute_s=0.005, workers=4, slow=slow, cores=8)
    found = workers_of(seen, **fields).slow
    assert (found is not None) == named
    if found is not None:
        assert (found.worker.worker, found.factor) == (0, pytest.approx(slow))
        assert found.factor - 2 * found.error > 1.3 or found.factor > 10


def test_a_worker_that_does_something_else_is_slow_by_itself() -> None:
    seen = made(wait_s=0.04, compute_s=0.005, workers=4, cores=8)
    first, *others = seen.workers
    more_s = 0.8 * sum(seconds for name, seconds in first.stages.items() if name != "idle")
    stages = {**first.stages, "transform": first.stages["transform"] + more_s, "idle": 0.0}
    found = measure(replace(seen, workers=[replace(first, stages=stages), *others])).workers.slow
    assert found is not None and found.factor == pytest.approx(1.8)


def test_what_the_thread_prepares_for_another_loader_of_the_loop_is_waited_for_too() -> None:
    """Every fourth batch comes from pictures that it decodes itself, the others are tensors."""
    seen = made(workers=0, wait_s=0.04, compute_s=0.06, stages={"collate": 0.00001})
    (mine,) = seen.workers
    decoded = replace(mine, loader=1, samples=99, seconds=2.0, stages={"decode": 2.0}, functions={}, ticks=80)
    alone, both = (measure(replace(seen, workers=made_by)).workers for made_by in ([mine], [mine, decoded]))
    assert both.alone_s == pytest.approx(alone.alone_s + 2.0 / mine.samples) and both.samples == mine.samples
    assert both.leader == "decode"
    evaluated = replace(decoded, phase="eval")
    assert measure(replace(seen, workers=[mine, evaluated])).workers.alone_s == alone.alone_s


def test_a_worker_without_a_core_is_not_slow() -> None:
    """It takes six times as long because it is mostly not let run."""
    seen = made(wait_s=0.2, compute_s=0.01, workers=4, slow=6.0, cores=8)
    waits = {name: 5 / 6 * seconds for name, seconds in seen.workers[0].stages.items()}
    told = [replace(one, stages_delay_s={} if one.worker else waits) for one in seen.workers]
    assert measure(seen).workers.slow is not None
    assert measure(replace(seen, workers=told)).workers.slow is None


@pytest.mark.parametrize(
    ("stages", "ticks", "top"),
    [
        ({"decode": 0.002, "transform": 0.001}, 1000, "decode"),
        ({"decode": 0.002, "transform": 0.001}, 8, None),
        ({"decode": 0.00105, "transform": 0.001}, 1000, None),
        ({"decode": 0.001, "other": 0.002}, 1000, None),
    ],
)
def test_a_stage_is_on_top_only_where_it_leads_beyond_the_errors(
    stages: dict[str, float], ticks: int, top: str | None
) -> None:
    seen = made(stages=stages, workers=1, wait_s=0.2, compute_s=0.01)
    whole_s = seen.workers[0].seconds
    other_s = stages.get("other", 0.0) * seen.workers[0].samples
    mine = {**seen.workers[0].stages, "other": other_s}
    found = workers_of(seen, ticks=ticks, stages=mine, seconds=whole_s + other_s)
    assert found.top == top
