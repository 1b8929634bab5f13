from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.train.config import TrainConfig
from feedline.train.schedule import Schedule, build_schedule

SCHEDULE = Schedule(peak_lr=0.4, warmup_epochs=2, epochs=10)


def test_it_warms_up_peaks_and_ends_at_nothing() -> None:
    assert SCHEDULE.lr(0) == 0
    assert SCHEDULE.lr(1) == pytest.approx(0.2)
    assert SCHEDULE.lr(2) == pytest.approx(0.4)
    assert SCHEDULE.lr(6) == pytest.approx(0.2)
    assert SCHEDULE.lr(10) == pytest.approx(0, abs=1e-12)


@given(st.floats(0, 12), st.floats(0, 12))
def test_it_only_rises_before_the_peak_and_only_falls_after(one: float, other: float) -> None:
    early, late = sorted((one, other))
    if late <= 2:
        assert SCHEDULE.lr(early) <= SCHEDULE.lr(late)
    if early >= 2:
        assert SCHEDULE.lr(early) >= SCHEDULE.lr(late)
    assert 0 <= SCHEDULE.lr(early) <= SCHEDULE.peak_lr


def test_no_warm_up_starts_at_the_peak() -> None:
    assert Schedule(peak_lr=1, warmup_epochs=0, epochs=4).lr(0) == 1


def test_the_rate_can_be_scaled_to_the_global_batch() -> None:
    config = TrainConfig(dataset=Path("OUT"), lr=0.1, scale_lr=256)
    assert build_schedule(config, 1024).peak_lr == pytest.approx(0.4)
    assert build_schedule(TrainConfig(dataset=Path("OUT"), lr=0.1), 1024).peak_lr == pytest.approx(0.1)


def test_the_default_rate_follows_the_global_batch() -> None:
    assert build_schedule(TrainConfig(dataset=Path("OUT")), 512).peak_lr == pytest.approx(0.2)
    assert build_schedule(TrainConfig(dataset=Path("OUT"), model="small_cnn"), 64).peak_lr == pytest.approx(0.0125)
