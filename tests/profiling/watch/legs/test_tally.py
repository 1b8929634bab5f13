"""Steps of a window, by an exact clock."""

import pytest

from feedline.profiling.watch.legs import tally
from feedline.profiling.watch.legs.tally import Clocks, Tally


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(Clocks, "now", lambda: Clocks(self.now_s, self.now_s / 2))
        monkeypatch.setattr(tally.time, "perf_counter", lambda: self.now_s)


def window(clock: Clock, steps: str) -> Tally:
    """n: a step of 0.1 s; x: one of a second in which a pass begins or ends. A hundred samples each."""
    found = Tally(window_s=1.0, least_steps=4)
    for step in steps:
        found.asks()
        clock.now_s += 1.0 if step == "x" else 0.1
        found.add(100, apart=step == "x")
    return found


def test_what_lies_between_passes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = window(Clock(monkeypatch), "nnnnnxxnnnnn").counted()
    assert found.samples / found.seconds == pytest.approx(1000)
    assert found.cpu_s == pytest.approx(found.seconds / 2)


@pytest.mark.parametrize("steps", ["xxxx", "xxxnxxx"])
def test_passes_of_a_batch_or_two_are_the_loop(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    clock = Clock(monkeypatch)
    found = window(clock, steps).counted()
    assert (found.samples, found.seconds) == (100 * len(steps), pytest.approx(clock.now_s))


def test_a_window_is_full_when_what_counts_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not window(Clock(monkeypatch), "nnnnnxxnnnn").full
    assert window(Clock(monkeypatch), "nnnnnnnnnnn").full
    assert not window(Clock(monkeypatch), "xxx").full  # too few steps
    assert window(Clock(monkeypatch), "nnnnnn" + "x" * 5 + "n" * 4).full is False
    assert window(Clock(monkeypatch), "n" * 9 + "x" * 10).full  # never mind what is left out, after ten times as long


def test_batches_that_come_in_turns_are_counted_by_whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers that hand over theirs at once, every 0.4 s."""
    clock, found = Clock(monkeypatch), Tally(window_s=1.0, least_steps=4, turn=3)
    while not found.full:
        found.asks()
        clock.now_s += 0.4 if found.steps % 3 == 0 else 0.0
        found.add(100, apart=False)
    assert (found.counted().samples, found.counted().seconds) == (900, pytest.approx(1.2))
