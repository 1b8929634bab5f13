"""Does `feedline tune` find what the whole grid finds? Within 5 % of its best, in a quarter of its time.

    python -m feedline.benchmarks.experiments.tune_check SPLIT [--cases small_cnn:64,mobilenet_v2:96] [--rounds 3]

For each case (model and image size) the whole grid is measured first: 0 to twice the cores' workers, batches of 32,
64 and 128, prefetch 2 and 4, in rounds of random order. Then tune runs three times with a quarter of the grid's time
as its budget. The settings it chose and the grid's best are then measured anew, interleaved in rounds: the highest of
many noisy medians is too high, so the grid's own figure would be no fair mark. Adds the cases to
results/tune-grid.json.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feedline.benchmarks.exit import end_with
from feedline.benchmarks.grid import Cell
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.rounds import Bench, rounds
from feedline.benchmarks.tune import Measure, Search, TuneConfig, phrase_of, tune
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "tune-grid.json"
RUNS = 3
DUEL_ROUNDS = 7
WITHIN = 0.95
IN_TIME = 0.25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", type=Path, help="a prepared train split")
    parser.add_argument("--cases", default="small_cnn:64,mobilenet_v2:96", help="MODEL:PX, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="windows per cell of the grid")
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    kept = json.loads(said.json.read_text())["cases"] if said.json.exists() else {}
    cores = usable_cores()
    for name in said.cases.split(","):
        model, _, px = name.partition(":")
        if not px.isdigit():
            raise UsageError(f"{name!r} is not MODEL:PX, as small_cnn:64")
        config = TuneConfig(
            split=said.split, model=model, image_size=int(px), cores=cores, most_workers=min(16, 2 * cores)
        )
        with Bench() as bench:
            kept[name] = case(config, bench.measure, said.rounds)
        write(said.json, kept)
        show(name, kept[name])
    return 0 if all(one["all_within"] and one["all_in_time"] for one in kept.values()) else 1


def case(config: TuneConfig, measure: Measure, count: int) -> dict[str, Any]:
    """Grid, tunings, duel."""
    started = time.monotonic()
    grid = measure_all(config, measure, whole_grid(config), count)
    grid_s = time.monotonic() - started
    best = max(grid, key=lambda key: estimate(grid[key]).value)
    budget = replace(config, budget_s=max(5.0, IN_TIME * grid_s))
    found = [tune(budget, measure) for _ in range(RUNS)]
    chosen = [Cell(settings={name: one["best"][name] for name in json.loads(best)}) for one in found]
    duel = measure_all(config, measure, {cell.key: cell for cell in [Cell(settings=json.loads(best)), *chosen]},
                       DUEL_ROUNDS)  # fmt: skip
    tunings = [tuning(cell, best, duel, one, grid_s) for cell, one in zip(chosen, found, strict=True)]
    return {
        "host": describe_host(),
        "grid_cells": len(grid),
        "grid_windows_per_cell": count,
        "grid_seconds": grid_s,
        "grid_best": json.loads(best),
        "grid_rates": {phrase_of(Cell(settings=json.loads(key))): estimate(grid[key]).value for key in grid},
        "duel_rounds": DUEL_ROUNDS,
        "tunings": tunings,
        "all_within": all(one["ratio_to_best"] >= WITHIN for one in tunings),
        "all_in_time": all(one["share_of_grid_time"] <= IN_TIME for one in tunings),
    }


def whole_grid(config: TuneConfig) -> dict[str, Cell]:
    settings = [
        {"num_workers": workers, "batch_size": batch, "prefetch_factor": prefetch}
        for workers in range(config.most_workers + 1)
        for batch in config.batch_sizes
        for prefetch in ((2, 4) if workers else (2,))
    ]
    return {cell.key: cell for cell in (Cell(settings=one) for one in settings)}


def measure_all(
    config: TuneConfig, measure: Measure, cells: Mapping[str, Cell], count: int
) -> dict[str, list[float]]:
    """samples/s by cell, one per round; each window as tune itself measures."""
    search = Search(config=replace(config, budget_s=float("inf")), measure=measure)
    rates: dict[str, list[float]] = {key: [] for key in cells}
    for number, key in rounds(list(cells), count):
        settings = cells[key].settings
        window = search.run(settings["num_workers"], settings["batch_size"], settings["prefetch_factor"], again=True)
        assert window is not None  # no budget
        rates[key].append(window.samples_per_s)
        print(f"\rround {number + 1} of {count}, {len(cells)} settings", end="", file=sys.stderr)
    print(file=sys.stderr)
    return rates


def tuning(
    chosen: Cell, best: str, duel: Mapping[str, Sequence[float]], found: Mapping[str, Any], grid_s: float
) -> dict[str, Any]:
    ratio = compare(duel[chosen.key], duel[best]).ratio if chosen.key != best else None
    return {
        "chosen": dict(chosen.settings),
        "tried": len(found["tried"]),
        "seconds": found["seconds_used"],
        "share_of_grid_time": found["seconds_used"] / grid_s,
        "ratio_to_best": ratio.value if ratio else 1.0,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


def write(path: Path, cases: Mapping[str, Any]) -> None:
    record = {
        "command": "python -m feedline.benchmarks.experiments.tune_check SPLIT",
        "window": "1 s after at least 1 s and until the stock of batches is steady, each in a fresh process",
        "cases": cases,
    }
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())


def show(name: str, one: Mapping[str, Any]) -> None:
    best = phrase_of(Cell(settings=one["grid_best"]))
    print(f"{name}: the grid of {one['grid_cells']} took {one['grid_seconds']:.0f} s, its best {best}")
    for run in one["tunings"]:
        interval = f" ({run['low']:.3f} to {run['high']:.3f})" if run["low"] else ""
        settings = phrase_of(Cell(settings=run["chosen"]))
        print(f"  tune: {settings}: {run['ratio_to_best']:.3f}{interval} of the best in "
              f"{run['share_of_grid_time']:.2f} of the time ({run['tried']} settings tried)")  # fmt: skip


if __name__ == "__main__":
    end_with(main)
