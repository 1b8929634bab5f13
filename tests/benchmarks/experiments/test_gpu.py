"""What the GPU experiments make of what they measured, without a GPU."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.benchmarks.experiments import gpu_feed, gpu_recipe, gpu_starvation
from feedline.benchmarks.experiments.verdicts import ON_GPU, judged
from feedline.benchmarks.gpu_check import Cell
from feedline.benchmarks.measure.window import Window
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Compute
from tests.profiling.recordings import made

SMALL = {"read": 0.0001, "decode": 0.0002, "transform": 0.0001, "collate": 0.0001, "send": 0.0001}


def window(rate: float) -> Window:
    return Window(samples=round(2 * rate), seconds=2.0, batches=9, wait_s=0.1, trainer_cpu_s=1.0, worker_cpu_s=2.0)


def test_enough_workers_are_the_fewest_that_reach_the_ceiling_of_their_round() -> None:
    free, two, four = Cell(64, "jpeg", 4, "m", True), Cell(64, "jpeg", 2, "m"), Cell(64, "jpeg", 4, "m")
    cells = {cell.name: cell for cell in (free, two, four)}
    rounds = [
        {free.name: window(1000), two.name: window(700), four.name: window(990)},
        {free.name: window(500), two.name: window(360), four.name: window(495)},  # the machine was slower
    ]
    found = gpu_feed.figures(cells, rounds)
    assert found["enough_workers"] == {"jpeg, 64 px": 4}
    assert [row["share"] for row in found["fed"]] == pytest.approx([0.71, 0.99])
    assert gpu_feed.figures(cells, [{two.name: window(700)}])["fed"][0]["share"] is None, "no ceiling yet"


def test_gains_are_over_the_same_round() -> None:
    rounds = [{gpu_recipe.AS_IS: 100.0, "bf16": 150.0}, {gpu_recipe.AS_IS: 50.0, "bf16": 75.0}, {"both": 1.0}]
    found = gpu_recipe.figures(rounds)
    assert found["variants"]["bf16"]["gain"] == pytest.approx(1.5) and found["variants"]["both"]["gain"] is None


def event(kind: str, name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur}


def test_a_trace_tells_of_what_the_device_was_starved() -> None:
    """Asked at 100, got at 400; work until 250 in one step, beyond the batch in the next, none in the third."""
    trace = [
        event("user_annotation", "loop:got:30", 0, 1),
        event("user_annotation", "loop:asks:30", 99, 1),
        event("kernel", "conv", 50, 200),
        event("user_annotation", "loop:got:31", 400, 1),
        event("gpu_memcpy", "HtoD", 410, 90),
        event("kernel", "conv", 500, 700),
        event("user_annotation", "loop:asks:31", 599, 1),
        event("user_annotation", "loop:got:32", 900, 1),
        event("user_annotation", "loop:asks:32", 1499, 1),
        event("user_annotation", "loop:got:33", 1800, 1),
        {"ph": "i", "cat": "kernel", "name": "no duration", "ts": 1},
        event("cpu_op", "aten::conv", 0, 5000),
    ]
    assert gpu_starvation.by_trace(trace) == pytest.approx({31: 150e-6, 32: 0.0, 33: 300e-6})


def test_both_ways_are_shares_of_the_same_steps() -> None:
    steps = made(wait_s=0.02, compute_s=0.08, starved_s=0.01, steps=4).steps
    found = gpu_starvation.compared(steps, {1: 0.02, 2: 0.0, 9: 1.0})
    assert found == pytest.approx({"events": 0.1, "trace": 0.1, "steps": 2})


GPU = Compute(device="cuda:0", channels_last=True, autocast=True)
CASES: dict[str, dict[str, Any]] = {
    "decode": {"workers": 1, "stages": SMALL | {"transform": 0.004}, "cores": 16, "wait_s": 0.09, "starved_s": 0.09,
               "compute_s": 0.01},
    "copy": {"wait_s": 0.001, "compute_s": 0.02, "copy_s": 0.02, "starved_s": 0.0, "compute": GPU},
    "sync": {"wait_s": 0.001, "compute_s": 0.1, "starved_s": 0.0, "idle_s": 0.05,
             "compute": replace(GPU, items=100, items_s=5.0)},
    "main_thread": {"wait_s": 0.001, "compute_s": 0.02, "python_s": 0.08, "starved_s": 0.0, "idle_s": 0.078,
                    "compute": GPU},
}  # fmt: skip


@pytest.mark.parametrize("plant", list(CASES))
def test_a_gpu_s_causes_are_told_apart(plant: str) -> None:
    found = diagnose(made(**{"stages": SMALL} | CASES[plant]))
    assert judged(ON_GPU[plant], found)["right"], (found.bound, found.predictions[0].remedy)
