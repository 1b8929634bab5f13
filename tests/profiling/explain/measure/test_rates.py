"""Intervals hold the truth as often as they say, and legs that lie are not believed."""

import random
from dataclasses import replace

import pytest

from feedline.profiling.explain.measure.rates import ERRORS_90, believed
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.recording import Leg, LoaderPass, Recording
from tests.profiling.recordings import made


def scattered(seed: int, steps: int = 200) -> tuple[Recording, float]:
    """Waits that come in bursts of about eight batches, and the share that they are of the time in the long run."""
    chance, seen, waits_s = random.Random(seed), made(wait_s=0.02, compute_s=0.08, steps=steps), list[float]()
    burst = 0.0
    for _ in seen.steps:
        burst = 0.9 * burst + 0.1 * chance.expovariate(1.0)
        waits_s.append(0.02 * (0.5 * burst + 0.5 * chance.expovariate(1.0)))
    drawn = zip(seen.steps, waits_s, strict=True)
    return replace(seen, steps=[replace(one, wait_s=w, duration_s=w + 0.08) for one, w in drawn]), 0.02 / 0.1


def test_a_share_lies_inside_its_interval_as_often_as_that_says() -> None:
    """Errors over single steps would hold it two times in three; those over blocks do nine times in ten."""
    inside = 0
    for seed in range(300):
        seen, share = scattered(seed)
        trainer = measure(seen).trainer
        inside += abs(trainer.shares.data - share) <= ERRORS_90 * trainer.errors.data
    assert inside >= 0.85 * 300, inside


@pytest.mark.parametrize(("wait_s", "starved_s", "data"), [(0.002, 0.04, 0.02), (0.05, 0.04, 0.4), (0.05, 0.05, 0.5)])
def test_what_a_loader_asks_of_the_device_is_no_waiting_for_data(
    wait_s: float, starved_s: float, data: float
) -> None:
    """fastai transforms a batch on the device before it hands it over."""
    seen = made(wait_s=wait_s, compute_s=0.1 - wait_s, starved_s=starved_s, device="cuda:0")
    assert measure(seen).trainer.shares.data == pytest.approx(data)


def with_legs(cached: list[float], normal: list[float]) -> Recording:
    """Beside a loop of 356 samples/s that hardly waits for them."""
    return replace(
        made(wait_s=0.0005, compute_s=0.0895),
        legs=[Leg(name="cached", samples_per_s=cached), Leg(name="normal", samples_per_s=normal)],
    )


@pytest.mark.parametrize(
    ("cached", "normal", "why"),
    [
        ([167.0, 3677.0, 683.0], [350.0, 356.0, 360.0], "windows ran at 167–3,677 samples/s"),
        ([900.0, 167.0], [], "windows ran at 167–900 samples/s"),
        ([700.0, 683.0, 690.0], [180.0, 190.0, 200.0], "the loop as it is ran at 190 samples/s, before them at 356"),
        ([200.0, 201.0, 202.0], [], "it ran at 201 samples/s, slower than the loop before"),
    ],
)
def test_a_ceiling_measured_beside_somebody_else_is_not_claimed(
    cached: list[float], normal: list[float], why: str
) -> None:
    found = diagnose(with_legs(cached, normal))
    assert found.ceiling_samples_per_s is None
    assert any(why in note for note in found.notes)
    assert not any("data for free" in sentence for sentence in found.evidence)


def test_a_ceiling_that_agrees_is_claimed() -> None:
    found = diagnose(with_legs([990.0, 1000.0, 1010.0], [370.0, 340.0, 350.0]))
    assert found.ceiling_samples_per_s == 1000
    assert any("reaches 1,000 samples/s, 2.8× as much" in sentence for sentence in found.evidence)


@pytest.mark.parametrize(
    ("cached", "said"),
    [
        ([355.0, 356.0, 357.0], "it is no faster (356 samples/s)"),
        ([300.0, 330.0, 360.0, 400.0, 440.0], "whether that is faster cannot be told"),
        ([390.0, 391.0, 392.0], "1.1× as much"),
    ],
)
def test_no_faster_is_said_only_where_the_interval_bears_it(cached: list[float], said: str) -> None:
    assert any(said in sentence for sentence in diagnose(with_legs(cached, [])).evidence)


