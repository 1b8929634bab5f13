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
from feedline.benchmarks.grid import phrases
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.rounds import Bench, Measure
from feedline.benchmarks.tune import Setting, TuneConfig, searched, space
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
    settings = space(config, range(config.most_workers + 1))
    grid = rates_of(config, measure, settings, count)
    grid_s = time.monotonic() - started_s
    best = max(settings, key=lambda setting: estimate(grid[setting]).value)
    budget = replace(config, budget_s=max(5.0, IN_TIME * grid_s))
    results = [searched(budget, measure) for _ in range(RUNS)]
    chosen = [Setting(**{name: result["best"][name] for name in Setting._fields}) for result in results]
    duel = rates_of(config, measure, [best, *chosen], DUEL_ROUNDS)
    tunings = [tuning(setting, best, duel, one, grid_s) for setting, one in zip(chosen, results, strict=True)]
    return {
        "host": describe_host(),
        "grid_cells": len(grid),
        "grid_windows_per_cell": count,
        "grid_seconds": grid_s,
        "grid_best": best._asdict(),
        "grid_rates": {phrases(setting._asdict()): estimate(grid[setting]).value for setting in settings},
        "duel_rounds": DUEL_ROUNDS,
        "tunings": tunings,
        "all_within": all(one["ratio_to_best"] >= WITHIN for one in tunings),
        "all_in_time": all(one["share_of_grid_time"] <= IN_TIME for one in tunings),
    }


def rates_of(
    config: TuneConfig, measure: Measure, settings: Sequence[Setting], count: int
) -> dict[Setting, list[float]]:
    """samples/s by setting, one per round; each window as tune itself measures."""
    windows = {phrases(setting._asdict()): partial(measure, config.subject(setting)) for setting in settings}
    by_round = in_rounds(windows, count, lambda window: f"{window.samples_per_s:,.0f} samples/s")
    return {
        setting: [window.samples_per_s for window in column(by_round, phrases(setting._asdict()))]
        for setting in settings
    }


def tuning(
    chosen: Setting, best: Setting, duel: Mapping[Setting, Sequence[float]], result: Mapping[str, Any], grid_s: float
) -> dict[str, Any]:
    ratio = compare(duel[chosen], duel[best]).ratio if chosen != best else None
    return {
        "chosen": chosen._asdict(),
        "tried": len(result["tried"]),
        "seconds": result["seconds_used"],
        "share_of_grid_time": result["seconds_used"] / grid_s,
        "ratio_to_best": ratio.value if ratio else 1.0,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
    }


def show(name: str, one: Mapping[str, Any]) -> None:
    best = phrases(one["grid_best"])
    print(f"{name}: the grid of {one['grid_cells']} took {one['grid_seconds']:.0f} s, its best {best}")
    for run in one["tunings"]:
        interval = f" ({run['low']:.3f} to {run['high']:.3f})" if run["low"] else ""
        settings = phrases(run["chosen"])
        print(f"  tune: {settings}: {run['ratio_to_best']:.3f}{interval} of the best in "
              f"{run['share_of_grid_time']:.2f} of the time ({run['tried']} settings tried)")  # fmt: skip


if __name__ == "__main__":
    end_with(main)
