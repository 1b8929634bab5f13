from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feedline.train.config import TrainConfig
from feedline.train.models import build_model
from feedline.train.optimise import Ema, Schedule, build_schedule, parameter_groups

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


def test_norms_and_biases_are_not_decayed() -> None:
    model = build_model("resnet18", 4)
    decayed, free = parameter_groups(model, 1e-4)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    assert free["weight_decay"] == 0 and decayed["weight_decay"] == 1e-4
    assert {id(p) for p in free["params"]} == {id(p) for p in [*norms, *biases]}
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


def test_the_average_follows_the_weights_and_copies_statistics() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = Ema(model, decay=0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    before = [parameter.clone() for parameter in ema.model.parameters()]
    model(torch.randn(8, 2))
    ema.update(model, step=1000)
    for mine, old in zip(ema.model.parameters(), before, strict=True):
        torch.testing.assert_close(mine, old * 0.9 + 0.1)
    torch.testing.assert_close(ema.model[1].running_mean, model[1].running_mean)


def test_the_average_is_short_at_first() -> None:
    model = nn.Linear(2, 2)
    ema = Ema(model, decay=0.9999)
    with torch.no_grad():
        model.weight.fill_(1.0)
    ema.update(model, step=1)
    old = (model.weight - ema.model.weight).abs().max()
    assert old < 0.5  # with the full decay the random start would still be all of it
