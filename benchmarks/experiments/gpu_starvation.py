"""Is a GPU's starvation what the profiler says? Its events against torch.profiler's own trace of the same steps.

    python -m feedline.benchmarks.experiments.gpu_starvation [--repeats 3 --workers 2 --plants decode none compute]

`tests/profiling/scripts/planted.py` trains on the GPU under `profiling.profile_run` while torch.profiler traces sixty
of its steps: every kernel and copy with its time on the device, and when the loop asked for a batch and got it. By
the trace the device is starved of a step from when it has done what was launched before, but not before the loop
asks, until the batch is there. Both are of the same run, which the trace slows. Writes results/gpu-starvation.json.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, write
from feedline.benchmarks.measure.rounds import check_devices
from feedline.pipeline.base.errors import FeedlineError
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Step

PLANTS = ("decode", "none", "compute", "copy")
STEPS = 120
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
MARK = "loop"
"""What the script's own marks in the trace begin with: loop:got:31, loop:asks:31."""


def main() -> None:
    given = options(__doc__, "gpu-starvation.json", repeats=3, workers=2, plants=PLANTS)
    check_devices([1], "cuda", ["small_cnn"])
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        cells = {plant: partial(run, plant, folder, given.workers) for plant in given.plants}
        by_round = in_rounds(
            cells, given.repeats, lambda one: f"{one['events']:.2%}, by the trace {one['trace']:.2%}"
        )
    found = {plant: column(by_round, plant) for plant in given.plants}
    off = [abs(one["events"] - one["trace"]) for runs in found.values() for one in runs]
    summary = {"shares_off_median": median(off), "shares_off_worst": max(off), "n": len(off)}
    write(given.out, {"baseline": "torch.profiler's trace of the same steps", "summary": summary, "runs": found})
    show(("starved", "by events", "by the trace"),
         [(plant, *(f"{median(one[name] for one in runs):.2%}" for name in ("events", "trace")))
          for plant, runs in found.items()])  # fmt: skip


def run(plant: str, pictures: str, workers: int) -> dict[str, Any]:
    """The share of the traced steps' time in which the device was starved, both ways."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        argv = [str(SCRIPT), plant, pictures, "--samples", "1000000", "--workers", str(workers)]
        argv += ["--device", "cuda", "--trace", str(file)]
        recording = study(StudyConfig(argv=argv, steps=STEPS)).recording
        if not file.exists():
            raise FeedlineError(f"{plant}: the script wrote no trace (it ended by {recording.script.ended_by})")
        told = by_trace(json.loads(file.read_text())["traceEvents"])
    steps = sorted(recording.steps, key=lambda step: step.start_s)
    return {**compared(steps, told), "wait_fraction": sum(s.wait_s for s in steps) / sum(s.duration_s for s in steps)}


def compared(steps: Sequence[Step], told: Mapping[int, float]) -> dict[str, Any]:
    """`told`: seconds by the step's number, as the loop counts batches; in the last one the trace is written."""
    traced = {number: steps[number] for number in told if number < len(steps) and number != max(told)}
    whole_s = sum(step.duration_s for step in traced.values())
    return {
        "events": sum(step.starved_s or 0.0 for step in traced.values()) / whole_s,
        "trace": sum(told[number] for number in traced) / whole_s,
        "steps": len(traced),
    }


def by_trace(events: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds in which the device was starved of each step's batch, by the events of a Chrome trace (µs). The first
    traced step is left out: what was launched before it is not known."""
    got: dict[int, float] = {}
    asks: dict[int, float] = {}
    ends: list[tuple[float, float]] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        begin, end = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0.0))
        words = str(event.get("name", "")).split(":")
        if event.get("cat") in ON_DEVICE:
            ends.append((begin, end))
        elif event.get("cat") == "user_annotation" and words[0] == MARK and len(words) == 3:
            (got if words[1] == "got" else asks)[int(words[2])] = end if words[1] == "asks" else begin

    starved: dict[int, float] = {}
    for number, came in got.items():
        if (asked := asks.get(number - 1)) is not None:
            busy_until = max((end for begin, end in ends if begin < came), default=asked)
            starved[number] = max(0.0, came - max(asked, busy_until)) / 1e6
    return starved


if __name__ == "__main__":
    end_with(main)
