"""`num_workers="auto"`: what is decided, on machines that are formulas."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.workers.headcount import WINDOW_BATCHES, WINDOW_S, Headcount, Totals

Machine = Callable[[int], tuple[float, float, float]]
"""Workers -> samples/s, share of the trainer's time that it waits, share of theirs that they idle."""


def apart(trainer: float, worker: float) -> Machine:
    """A trainer on a device of its own, or on cores that nobody else needs."""

    def at(workers: int) -> tuple[float, float, float]:
        rate = min(trainer, workers * worker)
        return rate, 1 - rate / trainer, 1 - rate / (workers * worker)

    return at


def as_measured(rates: dict[int, float], waiting: dict[int, float]) -> Machine:
    return lambda workers: (rates[workers], waiting[workers], 0.0)


def numbers(machine: Machine, count: Headcount, windows: int, noise: float = 0.0, seed: int = 0) -> list[int]:
    """The number of workers in each window; every worker is at work at once."""
    chance, seen, now = random.Random(seed), list[int](), Totals()
    for _ in range(windows):
        rate, waiting, idle = machine(count.workers)
        rate *= 1 + chance.uniform(-noise, noise)
        now = Totals(
            now.active_s + WINDOW_S, now.samples + int(rate * WINDOW_S), now.batches + WINDOW_BATCHES,
            now.wait_s + waiting * WINDOW_S, now.worker_ns + int(1e9 * count.workers),
            now.idle_ns + int(1e9 * idle * count.workers),
        )  # fmt: skip
        seen.append(count.told(now, count.workers))
    return seen


@settings(max_examples=200)
@given(st.floats(50, 5000), st.floats(50, 2000), st.integers(1, 16), st.integers(0, 9))
def test_it_settles_at_the_best_number_and_never_exceeds_the_cores(
    trainer: float, worker: float, most: int, seed: int
) -> None:
    machine, count = apart(trainer, worker), Headcount(most)
    seen = numbers(machine, count, 120, noise=0.01, seed=seed)
    assert min(seen) >= 1 and max(seen) <= most
    rates = sorted(machine(workers)[0] for workers in seen[60:])
    best = max(machine(workers)[0] for workers in range(1, most + 1))
    assert rates[len(rates) // 2] >= 0.95 * best


def test_it_is_soon_there(most: int = 16) -> None:
    assert numbers(apart(10_000, 500), Headcount(most), 20)[-1] == most


def test_one_more_that_gains_nothing_leaves_again_and_is_tried_less_and_less() -> None:
    """A model that computes on the workers' cores."""
    machine = as_measured({1: 1000, 2: 990}, {1: 0.3, 2: 0.1})
    count = Headcount(2)
    seen = numbers(machine, count, 400)
    trials = [at for at, (one, two) in enumerate(pairwise(seen)) if (one, two) == (1, 2)]
    gaps = [later - earlier for earlier, later in pairwise(trials)]
    assert len(trials) >= 3 and gaps == sorted(gaps) and gaps[-1] > 2 * gaps[0]
    assert seen.count(1) > 0.9 * len(seen)
    assert "gave" in count.changes[1]["why"]


def test_a_leap_too_far_is_followed_by_a_smaller_one() -> None:
    rates = {2: 1000.0, 3: 1400.0, 4: 1000.0, 5: 900.0, 6: 800.0, 7: 700.0, 8: 600.0}
    count = Headcount(8)
    assert numbers(as_measured(rates, dict.fromkeys(rates, 0.5)), count, 40)[-1] == 3


def test_workers_who_idle_are_sent_away_one_by_one() -> None:
    count = Headcount(8)
    count.workers = 8
    seen = numbers(apart(1000, 700), count, 60)
    assert seen[-1] == 2 and sorted(seen, reverse=True) == seen
    assert count.describe()["settled"]
    assert "idle" in count.changes[0]["why"]


def test_it_follows_when_the_work_changes() -> None:
    count = Headcount(8)
    assert numbers(apart(1000, 1500), count, 40)[-1] <= 2
    count.begin_anew()
    assert numbers(apart(8000, 1000), count, 200)[-1] == 8


def test_among_ranks_a_worker_is_worth_it_that_spares_waiting() -> None:
    """All go at the pace of the slowest, so none gains by itself."""
    machine = as_measured({1: 1000, 2: 1000}, {1: 0.4, 2: 0.1})
    assert numbers(machine, Headcount(2), 9)[-1] == 1
    assert numbers(machine, Headcount(2, ranks=2), 9)[-1] == 2


@pytest.mark.parametrize("ready", [0, 1, 3])
def test_nothing_is_measured_while_workers_start_or_leave(ready: int) -> None:
    count = Headcount(8)
    for step in range(1, 100):
        now = Totals(step * 1.0, step * 10, step * 32, step * 0.9, step * 10**9, 0)
        assert count.told(now, ready) == 2
    assert not count.describe()["settled"]


def test_what_cannot_be_started_is_not_asked_for_again() -> None:
    count = Headcount(8)
    assert numbers(apart(8000, 1000), count, 4)[-1] > 2
    count.refused(2, "no worker can be added: Resource temporarily unavailable")
    assert set(numbers(apart(8000, 1000), count, 40)) == {2}
    assert "cores" in count.why
