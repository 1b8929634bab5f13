"""What does watching cost? The same script with and without the verdict pass, in turn.

    python -m feedline.benchmarks.experiments.overhead [--repeats 8 --samples 4000 --workers 1 --plant decode
        --device cpu]

`tests/profiling/scripts/planted.py` runs over a fixed number of samples, in fresh processes and random order within
each repeat. The script writes down how long its loop took, so that imports and start-up do not count.
`accounted` is what the recording itself says: events times their measured cost, and the samplers' CPU time. Writes
results/overhead.json.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, write
from feedline.benchmarks.measure.intervals import estimate
from feedline.pipeline.base.errors import FeedlineError
from feedline.profiling.launch import launched
from feedline.profiling.record.journal import StudyConfig

WARM_UP = 20  # batches; as the script has it


def main() -> None:
    given = options(__doc__, "overhead.json", repeats=8, samples=4000, workers=1, plant="decode",
                    device="cpu")  # fmt: skip
    load_before = os.getloadavg()[0]
    accounted: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        took = Path(folder) / "took"
        argv = [str(SCRIPT), given.plant, folder, "--samples", str(given.samples), "--workers", str(given.workers)]
        argv += ["--log", str(took), "--device", given.device]

        def off() -> float:
            subprocess.run([sys.executable, *argv], check=True)
            return float(took.read_text())

        def verdict() -> float:
            with launched(StudyConfig(argv=argv)) as done:
                if done.status:
                    raise FeedlineError(f"the script ended with {done.status} while it was watched")
                accounted.append(done.recording.overhead.fraction or 0.0)
                return float(took.read_text())

        by_round = in_rounds({"off": off, "verdict": verdict}, given.repeats)
    ratio = estimate([one["verdict"] / one["off"] for one in by_round])
    figures = {
        "accounted_fraction": {"median": statistics.median(accounted), "worst": max(accounted), "n": len(accounted)},
        "seconds_over_off": {"verdict": asdict(ratio)},
    }
    about = {
        "load_average": [load_before, os.getloadavg()[0]],
        "warm_up_batches": WARM_UP,
        "baseline": "the same script unwatched, in the same repeat",
        "loop_s": {name: column(by_round, name) for name in ("off", "verdict")},
    }
    write(given.out, {**about, **figures})
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    end_with(main)
