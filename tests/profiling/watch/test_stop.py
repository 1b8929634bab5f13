"""An exact clock: when is enough enough?"""

import random

from feedline.profiling.watch.stop import LONGEST_S, Steadiness


def watched_s(durations: list[float], pause_s: float = 0.0) -> float | None:
    """Seconds until it is steady, for steps of 10 samples; None if never."""
    steadiness, now = Steadiness(), 0.0
    for duration in durations:
        now += duration + pause_s
        steadiness.add(now, 10, pause_s)
        if steadiness.reached(now):
            return now
    return None


def test_a_steady_run_takes_six_stretches_after_the_first() -> None:
    assert watched_s([0.1] * 1000) is not None
    assert 35 <= (watched_s([0.1] * 1000) or 0) <= 37


def test_a_restless_run_ends_at_the_limit() -> None:
    draw = random.Random(0)
    durations = [draw.choice([0.02, 3.0]) for _ in range(1000)]
    found = watched_s(durations) or 0
    assert LONGEST_S < found < LONGEST_S + 10


def test_a_run_that_never_gets_that_far_is_watched_to_its_end() -> None:
    assert watched_s([0.1] * 100) is None
    assert not Steadiness().reached(1e9)


def test_pauses_do_not_count() -> None:
    assert (watched_s([0.1] * 1000, pause_s=0.1) or 0) < LONGEST_S
