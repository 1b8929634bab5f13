"""Does `feedline compare` contradict itself? The same grids three times each, in peace and beside a noisy neighbour.

    python -m feedline.benchmarks.experiments.consistency DATASET [--work DIR] [--rounds 6] [--window 1]
                                              [--neighbours none,noisy]

Two grids: workers 0,1,2,4 with two codecs, and the same setting twice. Every run is `feedline compare` in a fresh
process with results of its own; the neighbour is a process per core that burns CPU at random. All claims of the runs
of one grid, whoever the neighbour was, are held against each other: a run contradicts another if it says that a
beats b where the other says that b beats a, or that there is no difference, or where a chain of "beats" leads back.
Runs that are done are kept in --work and not repeated. Writes results/compare-consistency.json.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.compare import read_lines
from feedline.benchmarks.exit import end_with
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "compare-consistency.json"
RUNS = 3
GRIDS = {
    "grid": ["--num-workers", "0,1,2,4", "--codec", "jpeg,raw"],
    "twice": ["--num-workers", "2,2", "--codec", "jpeg"],
}
NEIGHBOURS = ("none", "noisy")
BURN = """
import os, random, sys, time
rng, parent = random.Random(int(sys.argv[1])), os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + rng.expovariate(1 / 2.0)
    while time.monotonic() < end:
        pass
    time.sleep(rng.expovariate(1 / 3.0))
"""
"""Busy for 2 s and idle for 3 s on average; ends with its parent, however that ends."""

Claims = Sequence[Mapping[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="prepared as jpeg and raw, or raw images")
    parser.add_argument("--work", type=Path, help="kept between runs; default: a temporary folder")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--window", type=float, default=1.0)
    parser.add_argument("--neighbours", default=",".join(NEIGHBOURS))
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    neighbours = said.neighbours.split(",")
    if not set(neighbours) <= set(NEIGHBOURS):
        parser.error(f"--neighbours {said.neighbours}: known are {', '.join(NEIGHBOURS)}")
    with tempfile.TemporaryDirectory(prefix="feedline-consistency-") as scratch:
        options = ["--rounds", str(said.rounds), "--window", f"{said.window:g}"]
        found = {name: runs(name, said.dataset, options, said.work or Path(scratch), neighbours) for name in GRIDS}
    record = {
        "command": "python -m feedline.benchmarks.experiments.consistency DATASET",
        "host": describe_host(),
        "usable_cores": usable_cores(),
        "options": " ".join(options),
        "neighbours": neighbours,
        "warm_up": "0.5 s and what was prefetched, in each window",
        "n": RUNS * len(neighbours),
        "grids": {name: judged(name, of_grid) for name, of_grid in found.items()},
    }
    write_atomically(said.json, (json.dumps(record, indent=1) + "\n").encode())
    return show(record)


def runs(
    name: str, dataset: Path, options: Sequence[str], work: Path, neighbours: Sequence[str]
) -> list[dict[str, Any]]:
    """All runs of one grid; runs with and without a neighbour take turns."""
    found: list[dict[str, Any]] = []
    for number in range(RUNS):
        for neighbour in neighbours:
            folder = work / f"{name}-{neighbour}-{number}"
            argv = ["compare", str(dataset), *GRIDS[name], *options, "--image-size", "128", "--work", str(folder)]
            step = commands.Step(name=folder.name, argv=argv)
            done = commands.reusable(step, work / "records")
            if done is None:
                with burning(usable_cores() if neighbour == "noisy" else 0, seed=number):
                    done = commands.run(step, work / "records", keep_text=True)
            found.append(kept(done.record, number, neighbour))
    return found


def kept(record: Mapping[str, Any], number: int, neighbour: str) -> dict[str, Any]:
    """What the result file keeps of one run."""
    windows = [line["window"] for line in read_lines(Path(record["results"])) if "window" in line]
    others = [window["others_cores"] for window in windows if window["others_cores"] is not None]
    return {
        "run": number,
        "neighbour": neighbour,
        "seconds": record["seconds"],
        "windows": len(windows),
        "others_cores_median": statistics.median(others) if others else None,
        "statement": record["statement"],
        "claims": record["claims"],
    }


@contextmanager
def burning(processes: int, seed: int) -> Generator[None]:
    """So many processes that are busy at random meanwhile."""
    rng = random.Random(seed)
    started = [subprocess.Popen([sys.executable, "-c", BURN, str(rng.randrange(1 << 30))]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def judged(name: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    claims = [run["claims"] for run in found]
    return {
        "options": " ".join(GRIDS[name]),
        "runs": list(found),
        "beats": sum(len(beats(of_run)) for of_run in claims),
        "contradictions": contradictions(claims),
    }


def beats(claims: Claims) -> set[tuple[str, str]]:
    """(winner, loser)."""
    ahead = {(one["a"], one["b"]) for one in claims if one["outcome"] == "faster"}
    return ahead | {(one["b"], one["a"]) for one in claims if one["outcome"] == "slower"}


def contradictions(runs: Sequence[Claims]) -> list[str]:
    """In words; across all runs and within each."""
    won = {pair for claims in runs for pair in beats(claims)}
    level = {(one["a"], one["b"]) for claims in runs for one in claims if one["outcome"] == "same"}
    found = [f"{a} beats {b}, and there is no difference" for a, b in won if (a, b) in level or (b, a) in level]
    found += [f"{a} beats {b}, and {b} beats {a} (in one step or several)" for a, b in won if leads(won, b, a)]
    return sorted(found)


def leads(won: Iterable[tuple[str, str]], start: str, goal: str) -> bool:
    """A chain of "beats" goes from `start` to `goal`."""
    seen, ahead = {start}, [start]
    while ahead:
        here = ahead.pop()
        following = {loser for winner, loser in won if winner == here} - seen
        seen |= following
        ahead += following
    return goal in seen


def show(record: Mapping[str, Any]) -> int:
    """1 where anything is contradicted."""
    for name, grid in record["grids"].items():
        for run in grid["runs"]:
            print(f"{name}, neighbour {run['neighbour']}, run {run['run'] + 1}: {run['statement']}")
        print(f"{name}: {len(grid['runs'])} runs, {grid['beats']} claims of a difference, ", end="")
        print(f"{len(grid['contradictions'])} contradictions", *grid["contradictions"], sep="\n  ")
    return 1 if any(grid["contradictions"] for grid in record["grids"].values()) else 0


if __name__ == "__main__":
    end_with(main)