def test_beginning_and_ending_passes_is_waiting() -> None:
    """Ten steps of 50 ms to an epoch and half a second to start it: half of the time."""
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.5, end_s=0.0) for epoch in range(4)]
    found = diagnose(made(wait_s=0.0, compute_s=0.05, passes=passes))
    assert found.measured.trainer.wait_fraction == pytest.approx(0.5)
    assert (found.bound, found.cause.kind) == ("data", "start")
    assert record_keys(found)["verdict"]["cause"]["share"] == pytest.approx(1.0)


def test_a_ceiling_that_contradicts_the_waiting_is_not_claimed() -> None:
    """30 % of the time is waiting, and with data for free it is no faster: which is true cannot be told."""
    seen = made(wait_s=0.03, compute_s=0.07, ceiling=320.0)
    found = diagnose(seen)
    assert found.ceiling_samples_per_s is None and (found.bound, found.close) == ("data", ["compute"])
    assert any(
        "without the 30 % of its time that it waits it would run at 457 samples/s" in note for note in found.notes
    )
    assert not any("data for free" in sentence for sentence in found.evidence)
    agrees = diagnose(made(wait_s=0.03, compute_s=0.07, ceiling=450.0))
    assert agrees.ceiling_samples_per_s == 450 and agrees.certain


@pytest.mark.parametrize(("count", "kind"), [(2, "decode"), (3, "start")])
def test_one_late_beginning_of_a_pass_is_no_habit(count: int, kind: str) -> None:
    """Three quarters of the waiting, seen once or twice."""
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.3, end_s=0.0) for epoch in range(count)]
    found = diagnose(made(wait_s=0.01, compute_s=0.05, passes=passes, stages={"decode": 0.002}))
    assert (found.bound, found.cause.kind) == ("data", kind)


def test_a_single_window_is_no_surer_than_a_stretch_of_the_loop_as_long() -> None:
    """As where a schedule near its end ends the script within its windows."""
    window = Leg(name="loader_only", samples_per_s=[300.0], window_s=[1.2], num_workers=1)
    steady = replace(made(wait_s=0.02, compute_s=0.08, steps=200), legs=[window])
    uneven = [replace(one, duration_s=0.05 if n // 20 % 2 else 0.25) for n, one in enumerate(steady.steps)]
    assert measure(steady).rates.loader_only[1].error == pytest.approx(0.1)
    assert not measure(replace(steady, steps=uneven)).rates.loader_only
    several = replace(window, samples_per_s=[300.0, 305.0, 302.0], window_s=[1.2] * 3)
    assert measure(replace(steady, steps=uneven, legs=[several])).rates.loader_only[1].error < 0.05


def test_passes_that_the_loop_breaks_off_begin_with_something_too() -> None:
    """Five batches of each; whether the last one was whole nobody knows."""
    seen = made(wait_s=0.01, compute_s=0.03, steps=60)
    steps = [replace(step, epoch=number // 5) for number, step in enumerate(seen.steps)]
    passes = [LoaderPass(epoch=epoch, samples=160, start_s=0.4, end_s=None) for epoch in range(12)]
    rates = measure(replace(seen, steps=steps, passes=passes)).rates
    assert rates.epoch_samples == 160 and rates.epoch_start_s == pytest.approx(0.39)
    assert rates.start_share > 0.5
    alone = measure(replace(seen, passes=[LoaderPass(epoch=0, samples=1920, start_s=0.4, end_s=None)])).rates
    assert alone.epoch_samples is None


def test_a_loop_that_only_waits_contradicts_its_ceiling_in_words() -> None:
    seen = with_legs([300.0] * 3, [356.0] * 3)
    rates = measure(seen).rates
    assert believed(replace(rates, ceiling=rates.now), 1.0, 0.0).contradicted
