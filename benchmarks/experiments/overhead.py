"""What does watching cost? The same script with and without the verdict pass, in turn.

    python -m feedline.benchmarks.experiments.overhead [--repeats 8 --samples 4000]

`tests/profiling/scripts/planted.py` runs over a fixed number of samples, in fresh processes and random order within
each repeat. The script writes down how long its loop took, so that imports and start-up do not count.
`accounted` is what the recording itself says: events times their measured cost, and the samplers' CPU time. Writes
results/overhead.json.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.benchmarks.measure.intervals import estimate
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.launch import launched
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "overhead.json"
WARM_UP = 20  # batches; as the script has it
MODES = ("off", "verdict")


def run(mode: str, argv: list[str], took: Path) -> tuple[float, float | None]:
    """Seconds of the loop, and the accounted share of a watched run."""
    if mode == "off":
        subprocess.run([sys.executable, *argv], check=True)
        return float(took.read_text()), None
    with launched(argv) as done:
        if done.status:
            raise SystemExit(f"the script ended with {done.status} under {mode}")
        return float(took.read_text()), done.recording.overhead.fraction


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    make_pictures(folder)
    took = folder / "took"
    argv = [str(SCRIPT), args.plant, str(folder), "--samples", str(args.samples), "--workers", str(args.workers)]
    argv += ["--log", str(took)]
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    accounted: list[float] = []
    dice = random.Random(0)
    for repeat in range(args.repeats):
        for mode in dice.sample(MODES, len(MODES)):
            loop_s, share = run(mode, argv, took)
            seconds[mode].append(loop_s)
            accounted += [share] if share is not None else []
            print(f"{repeat + 1}/{args.repeats} {mode:8} {loop_s:.2f} s", flush=True)
    ratios = {
        mode: asdict(estimate([one / off for one, off in zip(seconds[mode], seconds["off"], strict=True)]))
        for mode in MODES[1:]
    }
    told = {"median": statistics.median(accounted), "worst": max(accounted), "n": len(accounted)}
    return {"accounted_fraction": told, "seconds_over_off": ratios, "loop_s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--plant", default="decode")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        result = measure(Path(name), args)
    whole = {
        "command": f"python -m feedline.benchmarks.experiments.overhead --repeats {args.repeats} --samples {args.samples}",  # noqa: E501
        "host": describe_host(),
        "load_average": [load_before, os.getloadavg()[0]],
        "warm_up_batches": WARM_UP,
        "baseline": "the same script unwatched, in the same repeat",
        **result,
    }
    write_atomically(args.out, (json.dumps(whole, indent=1) + "\n").encode())
    print(json.dumps({name: result[name] for name in ("accounted_fraction", "seconds_over_off")}, indent=1))


if __name__ == "__main__":
    main()
