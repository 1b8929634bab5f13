"""Does `feedline compare` contradict itself? The same grids three times each, in peace and beside a noisy neighbour.

    python -m feedline.benchmarks.experiments.consistency DATASET [--work DIR] [--rounds 6] [--window 1]
                                              [--neighbours none noisy]

Two grids: workers 0,1,2,4 with two codecs, and the same setting twice. Every run is `feedline compare` in a fresh
process with results of its own; the neighbour is a process per core that burns CPU at random. All claims of the runs
of one grid, whoever the neighbour was, are held against each other: a run contradicts another if it says that a
beats b where the other says that b beats a, or that there is no difference, or where a chain of "beats" leads back.
Runs that are done are kept in --work and not repeated. Writes results/compare-consistency.json.
"""

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline.benchmarks import commands
from feedline.benchmarks.comparison import read_lines
from feedline.benchmarks.experiments.harness import beside, end_with, options, write
from feedline.pipeline.base.process import usable_cores

RUNS = 3
GRIDS = {
    "grid": ["--num-workers", "0,1,2,4", "--codec", "jpeg,raw"],
    "twice": ["--num-workers", "2,2", "--codec", "jpeg"],
}
NOISE = """
import os, random, sys, time
rng, parent = random.Random(" ".join(sys.argv[1:])), os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + rng.expovariate(1 / 2.0)
    while time.monotonic() < end:
        pass
    time.sleep(rng.expovariate(1 / 3.0))
"""
"""Busy for 2 s and idle for 3 s on average; ends with its parent, however that ends."""

Claims = Sequence[Mapping[str, Any]]


def main() -> int:
    given = options(__doc__, "compare-consistency.json", "dataset", work=Path, rounds=6, window=1.0,
                    neighbours=("none", "noisy"))  # fmt: skip
    chosen = ["--rounds", str(given.rounds), "--window", f"{given.window:g}"]
    grids: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="feedline-consistency-") as scratch:
        for name, axes in GRIDS.items():
            runs = [
                run(name, given.dataset, chosen, given.work or Path(scratch), neighbour, number)
                for number in range(RUNS)
                for neighbour in given.neighbours
            ]
            claims = [one["claims"] for one in runs]
            grids[name] = {"options": " ".join(axes), "runs": runs, "beats": sum(len(beats(one)) for one in claims),
                           "contradictions": contradictions(claims)}  # fmt: skip
    figures = {
        "usable_cores": usable_cores(),
        "options": " ".join(chosen),
        "neighbours": given.neighbours,
        "warm_up": "0.5 s and what was prefetched, in each window",
        "n": RUNS * len(given.neighbours),
        "grids": grids,
    }
    write(given.out, figures)
    for name, grid in grids.items():
        for one in grid["runs"]:
            print(f"{name}, neighbour {one['neighbour']}, run {one['run'] + 1}: {one['statement']}")
        print(f"{name}: {len(grid['runs'])} runs, {grid['beats']} claims of a difference, "
              f"{len(grid['contradictions'])} contradictions", *grid["contradictions"], sep="\n  ")  # fmt: skip
    return 1 if any(grid["contradictions"] for grid in grids.values()) else 0


def run(name: str, dataset: Path, chosen: list[str], work: Path, neighbour: str, number: int) -> dict[str, Any]:
    """What the result file keeps of one run."""
    folder = work / f"{name}-{neighbour}-{number}"
    argv = ["compare", str(dataset), *GRIDS[name], *chosen, "--image-size", "128", "--work", str(folder)]
    with beside(usable_cores() if neighbour == "noisy" else 0, NOISE, str(number)):
        step = commands.Step(name=folder.name, argv=argv)
        record = commands.run(step, work / "records", keep_text=True).record
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


if __name__ == "__main__":
    end_with(main)
