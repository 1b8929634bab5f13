"""Errors of shares over blocks: the truth lies inside as often as they say."""

import random

import pytest

from feedline.profiling.record.journal import TimeRow
from feedline.profiling.record.recording import Step, ThreadTime
from feedline.profiling.record.windows import RowSum, Windows


def looked_at(truth: float, seconds: int, hz: float, *, drift: float, seed: int) -> RowSum:
    """A thread that decodes the share `truth` of its time, in stretches a second whose own share drifts around it."""
    draw = random.Random(seed)
    rows: list[TimeRow] = []
    for second in range(seconds):
        share = min(1.0, max(0.0, draw.gauss(truth, drift)))
        looks = int(hz * draw.uniform(0.5, 1.5))
        decoding = sum(draw.random() < share for _ in range(looks))
        stages = {"decode": decoding / looks, "transform": 1 - decoding / looks}
        rows.append(TimeRow(second, second + 1.0, stages, {}, {}, {}, 4, 32 + draw.randrange(-4, 5), 1.0, looks))
    return RowSum(rows, Windows(()), 0.0)


@pytest.mark.parametrize(("hz", "drift"), [(10, 0.0), (50, 0.0), (50, 0.15), (20, 0.1)])
def test_nine_tenths_of_shares_lie_inside_their_intervals(hz: float, drift: float) -> None:
    inside = 0
    for seed in range(200):
        found = ThreadTime(**looked_at(0.4, 20, hz, drift=drift, seed=seed).thread())
        share, error = found.stages["decode"] / found.seconds, found.stages_error_s["decode"] / found.seconds
        inside += abs(share - 0.4) <= 1.64 * error
    assert 170 <= inside <= 196


def test_a_single_look_bears_next_to_nothing() -> None:
    row = TimeRow(0.0, 0.1, {"decode": 0.05, "read": 0.05}, {}, {}, {}, 0, 0, 0.0, 2)
    found = RowSum([row], Windows(()), 0.0)
    seen = ThreadTime(**found.thread())
    assert seen.stages_error_s["decode"] / seen.seconds > 0.3
    assert found.sample_error_s() is None


def test_delay_is_unknown_where_no_row_has_it() -> None:
    row = TimeRow(0.0, 1.0, {"decode": 1.0}, {}, {}, {}, 1, 8, 1.0, 50)
    assert RowSum([row], Windows(()), 0.0).thread()["stages_delay_s"] is None
    told = RowSum([row._replace(stages_delay={"decode": 0.25})], Windows(()), 0.0)
    assert told.thread()["stages_delay_s"] == {"decode": 0.25}


def test_cost_of_a_sample_has_the_error_of_its_blocks() -> None:
    rows = [
        TimeRow(s, s + 1.0, {"decode": 0.8, "idle": 0.2}, {}, {}, {}, 1, 80 + 8 * (s % 3 - 1), 1.0, 50)
        for s in range(9)
    ]
    assert 1e-5 < (RowSum(rows, Windows(()), 0.0).sample_error_s() or 0.0) < 1e-3


def test_what_is_of_no_step_is_apart() -> None:
    """Neither evaluations are, nor those amid a step."""
    spans = [(0.0, 1.0, "train"), (1.0, 1.0, "eval"), (3.0, 2.0, "train"), (3.5, 0.5, "eval")]
    steps = [Step(start_s=at, wait_s=0.0, duration_s=s, samples=8, phase=phase) for at, s, phase in spans]
    places = ["a.py:train:1", "a.py:validate:2", "a.py:rebuild:3", "a.py:validate:2", "a.py:train:1"]
    rows = [TimeRow(at, at + 1.0, {"python": 1.0}, {}, {}, {f"python {place}": 1.0}, 0, 0, 1.0, 50)
            for at, place in enumerate(places)]  # fmt: skip
    windows = Windows(step for step in steps if step.phase == "train")
    apart_s = RowSum(rows, windows, 0.0, Windows(steps, every=True)).thread()["apart_s"]
    assert {place: s for place, s in apart_s.items() if s} == {"a.py:rebuild:3": 1.0}
