"""Two runs against each other: nothing is said to have changed that the errors do not bear."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.difference import versus
from feedline.profiling.explain.verdict import Diagnosis, diagnose
from feedline.profiling.record.recording import LoaderPass
from tests.profiling.recordings import made


def of(wait: float, **fields: Any) -> Diagnosis:
    """So much of the time waiting, at ten batches a second."""
    seen = made(wait_s=0.1 * wait, compute_s=0.1 * (1 - wait))
    return diagnose(replace(seen, workers=[replace(one, **fields) for one in seen.workers]))


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (0.5, 0.3, ["waiting for data went from 50 % to 30 %"]),
        (0.3, 0.295, []),
        (0.3, 0.01, ["the bound went from data to compute", "waiting for data went from 30 % to 1.0 %"]),
        (0.115, 0.085, ["waiting for data went from 12 % to 8.5 %"]),  # either may be either
    ],
)
def test_what_changed(before: float, after: float, changes: list[str]) -> None:
    assert versus(of(before), of(after)).changes == changes


def test_a_top_stage_that_few_looks_show_has_not_changed() -> None:
    transforming = {"decode": 1.0, "transform": 9.0}
    told = "the workers' top stage went from decode to transform"
    assert told in versus(of(0.5), of(0.5, stages=transforming, seconds=10.0)).changes
    assert versus(of(0.5), of(0.5, stages=transforming, seconds=10.0, ticks=5)).changes == []


def test_what_ran_beside_other_programs_is_not_called_slower_for_good() -> None:
    alone, slow = diagnose(made(compute_s=0.01, wait_s=0.01)), diagnose(made(compute_s=0.1, wait_s=0.1))
    assert "slower beyond noise" in versus(alone, slow).statement
    machine = replace(slow.measured.machine, others_cores=1.3)
    beside = replace(slow, measured=replace(slow.measured, machine=machine))
    words = versus(alone, beside, ("before", "after")).statement
    assert "beyond noise" not in words and "beside after other programs took 1.3 of the 4 cores" in words


def test_what_epochs_begin_with_counts_where_all_were_seen_whole() -> None:
    """The same loop, once with workers that live on."""
    passes = [
        [LoaderPass(epoch=epoch, samples=320, start_s=start_s, end_s=0.0) for epoch in range(6)]
        for start_s in (0.95, 0.05)
    ]
    slow, kept = (diagnose(made(wait_s=0.01, compute_s=0.08, passes=each)) for each in passes)
    found = versus(slow, kept)
    assert found.ratio == pytest.approx(0.9 + 0.94, rel=0.1) and "faster beyond noise" in found.statement
    unseen = diagnose(made(wait_s=0.01, compute_s=0.08))
    assert versus(slow, unseen).ratio == pytest.approx(1.0, abs=0.01), "between batches, as of the other one"


def test_a_start_that_was_seen_once_is_no_sure_difference() -> None:
    """Two runs of the same script."""
    passes = [
        [LoaderPass(epoch=epoch, samples=320, start_s=start_s, end_s=0.0) for epoch in range(2)]
        for start_s in (0.5, 0.7)
    ]
    found = versus(*(diagnose(made(wait_s=0.01, compute_s=0.08, passes=each)) for each in passes))
    assert found.ratio != pytest.approx(1.0, abs=0.05) and found.statement.startswith("No difference")


def test_steps_and_samples_are_not_divided() -> None:
    samples = made()
    steps = replace(samples, loaders=[replace(samples.loaders[0], kind="unwatched")])
    found = versus(diagnose(steps), diagnose(samples))
    assert found.ratio is None and found.statement == "A counts steps and B samples: their rates cannot be compared."
