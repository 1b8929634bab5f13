"""What is announced, how far ahead: bounded, each sample in time, and no more than the reads' waits call for."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.workers.ahead import (
    ADVICE,
    ENOUGH,
    FIRST_PATIENCE,
    MOST_BYTES,
    MOST_PATIENCE,
    READS,
    Ahead,
    Reach,
    Seen,
)
from feedline.pipeline.workers.slots import HINT_BATCHES, Numbers


class FakeRun:
    def __init__(self, plan: EpochPlan) -> None:
        self.plan, self.batches = plan, len(plan)
        self.sent = self.announced = 0
        self.announced_bytes: dict[int, int] = {}

    def samples(self, batch: int) -> Numbers:
        return self.plan.batch(batch)


def of(lengths_N: np.ndarray, **options: int) -> Ahead:  # type: ignore[type-arg]
    return Ahead(lengths_N, **{"batch_size": 64, "workers": 2, "tasks": 4, "memory_bytes": 1 << 40, **options})


def through(ahead: Ahead, runs: Sequence[FakeRun], under_way: int = 4) -> list[list[int]]:
    """Sends every task, and has each done when `under_way` others have been sent; the samples that went with each."""
    hints: list[list[int]] = []
    sent: list[tuple[FakeRun, int]] = []
    for run in runs:
        while run.sent < run.batches:
            parts = ahead.hints(runs)
            assert len(parts) <= HINT_BATCHES
            assert all(0 <= len(part) <= run.plan.batch_size for part in parts)
            hints.append([int(sample) for part in parts for sample in part])
            sent.append((run, run.sent))
            run.sent += 1
            assert 0 <= ahead.under_way_bytes <= ahead.most_bytes
            if len(sent) > under_way:
                ahead.done(*sent.pop(0))
    for one in sent:
        ahead.done(*one)
    return hints


def test_an_epoch_of_imagenet_is_announced_whole_in_order_and_within_the_bound() -> None:
    plan = EpochPlan(samples=1_281_167, seed=1, batch_size=256, world_size=8, rank=3)
    lengths_N = np.random.default_rng(0).integers(4_000, 400_000, plan.samples)
    ahead = of(lengths_N, batch_size=256, workers=8, tasks=16)
    ahead.reach.batches = ahead.reach.most
    announced = [sample for part in through(ahead, [FakeRun(plan)], 16) for sample in part]
    assert announced == [int(sample) for number in range(len(plan)) for sample in plan.batch(number)]
    assert ahead.under_way_bytes == 0


@pytest.mark.parametrize(("memory_bytes", "most_bytes"), [(1 << 40, MOST_BYTES), (512 << 20, 32 << 20), (0, 0)])
def test_the_bound_is_a_share_of_the_memory(memory_bytes: int, most_bytes: int) -> None:
    assert of(np.full(1000, 30_000), memory_bytes=memory_bytes).most_bytes == most_bytes


def test_the_bound_holds_what_is_under_way_anyhow() -> None:
    ahead = of(np.full(1000, 100_000), batch_size=1000)
    assert ahead.most_bytes == (4 + 2) * 1000 * 100_000


@settings(max_examples=150)
@given(
    samples=st.integers(1, 300), batch_size=st.integers(1, 20), world_size=st.integers(1, 3),
    reach=st.integers(0, 40), start=st.integers(0, 200), policy=st.sampled_from(["drop", "pad", "wrap"]),
    memory=st.sampled_from([0, 200, 10_000, 10**5, 10**8]), under_way=st.integers(0, 6), given_up=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_each_sample_is_announced_once_at_its_own_batch_at_the_latest(
    samples: int, batch_size: int, world_size: int, reach: int, start: int, policy: str, memory: int, under_way: int,
    given_up: bool, seed: int,
) -> None:  # fmt: skip
    """Where there is room; and with an epoch begun ahead, a resumed one and one that is left."""
    lengths_N = np.random.default_rng(seed).integers(0, 500, samples)
    ahead = of(lengths_N, batch_size=batch_size, workers=1, tasks=1, memory_bytes=memory)
    ahead.reach.batches = reach
    plans = [
        EpochPlan(samples=samples, seed=seed, epoch=epoch, batch_size=batch_size, world_size=world_size,
                  rank=world_size - 1, policy=policy, start=min(start, samples) * (epoch == 0))  # type: ignore[arg-type]
        for epoch in range(2)
    ]  # fmt: skip
    runs = [FakeRun(plan) for plan in plans]
    if given_up:
        left = FakeRun(plans[1])
        for _ in range(min(3, left.batches)):
            ahead.hints([left])
            left.sent += 1
        ahead.given_up(left)
        assert ahead.under_way_bytes == 0
    hints = through(ahead, runs, under_way)
    wanted = [plan.batch(number) for plan in plans for number in range(len(plan))]
    everything = [int(sample) for samples_N in wanted for sample in samples_N if sample >= 0]
    announced = [sample for part in hints for sample in part]
    assert ahead.under_way_bytes == 0
    if not reach:
        assert announced == []
    elif ahead.most_bytes >= (reach + under_way + 2) * batch_size * 500:
        assert announced == everything
        done = 0
        for number, part in enumerate(hints):
            done += len(part)
            assert done >= sum(int((samples_N >= 0).sum()) for samples_N in wanted[: number + 1])
    else:
        rest = iter(everything)
        assert all(sample in rest for sample in announced), "in the plan's order, what there was no room for left out"


def test_a_batch_that_is_larger_than_the_bound_is_announced_in_part() -> None:
    ahead = of(np.full(100, 1000), batch_size=50, memory_bytes=16 * 10_500)
    hints = through(ahead, [FakeRun(EpochPlan(samples=100, batch_size=50))], 0)
    assert [len(part) for part in hints] == [10, 10]


# --- how far ------------------------------------------------------------------------------------------

BATCH_NS = 20_000_000


class Workers:
    """Two of them; each batch has four reads that are looked at."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self.seen = reach, Seen()

    def work(self, batches: int, blocked: int = 0, wait_ms: float = 1.0, stored: float = 0.0, most: int = 32) -> None:
        """Of each batch's four, `blocked` wait so long; such a share of the bytes comes from storage, which is the
        faster the farther ahead it is asked, until that are `most` batches."""
        for _ in range(batches):
            spent_ns = BATCH_NS * 32 // max(1, min(self.reach.batches, most))
            more = Seen(1, 4, blocked, int(blocked * wait_ms * 1e6), 10_000, int(10_000 * stored), spent_ns)
            self.seen = Seen(*(one + other for one, other in zip(self.seen, more, strict=True)))
            self.reach.told(self.seen)


