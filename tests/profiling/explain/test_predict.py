"""One path to a number, and remedies that are told apart by their fields."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.explain.predict import REMEDIES, all_predictions, predict, prediction_for
from feedline.profiling.explain.remedies.remedy import Change, Effort
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.recording import Compute, LoaderPass, Recording, Trial
from tests.profiling.recordings import made, rich

SMALL = {"read": 0.0, "decode": 0.0001, "transform": 0.0001, "collate": 0.0, "send": 0.0}
FAULTY = Compute(device="cpu", user_cpu_s=6.0, kernel_cpu_s=4.0, page_faults=400_000, faulty_steps=100)
GPU = Compute(device="cuda:0", items=9, items_s=1.0)


def runs() -> list[Recording]:
    """Between them every remedy applies, where it helps and where it does not."""
    waiting, computing = {"wait_s": 0.06, "compute_s": 0.03}, {"wait_s": 0.001, "compute_s": 0.1, "stages": SMALL}
    passes = [LoaderPass(epoch=epoch, samples=1600, start_s=0.5, end_s=0.06) for epoch in range(3)]
    short = replace(made(passes=passes), loaders=[replace(made().loaders[0], persistent_workers=False)])
    return [
        rich(),
        short,
        made(**waiting),
        made(**waiting, workers=4, slow=6.0),
        made(**computing, compute=FAULTY),
        made(**computing, compute=replace(GPU, items_s=0.0), starved_s=0.0),
        made(wait_s=0.001, compute_s=0.02, copy_s=0.02, compute=GPU, starved_s=0.0),
        made(wait_s=0.001, compute_s=0.02, python_s=0.08),
        made(wait_s=0.09, unpickle_s=0.085, compute_s=0.02, stages=SMALL),
    ]


def test_every_remedy_has_its_effort_and_its_reason_in_fields() -> None:
    offered: set[str] = set()
    for seen in runs():
        at = situation(measure(seen))
        assert at is not None
        for remedy in REMEDIES:
            for change in remedy(at):
                offered.add(remedy.__name__)
                assert change.effort in Effort and change.remedy
                assert change.why
    assert offered == {remedy.__name__ for remedy in REMEDIES}


def test_what_is_vain_never_helps_and_says_so_whatever_its_words() -> None:
    found = [prediction for seen in runs() for prediction in all_predictions(measure(seen))]
    assert any(one.vain for one in found) and any(one.helps for one in found)
    for one in found:
        assert not (one.vain and one.helps)
        assert one.why.startswith("this will not help, because ") == one.vain


def test_what_helps_comes_first_and_near_ties_go_by_effort() -> None:
    for seen in runs():
        found = all_predictions(measure(seen))
        assert [one.helps for one in found] == sorted((one.helps for one in found), reverse=True)
        step = 0.03 * (diagnose(seen).samples_per_s or 0.0)
        ranks = [(not one.helps, -round(one.samples_per_s / step), one.effort) for one in found]
        assert ranks == sorted(ranks)


def test_other_numbers_of_workers_may_be_asked_for_and_change_no_figure() -> None:
    trial = Trial(codec="jpeg", size_px=160, samples=99, bytes_per_sample=9e3, load_cpu_s_per_sample=3e-4)
    seen = made(workers=1, cores=2, ceiling=3000.0, trials=[trial])
    report, asked = diagnose(seen).predictions, all_predictions(measure(seen), workers=[1, 3])
    assert all(one in asked for one in report)
    assert prediction_for(report, num_workers=3) is None and prediction_for(asked, num_workers=3)
    shards = {"codec": "jpeg", "size": 160, "loader": "feedline"}
    assert prediction_for(asked, **shards, num_workers=1) == prediction_for(report, **shards, num_workers=1)
    assert prediction_for(asked, **shards, num_workers=3)


def test_the_record_names_the_effort() -> None:
    efforts = {one["effort"] for one in record_keys(diagnose(rich()))["predictions"]}
    assert efforts == {"setting", "code", "preparing", "hardware"}


@pytest.mark.parametrize("seen", runs(), ids=range(len(runs())))
def test_the_interval_holds_the_figure(seen: Recording) -> None:
    for one in all_predictions(measure(seen)):
        assert 0 <= one.low <= one.samples_per_s <= one.high


def ceiling_high(seen: Recording) -> float:
    """Where the measured ceiling may be at most, as a window of the same script measures it later."""
    at = situation(measure(seen))
    assert at is not None
    ceiling = at.measured.rates.ceiling
    assert ceiling is not None
    return at.ceiling * (1 + ERRORS_90 * math.hypot(ceiling.error, at.rate.error))


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2), st.integers(0, 4), st.floats(1.0, 20.0))
def test_predictions_keep_their_promises(wait: float, compute: float, workers: int, above: float) -> None:
    """Intervals hold their rate; no data remedy beats the ceiling; less preparing is never slower."""
    rate = 32 / (wait + compute)
    trials = [
        Trial(codec="jpeg", size_px=size, samples=9, bytes_per_sample=1.0, load_cpu_s_per_sample=cost)
        for size, cost in ((256, 0.0006), (160, 0.0003), (64, 0.00002))
    ]
    seen = made(wait_s=wait, compute_s=compute, workers=workers, ceiling=rate * above, trials=trials, steps=20)
    found = all_predictions(measure(seen))
    assert found
    for one in found:
        assert 0 <= one.low <= one.samples_per_s <= one.high
        if one.remedy.startswith(("num_workers", "prepared", "cache", "faster", "cheaper")):
            assert one.samples_per_s <= max(rate * above, rate) * 1.001
            assert one.high <= ceiling_high(seen) * 1.001
    by_size = {size: next(p for p in found if f"{size} px" in p.remedy).samples_per_s for size in (256, 160, 64)}
    assert by_size[256] <= by_size[160] * 1.001 <= by_size[64] * 1.002


def test_the_calibration_carries_over() -> None:
    """A run 20 % slower than its model: the prediction is as much slower, where the limit stays the same."""
    stages = {"decode": 0.004}
    seen = made(workers=1, stages=stages, batch=32, wait_s=32 * 0.005 - 0.001, compute_s=0.001, cores=16)
    at = situation(measure(seen))
    assert at is not None
    assert at.factor == pytest.approx(0.8, rel=0.01)
    doubled = predict(at, Change(remedy="x", then=replace(at.now, workers=2), effort=Effort.SETTING, why="x"))
    assert doubled.samples_per_s == pytest.approx(400, rel=0.02)


def test_a_trial_replaces_the_workers_cost() -> None:
    trial = Trial(codec="raw", size_px=64, samples=99, bytes_per_sample=12_416.0, load_cpu_s_per_sample=0.0001)
    seen = made(
        workers=1, cores=8, stages={"decode": 0.01}, wait_s=0.31, compute_s=0.001, ceiling=9000.0, trials=[trial]
    )
    found = next(p for p in all_predictions(measure(seen)) if "64 px raw" in p.remedy)
    assert 0.85 * 9000 < found.samples_per_s <= 9000
    assert found.settings == {"codec": "raw", "size": 64, "loader": "feedline", "num_workers": 1}
