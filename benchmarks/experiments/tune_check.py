"""Does `feedline tune` find what the whole grid finds? Within 5 % of its best, in a quarter of its time.

    python -m feedline.benchmarks.experiments.tune_check SPLIT [--cases small_cnn:64 mobilenet_v2:96] [--rounds 3]

For each case (model and image size) the whole grid is measured first: 0 to twice the cores' workers, batches of 32,
64 and 128, prefetch 2 and 4, in rounds of random order. Then tune runs three times with a quarter of the grid's time
as its budget. The settings it chose and the grid's best are then measured anew, interleaved in rounds: the highest of
many noisy medians is too high, so the grid's own figure would be no fair mark. Adds the cases to
results/tune-grid.json.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, write
from feedline.benchmarks.grid import Cell
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.rounds import Bench, Measure
from feedline.benchmarks.tune import TuneConfig, cell_of, phrase_of, tune
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record.host import describe_host

RUNS = 3
DUEL_ROUNDS = 7
WITHIN = 0.95
IN_TIME = 0.25


def main() -> int:
    given = options(__doc__, "tune-grid.json", "split", cases=("small_cnn:64", "mobilenet_v2:96"), rounds=3)
    kept = json.loads(given.out.read_text())["cases"] if given.out.exists() else {}
    cores = usable_cores()
    for name in given.cases:
        model, _, px = name.partition(":")
        if not px.isdigit():
            raise UsageError(f"{name!r} is not MODEL:PX, as small_cnn:64")
        config = TuneConfig(
            split=given.split, model=model, image_size=int(px), cores=cores, most_workers=min(16, 2 * cores)
        )
        with Bench() as bench:
            kept[name] = case(config, bench.measure, given.rounds)
        window = "1 s after at least 1 s and until the stock of batches is steady, each in a fresh process"
        write(given.out, {"window": window, "cases": kept})
        show(name, kept[name])
    return 0 if all(one["all_within"] and one["all_in_time"] for one in kept.values()) else 1


def case(config: TuneConfig, measure: Measure, count: int) -> dict[str, Any]:
    """Grid, tunings, duel."""
    started_s = time.monotonic()
    cells = [
        cell_of(workers, batch, prefetch)
        for workers in range(config.most_workers + 1)
        for batch in config.batch_sizes
        for prefetch in ((2, 4) if workers else (2,))
    ]
    grid = rates_of(config, measure, cells, count)
    grid_s = time.monotonic() - started_s
    best = max(cells, key=lambda cell: estimate(grid[cell.key]).value)
    budget = replace(config, budget_s=max(5.0, IN_TIME * grid_s))
    found = [tune(budget, measure) for _ in range(RUNS)]
    chosen = [Cell(settings={name: one["best"][name] for name in best.settings}) for one in found]
    duel = rates_of(config, measure, [best, *chosen], DUEL_ROUNDS)
    tunings = [tuning(cell, best, duel, one, grid_s) for cell, one in zip(chosen, found, strict=True)]
    return {
        "host": describe_host(),
        "grid_cells": len(grid),
        "grid_windows_per_cell": count,
        "grid_seconds": grid_s,
        "grid_best": dict(best.settings),
        "grid_rates": {phrase_of(cell): estimate(grid[cell.key]).value for cell in cells},
        "duel_rounds": DUEL_ROUNDS,
        "tunings": tunings,
        "all_within": all(one["ratio_to_best"] >= WITHIN for one in tunings),
        "all_in_time": all(one["share_of_grid_time"] <= IN_TIME for one in tunings),
    }


def rates_of(config: TuneConfig, measure: Measure, cells: Sequence[Cell], count: int) -> dict[str, list[float]]:
    """samples/s by cell, one per round; each window as tune itself measures."""
    windows = {cell.key: partial(measure, config.subject(cell)) for cell in cells}
    by_round = in_rounds(windows, count, lambda window: f"{window.samples_per_s:,.0f} samples/s")
    return {key: [window.samples_per_s for window in column(by_round, key)] for key in windows}


def tuning(
    chosen: Cell, best: Cell, duel: Mapping[str, Sequence[float]], found: Mapping[str, Any], grid_s: float
) -> dict[str, Any]:
    ratio = compare(duel[chosen.key], duel[best.key]).ratio if chosen.key != best.key else None
    return {
        "chosen": dict(chosen.settings),
        "tried": len(found["tried"]),
        "seconds": found["seconds_used"],
        "share_of_grid_time": found["seconds_used"] / grid_s,
        "ratio_to_best": ratio.value if ratio else 1.0,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


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
