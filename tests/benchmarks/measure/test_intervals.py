"""Intervals cover the truth as often as they say, and comparisons claim only what they can show."""

import math
import random

import pytest

from feedline.benchmarks.measure.intervals import compare, estimate, pool, student_t


def test_one_value_has_no_interval() -> None:
    found = estimate([100.0])
    assert (found.value, found.low, found.high, found.n) == (100.0, None, None, 1)
    assert compare([100.0], [50.0]).outcome == "open"


def test_student_t() -> None:
    assert student_t(1, 0.95) == pytest.approx(12.706, abs=0.01)
    assert student_t(9, 0.95) == pytest.approx(2.262, abs=0.01)


@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_interval_covers_the_truth(n: int) -> None:
    rng = random.Random(n)
    covered = 0
    for _ in range(400):
        found = estimate([1000 * math.exp(rng.gauss(0, 0.1)) for _ in range(n)])
        assert found.low is not None and found.high is not None
        covered += found.low <= 1000 <= found.high
    assert covered / 400 > 0.92


def test_a_drift_that_hits_both_hides_nothing() -> None:
    drift = [1.0, 0.5, 0.25, 0.8]
    found = compare([130 * d for d in drift], [100 * d for d in drift])
    assert found.outcome == "faster" and found.ratio.value == pytest.approx(1.3)
    assert compare([100 * d for d in drift], [130 * d for d in drift]).outcome == "slower"


def test_a_difference_nobody_cares_about_is_none() -> None:
    assert compare([1010.0, 1011.0, 1009.0, 1010.0], [1000.0, 1001.0, 1000.0, 999.0]).outcome == "same"


def test_noise_leaves_it_open() -> None:
    assert compare([100, 150, 80], [110, 90, 140]).outcome == "open"


def test_the_same_thing_twice_is_hardly_ever_a_difference() -> None:
    rng = random.Random(1)
    wrong = 0
    for _ in range(500):
        a, b = ([math.exp(rng.gauss(0, 0.08)) for _ in range(6)] for _ in range(2))
        wrong += compare(a, b, comparisons=4).outcome in ("faster", "slower")
    assert wrong / 500 < 0.02


def test_pooled_noise_narrows_few_rounds_but_never_below_itself() -> None:
    rng = random.Random(2)
    base = [math.exp(rng.gauss(0, 0.03)) for _ in range(3)]
    cells = [[2 * math.exp(rng.gauss(0, 0.03)) for _ in range(3)] for _ in range(8)]
    noise = pool([(cell, base) for cell in cells])
    assert noise is not None and noise.freedom == 8
    alone, pooled = compare(cells[0], base, comparisons=20), compare(cells[0], base, comparisons=20, noise=noise)
    assert alone.outcome == "open" and pooled.outcome == "faster"
    exact = compare([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], noise=noise)
    assert exact.ratio.high is not None and exact.ratio.high > 2.0