def test_where_nothing_waits_nothing_is_announced_any_more() -> None:
    reach = Reach(2, 32)
    assert reach.batches == 2, "the first batches come from cold storage as like as not"
    Workers(reach).work(2 * FIRST_PATIENCE)
    assert reach.batches == 0 and "cached" in reach.why


def test_it_reaches_farther_while_reads_wait_and_no_farther_than_it_may() -> None:
    reach = Reach(2, 32)
    workers, seen = Workers(reach), [2]
    for _ in range(100):
        workers.work(4, blocked=1, wait_ms=100)
        assert reach.batches in (seen[-1], min(32, 2 * seen[-1])), "one step at a time"
        seen.append(reach.batches)
    assert reach.batches == 32 and reach.way == ADVICE and "memory" in reach.why
    steps = [at for at in range(100) if seen[at] != seen[at + 1]]
    assert all(4 * (two - one) >= seen[one + 1] for one, two in pairwise(steps)), (
        "a change has had its time before the next"
    )


def test_storage_that_gives_all_it_can_is_asked_for_more_less_and_less_often() -> None:
    reach = Reach(2, 64)
    workers, seen = Workers(reach), list[int]()
    for _ in range(2000):
        workers.work(1, blocked=1, wait_ms=100, most=8)
        seen.append(reach.batches)
    assert max(seen) == 16 and "brought no more" in reach.why
    tries = [at for at, (one, other) in enumerate(pairwise(seen)) if other > one == 8]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert len(pauses) >= 3 and all(later > 1.5 * earlier for earlier, later in pairwise(pauses))
    workers.work(MOST_PATIENCE, blocked=1, wait_ms=100, most=64)
    assert reach.batches == 64, "what has become faster is found to be"


@pytest.mark.parametrize(("stored", "batches"), [(0.5, 8), (0.05, 0)])
def test_what_comes_in_time_from_storage_goes_on_to_be_announced(stored: float, batches: int) -> None:
    reach = Reach(2, 32)
    workers = Workers(reach)
    while reach.batches < 8:
        workers.work(1, blocked=2, stored=1.0)
    workers.work(1000, stored=stored)
    assert reach.batches == batches and ("cached" in reach.why) == (not batches)


def test_data_that_has_left_the_cache_is_announced_again() -> None:
    reach = Reach(2, 32)
    workers = Workers(reach)
    workers.work(200)
    assert reach.batches == 0
    workers.work(2 * ENOUGH, blocked=1)
    assert reach.batches >= 2


def test_one_long_read_alone_is_chance() -> None:
    reach = Reach(2, 32)
    workers = Workers(reach)
    workers.work(200)
    for _ in range(20):
        workers.work(1, blocked=1, wait_ms=50)
        workers.work(7)
    assert reach.batches == 0


def test_going_back_in_vain_is_tried_less_and_less() -> None:
    """Storage that needs four batches ahead: it is found to be so for most of the time."""
    reach = Reach(2, 32)
    workers, seen = Workers(reach), list[int]()
    for _ in range(3000):
        workers.work(1, blocked=2 * (reach.batches < 4))
        seen.append(reach.batches)
    late = seen[1000:]
    assert sum(batches >= 4 for batches in late) > 0.9 * len(late)
    assert max(late) <= 8


@pytest.mark.parametrize(("by_threads_ms", "way"), [(0.5, READS), (4.0, ADVICE), (8.0, ADVICE)])
def test_where_advice_is_lost_threads_read_if_that_is_measured_to_be_better(by_threads_ms: float, way: int) -> None:
    reach, tried = Reach(2, 32), False
    workers = Workers(reach)
    for _ in range(400):
        on_trial = reach.way == READS
        workers.work(1, blocked=3, wait_ms=by_threads_ms if on_trial else 5.0)
        tried |= on_trial
    assert tried and reach.way == way
