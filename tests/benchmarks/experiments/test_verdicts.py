"""What counts as a right verdict."""

from typing import Any

import pytest

from feedline.benchmarks.experiments.verdicts import KINDS, judged, summary
from feedline.profiling.explain.verdict import diagnose
from tests.profiling.recordings import made

SMALL = {"read": 0.0001, "decode": 0.0002, "transform": 0.0001, "collate": 0.0001, "send": 0.0001}
CASES: dict[str, dict[str, Any]] = {
    "decode": {"workers": 1, "stages": SMALL | {"transform": 0.004}, "cores": 2},
    "collate": {"workers": 1, "stages": SMALL | {"collate": 0.004}, "cores": 2},
    "slow_worker": {"wait_s": 0.1, "compute_s": 0.01, "slow": 6.0},
    "serialise": {"wait_s": 0.09, "unpickle_s": 0.08, "compute_s": 0.02, "stages": SMALL},
    "compute": {"wait_s": 0.001, "compute_s": 0.1, "stages": SMALL},
    "main_thread": {"wait_s": 0.001, "compute_s": 0.02, "python_s": 0.08, "stages": SMALL},
}


@pytest.mark.parametrize("plant", list(CASES))
def test_a_run_fits_its_own_plant_and_no_other(plant: str) -> None:
    found = diagnose(made(**CASES[plant]))
    assert [name for name, kind in KINDS.items() if judged(kind, found)["right"]] == [plant]


def test_runs_are_counted_by_what_ran_beside_them() -> None:
    runs = [{"busy": busy, "right": right} for busy, right in ((0, True), (2, True), (2, False))]
    assert summary(runs) == {"0": {"right": 1, "of": 1}, "2": {"right": 1, "of": 2}}
