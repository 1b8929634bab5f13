"""Errors by few blocks: twice them is a 95 % interval, however few there are."""

import random
import statistics

import pytest

from feedline.profiling.record.uncertainty import OF_A_MEDIAN, look_error, ratio_error, share_error, spread_error


def test_a_ratio_that_never_varies_has_no_error() -> None:
    assert ratio_error([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == 0.0
    assert ratio_error([1.0, 2.0], [1.0, 1.0]) == 0.0


def test_few_blocks_tell_little() -> None:
    assert share_error([1.0, 2.0], [4.0, 4.0]) == share_error([0.0] * 3, [4.0] * 3) == 0.5
    assert share_error([1.0] * 10, [4.0] * 10) == 0
    assert look_error(0.5, 1) == 0.5
    assert (
        look_error(0.0, 10) == pytest.approx(look_error(0.1, 10)) == look_error(1.0, 10)
    )  # none of ten is not never


@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_the_truth_lies_inside_of_few_as_often_as_they_say(count: int) -> None:
    """Of ten thousand draws, nineteen in twenty: means, medians, and sums of parts of equal wholes."""
    draw, inside = random.Random(count), [0, 0, 0]
    for _ in range(10_000):
        values = [draw.gauss(100.0, 5.0) for _ in range(count)]
        mean, error = statistics.fmean(values), spread_error(values)
        inside[0] += abs(mean - 100.0) <= 2 * error * mean
        inside[1] += abs(statistics.median(values) - 100.0) <= 2 * OF_A_MEDIAN * error * mean
        inside[2] += abs(sum(values) - 100.0 * count) <= 2 * ratio_error(values, [1.0] * count)
    assert all(9_350 <= times <= 9_800 for times in inside), inside


def test_of_a_rate_measured_once_or_twice_a_tenth_is_not_known() -> None:
    assert spread_error([100.0]) == spread_error([100.0, 100.1]) == 0.1
