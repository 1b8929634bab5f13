"""Is the stage that costs the time the stage that is named? Planted costs, profiled, against what was planted.

    python -m feedline.benchmarks.experiments.attribution [--cost-ms 3 --seconds 12 --repeats 3]

`tests/profiling/scripts/planted.py` trains on small pictures with one cost planted in one place: it burns 3 ms, or
sleeps as long. Each case runs under `profiling.profile_run`, in turn; found is the stage's busy wall time per
sample. The
truth is what the part with the plant took by the script's own clock: a sleep ends late on busy cores, and the part
has work of its own. What profiling cost is kept from every run. Writes results/attribution.json.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from feedline.pipeline.base.files import write_atomically
from feedline.profiling.profile_run import StudyConfig, study
from feedline.profiling.record.host import describe_host
from feedline.profiling.record.recording import Recording

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "profiling" / "scripts" / "planted.py"
CASES = {"decode": "decode", "read": "read", "transform": "transform", "collate": "collate"}
"""Plant -> the stage it belongs to."""
WARM_UP_S = 1.5


def make_pictures(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    for number in range(8):
        Image.fromarray(np.roll(pixels, number, 0)).resize((96, 96)).save(folder / f"{number}.jpg", quality=90)


def per_sample_ms(recording: Recording) -> dict[str, float]:
    """Busy wall time of the workers' stages, per sample they prepared."""
    samples = sum(worker.samples for worker in recording.workers)
    stages = {name for worker in recording.workers for name in worker.stages}
    return {
        name: 1e3 * sum(worker.stages.get(name, 0.0) for worker in recording.workers) / samples
        for name in stages
        if samples
    }


def run(plant: str, pictures: Path, cost_ms: float, seconds: float) -> tuple[Recording, float]:
    """The recording, and milliseconds per sample that the part with the plant took."""
    with tempfile.TemporaryDirectory() as clock:
        argv = [str(SCRIPT), plant, str(pictures), "--cost-ms", str(cost_ms), "--samples", "1000000"]
        recording = study(StudyConfig(argv=[*argv, "--clock", clock], seconds=seconds)).recording
        return recording, took_ms(Path(clock), CASES[plant])


def took_ms(clock: Path, part: str) -> float:
    """By the script's own clock, after its first seconds, over all workers."""
    spent_s, samples = 0.0, 0
    for path in clock.iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first = next((row for row in rows if row[0] > rows[0][0] + WARM_UP_S), rows[0])
        spent_s += rows[-1][2][part] - first[2][part]
        samples += rows[-1][1] - first[1]
    return 1e3 * spent_s / samples


def measure(pictures: Path, cost_ms: float, seconds: float, repeats: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {plant: [] for plant in CASES}
    overheads: list[float] = []
    for repeat in range(repeats):
        for plant, stage in CASES.items():
            recording, truth_ms = run(plant, pictures, cost_ms, seconds)
            stages = per_sample_ms(recording)
            busy = {name: value for name, value in stages.items() if name not in ("idle", "other")}
            found[plant].append(
                {
                    "took_ms": truth_ms,
                    "found_ms": stages[stage],
                    "top_stage": max(busy, key=lambda name: busy[name]),
                    "rest_fraction": stages.get("other", 0.0) / sum(stages.values()),
                    "ticks": sum(worker.ticks for worker in recording.workers),
                }
            )
            overheads += [recording.overhead.fraction or 0.0]
            told = f"planted {cost_ms:g} ms, took {truth_ms:.2f} ms, found {stages[stage]:.2f} ms"
            print(f"{repeat + 1}/{repeats} {plant:10} {told}", flush=True)
    return {
        "planted_ms": cost_ms,
        "cases": {plant: _summary(plant, runs) for plant, runs in found.items()},
        "overhead_fraction": {"median": statistics.median(overheads), "worst": max(overheads), "n": len(overheads)},
    }


def _summary(plant: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [run["found_ms"] / run["took_ms"] - 1 for run in runs]
    return {
        "stage": CASES[plant],
        "top_stage_right": sum(run["top_stage"] == CASES[plant] for run in runs),
        "error_median": statistics.median(errors),
        "error_worst": max(errors, key=abs),
        "rest_fraction_worst": max(run["rest_fraction"] for run in runs),
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost-ms", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "attribution.json")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        make_pictures(Path(name))
        result = measure(Path(name), args.cost_ms, args.seconds, args.repeats)
    whole = {
        "command": f"python -m feedline.benchmarks.experiments.attribution --repeats {args.repeats} --seconds {args.seconds:g}",  # noqa: E501
        "host": describe_host(),
        "load_average": [load_before, os.getloadavg()[0]],
        "warm_up": "as the profiler's rule: see its recordings",
        "baseline": "the same part by the script's own clock, in the same run",
        **result,
    }
    args.out.parent.mkdir(exist_ok=True)
    write_atomically(args.out, (json.dumps(whole, indent=1) + "\n").encode())
    for plant, case in result["cases"].items():
        print(f"{plant:10} error {case['error_median']:+.1%} (worst {case['error_worst']:+.1%}), "
              f"top stage {case['top_stage_right']}/{args.repeats}")  # fmt: skip
    print(f"overhead {result['overhead_fraction']}")


if __name__ == "__main__":
    main()
