"""What a faster model gives, by how much of the time the loop computes."""

from typing import Any

import pytest

from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Compute, LoaderPass, Recording
from tests.profiling.recordings import made

GPU = Compute(device="cuda:0", channels_last=True)
SMALL = {"decode": 0.0001}
MAKING = {"decode": 0.04 / 32}


def autocast(seen: Recording) -> Prediction:
    """It makes the model half as fast again."""
    return next(one for one in diagnose(seen).predictions if one.family == "autocast")


def starting(**costs: Any) -> Recording:
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.4, end_s=0.0) for epoch in range(6)]
    return made(wait_s=0.0, starved_s=0.0, passes=passes, **costs)


@pytest.mark.parametrize(
    ("seen", "gain"),
    [
        (
            made(workers=0, wait_s=0.04, starved_s=0.04, compute_s=0.06, compute=GPU, stages=MAKING),
            1 / (0.4 + 0.6 / 1.5),
        ),
        (starting(compute_s=0.06, stages=SMALL, compute=GPU), 1 / (0.4 + 0.6 / 1.5)),
        (made(wait_s=0.06, starved_s=0.06, compute_s=0.04, stages=SMALL, compute=GPU), 1 / (0.6 + 0.4 / 1.5)),
        (made(wait_s=0.0, starved_s=0.025, python_s=0.05, compute_s=0.05, compute=GPU), 1.3),
    ],
    ids=["it makes its batches itself", "it waits for epochs to begin", "it waits for handing over", "Python"],
)
def test_it_gains_what_amdahl_says(seen: Recording, gain: float) -> None:
    found = autocast(seen)
    assert not found.vain
    assert found.gain == pytest.approx(gain, rel=0.06)


def test_it_gains_nothing_while_the_workers_are_the_limit() -> None:
    found = autocast(made(wait_s=0.06, starved_s=0.06, compute_s=0.03, compute=GPU))
    assert found.vain and "waits for its workers" in found.why


def test_python_of_the_scripts_own_is_predicted_as_an_upper_bound_and_says_so() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)).predictions[0]
    assert (found.family, found.at_most) == ("python", True)
    assert "what it would give if it cost nothing" in found.why
