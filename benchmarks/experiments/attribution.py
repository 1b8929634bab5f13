"""Is the stage that costs the time the stage that is named? Planted costs, profiled, against what was planted.

    python -m feedline.benchmarks.experiments.attribution [--cost-ms 3 --seconds 12 --repeats 3]

`tests/profiling/scripts/planted.py` trains on small pictures with one cost planted in one place: it burns 3 ms, or
sleeps as long. Each case runs under `profiling.profile_run`, in turn; found is the stage's busy wall time per
sample. The truth is what the part with the plant took by the script's own clock: a sleep ends late on busy cores, and
the part has work of its own. What profiling cost is kept from every run. Writes results/attribution.json.
"""

import json
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, write
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "profiling" / "scripts" / "planted.py"
STAGES = {"decode": "transform", "read": "blocked", "transform": "transform", "collate": "collate"}
"""Where a cost is planted, and the stage it belongs to: the script's own Python that decodes is a transform to a
profiler, and the read sleeps."""
WARM_UP_S = 1.5


def main() -> None:
    given = options(__doc__, "attribution.json", cost_ms=3.0, seconds=12.0, repeats=3)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        cells = {stage: partial(run, stage, folder, given.cost_ms, given.seconds) for stage in STAGES}
        by_round = in_rounds(cells, given.repeats)
    costs = [one["overhead"] for runs in by_round for one in runs.values()]
    cases = {stage: summary(stage, column(by_round, stage)) for stage in STAGES}
    overhead = {"median": statistics.median(costs), "worst": max(costs), "n": len(costs)}
    figures = {
        "load_average": [load_before, os.getloadavg()[0]],
        "warm_up": "as the profiler's rule: see its recordings",
        "baseline": "the same part by the script's own clock, in the same run",
        "planted_ms": given.cost_ms,
        "cases": cases,
        "overhead_fraction": overhead,
    }
    write(given.out, figures)
    rows = [(stage, f"{case['error_median']:+.1%}", f"{case['error_worst']:+.1%}", case["top_stage_right"])
            for stage, case in cases.items()]  # fmt: skip
    show(("stage", "error", "worst", f"right of {given.repeats}"), rows)
    print(f"overhead {overhead}")


def make_pictures(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    for number in range(8):
        Image.fromarray(np.roll(pixels, number, 0)).resize((96, 96)).save(folder / f"{number}.jpg", quality=90)


def run(stage: str, pictures: str, cost_ms: float, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as clock:
        argv = [str(SCRIPT), stage, pictures, "--cost-ms", str(cost_ms), "--samples", "1000000", "--clock", clock]
        recording = study(StudyConfig(argv=argv, seconds=seconds)).recording
        took_ms = own_clock_ms(Path(clock), stage)
    samples = sum(worker.samples for worker in recording.workers)
    names = {name for worker in recording.workers for name in worker.stages}
    found_ms = {
        name: 1e3 * sum(worker.stages.get(name, 0.0) for worker in recording.workers) / samples for name in names
    }
    return {
        "took_ms": took_ms,
        "found_ms": found_ms[STAGES[stage]],
        "top_stage": max(found_ms.keys() - {"idle", "other"}, key=lambda name: found_ms[name]),
        "rest_fraction": found_ms.get("other", 0.0) / sum(found_ms.values()),
        "ticks": sum(worker.ticks for worker in recording.workers),
        "overhead": recording.overhead.fraction or 0.0,
    }


def own_clock_ms(clock: Path, part: str) -> float:
    """Per sample by the script's own clock, after its first seconds, over all workers."""
    spent_s, samples = 0.0, 0
    for path in clock.iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first = next((row for row in rows if row[0] > rows[0][0] + WARM_UP_S), rows[0])
        spent_s += rows[-1][2][part] - first[2][part]
        samples += rows[-1][1] - first[1]
    return 1e3 * spent_s / samples


def summary(stage: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [run["found_ms"] / run["took_ms"] - 1 for run in runs]
    return {
        "stage": STAGES[stage],
        "top_stage_right": sum(run["top_stage"] == STAGES[stage] for run in runs),
        "error_median": statistics.median(errors),
        "error_worst": max(errors, key=abs),
        "rest_fraction_worst": max(run["rest_fraction"] for run in runs),
        "runs": runs,
    }


if __name__ == "__main__":
    end_with(main)
