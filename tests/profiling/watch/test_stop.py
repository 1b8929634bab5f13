"""An exact clock: when is enough enough?"""

import random
from pathlib import Path

import pytest

from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.watch import stop
from feedline.profiling.watch.stop import HELD_S, LONGEST_S, Steadiness, StopRule

TRAINS, HELPED = ({"ended_by": by} for by in (None, "itself"))


def watched_s(durations: list[float], pause_s: float = 0.0) -> float | None:
    """Seconds until it is steady, for steps of 10 samples; None if never."""
    steadiness, now = Steadiness(), 0.0
    for duration in durations:
        now += duration + pause_s
        steadiness.add(now, 10, duration)
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


@pytest.mark.parametrize(
    ("config", "by", "least"),
    [
        (StudyConfig(seconds=3.0), "seconds", 301),
        (StudyConfig(legs=("normal",)), "seconds", 301),
        (StudyConfig(seconds=3.0, steps=10_000), "seconds", 301),
        (StudyConfig(seconds=3.0, steps=310), "steps", 310),  # the step that rank 0 names is a later one
    ],
)
def test_ranks_leave_at_the_same_step_whoever_is_ahead(
    tmp_path: Path, config: StudyConfig, by: str, least: int
) -> None:
    """A hundred steps a second; the second rank began half a second later."""
    journal = Journal(tmp_path)
    for rank in range(2):
        journal.write(f"trainer-{rank}", TRAINS)
    rules = [StopRule(config, journal) for _ in range(2)]
    left: dict[int, int] = {}
    for step in range(20_000):
        for rank, rule in enumerate(rules):
            now = step / 100 + rank / 2
            rule.steadiness.add(now, 8, 0.01)
            reason = rule.reached(now, steps=step, ranks=2, rank=rank, held=False)
            if reason and rank not in left:
                left[rank] = step
                assert reason == by
        if len(left) == 2:
            break
    assert left[0] == left[1] >= least
    assert by == "seconds" or left[0] == least


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (StudyConfig(seconds=3.0), "apart"),
        (StudyConfig(steps=100, legs=("normal",)), "apart"),
        (StudyConfig(steps=100), None),
        (StudyConfig(), None),
    ],
)
def test_ranks_of_several_machines_are_refused_what_all_must_agree_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: StudyConfig, reason: str | None
) -> None:
    monkeypatch.setattr(stop, "MEET_S", 0.1)
    journal = Journal(tmp_path)
    for rank in (2, 3):
        journal.write(f"trainer-{rank}", TRAINS)
    journal.write("trainer-helper", HELPED)
    rule = StopRule(config, journal)
    seen = [rule.reached(step / 100, steps=step, ranks=4, rank=2, held=False) for step in range(6)]
    assert seen == [None, None, None, reason, None, None]


def test_ranks_that_are_not_there_yet_are_none_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one evaluates, and they wait for it; or the launcher says that all are here."""
    monkeypatch.setattr(stop, "MEET_S", 0.1)
    rules = [StopRule(StudyConfig(seconds=9.0), Journal(tmp_path)) for _ in range(2)]
    alone = {"ranks": 2, "rank": 0, "held": False}
    assert not any(rules[0].reached(step / 100, steps=step, trained=False, **alone) for step in range(9))
    assert "apart" in [rules[0].reached(step / 100, steps=step, **alone) for step in range(9)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert not any(rules[1].reached(step / 100, steps=step, **alone) for step in range(9))


def test_a_diagnostic_run_ends_with_a_pass_but_not_too_soon() -> None:
    rule = StopRule(StudyConfig(legs=("normal",)), Journal(Path()))
    seen = [rule.reached(now, steps=5, ranks=1, rank=0, held=held)
            for now, held in [(0.0, False), (HELD_S - 1, True), (HELD_S + 1, False), (HELD_S + 1, True)]]  # fmt: skip
    assert seen == [None, None, None, "seconds"]


@pytest.mark.parametrize(
    ("steps", "seconds", "reason", "ended"),
    [(200, 3.0, "steps", 200), (400, 3.0, "seconds", 301), (400, 0.0, "seconds", 2)],
)
def test_of_steps_and_seconds_what_comes_first_ends_it(steps: int, seconds: float, reason: str, ended: int) -> None:
    rule = StopRule(StudyConfig(steps=steps, seconds=seconds), Journal(Path()))
    seen = [rule.reached(step / 100, steps=step, ranks=1, rank=0, held=False) for step in range(500)]
    first = next(step for step, one in enumerate(seen) if one)
    assert seen[first] == reason and abs(first - ended) <= 1


def test_a_first_step_that_compiles_the_model_does_not_count() -> None:
    rule = StopRule(StudyConfig(seconds=20.0), Journal(Path()))
    seen = [rule.reached(now, steps=steps, ranks=1, rank=0, held=False)
            for now, steps in [(0.0, 0), (60.0, 1), (79.0, 9), (81.0, 10)]]  # fmt: skip
    assert seen == [None, None, None, "seconds"]
