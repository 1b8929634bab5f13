"""A finished comparison in plain words, and as the record's `cells`. Pure; claims only what its intervals show."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from feedline.benchmarks.comparison import Results
from feedline.benchmarks.grid import AXES, Cell, Grid, phrase
from feedline.benchmarks.measure.intervals import Comparison
from feedline.benchmarks.measure.window import per_second
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record import units

FULL = 0.9
"""Share of the usable cores from which they are called full."""
NEAR = 0.10
"""An undecided cell whose median is farther off than this is not offered as the equal of the best."""
MOST_SENTENCES = 8


def record_of(results: Results) -> dict[str, Any]:
    """What `feedline compare --json` writes, less its frame."""
    grid, cells, best, cores = results.config.grid, results.cells, results.best(), usable_cores()
    against = {cell.key: results.against(cell, best) for cell in cells if cell.key != best.key}
    near = [cell for cell in cells if cell.key == best.key or is_near(against[cell.key])]
    tied = [cell for cell in near if not any(results.beats(o, cell) for o in near if o.key != cell.key)] or [best]
    chosen = min(tied, key=lambda cell: cell.cost)
    steps = [(axis, a, b, results.against(a, b)) for axis in grid.varied for a, b in step_pairs(cells, axis, chosen)]
    failed = {grid.name(cell): results.failed[cell.key] for cell in grid.cells() if cell.key in results.failed}
    if len(cells) == 1:
        sentences = [f"Only {grid.name(best)} could be measured: {results.estimate(best).value:,.0f} samples/s."]
    elif all(comparison.outcome != "slower" for comparison in against.values()):
        sentences = [no_difference(results, list(against.values()))]
    else:
        named = {cell.key for cell in (*tied, best)}
        unsettled = [c for c in cells if c.key not in named and against[c.key].outcome != "slower"]
        first = opening(results, chosen, [cell for cell in tied if cell.key != chosen.key], unsettled)
        sentences = [first, *(sentence(results, *step, cores) for step in steps)][:MOST_SENTENCES]
    sentences += [f"{name} could not be measured: {why}." for name, why in failed.items()]
    compared = [(cell, best, against[cell.key]) for cell in cells if cell.key != best.key]
    compared += [(a, b, comparison) for _, a, b, comparison in steps]
    return {
        "axes": {name: list(values) for name, values in grid.axes.items()},
        "cells": [cell_record(results, cell, against.get(cell.key)) for cell in cells],
        "statement": " ".join(sentences),
        "failed": failed,
        "claims": list({(a.key, b.key): claim(grid, a, b, comparison) for a, b, comparison in compared}.values()),
        "results": str(results.path),
        "window_s": results.config.window_s,
        "usable_cores": cores,
    }


def claim(grid: Grid, a: Cell, b: Cell, comparison: Comparison) -> dict[str, Any]:
    """What table or statement say of a pair: `a` against `b`, by name."""
    ratio = comparison.ratio.record("ratio")
    return {"a": grid.name(a), "b": grid.name(b), "outcome": comparison.outcome, **ratio}


def is_near(against: Comparison) -> bool:
    return against.outcome != "slower" and against.ratio.value > 1 / (1 + NEAR)


def step_pairs(cells: Sequence[Cell], axis: str, chosen: Cell) -> list[tuple[Cell, Cell]]:
    """Along one axis, the other settings as in the chosen cell: each value and the one before it; values without an
    order each beside the chosen one."""
    fixed = {name: value for name, value in chosen.settings.items() if name != axis}
    line = [cell for cell in cells if fixed.items() <= cell.settings.items()]
    if AXES[axis].kind is str:
        return [(chosen, cell) for cell in line if cell.key != chosen.key]
    return [(b, a) for a, b in pairwise(sorted(line, key=lambda cell: cell.settings[axis]))]


def cell_record(results: Results, cell: Cell, against: Comparison | None) -> dict[str, Any]:
    """`against` the best; None: it is the best."""
    return {
        **cell.settings,
        "name": results.config.grid.name(cell),
        **results.estimate(cell).record(),
        "best": against is None,
        "ratio_to_best": against.ratio.value if against else 1.0,
        "outcome": against.outcome if against else "best",
        "cores_used": cores_used(results, cell),
        "wait_fraction": per_second(results.windows[cell.key].values(), "wait_s"),
        "split": str(results.config.splits[cell.key]),
    }


def cores_used(results: Results, cell: Cell) -> float:
    return per_second(results.windows[cell.key].values(), "trainer_cpu_s", "worker_cpu_s")


# --- words --------------------------------------------------------------------------------------------


def no_difference(results: Results, others: Sequence[Comparison]) -> str:
    """Each of the others was compared with the best one, and with no other."""
    cells, pair = results.cells, len(others) == 1
    names = " and ".join(map(results.config.grid.name, cells)) if len(cells) < 4 else "all settings"
    if all(against.outcome == "same" for against in others):
        return f"No difference: {names} are within {reach(others)} of {'each other' if pair else 'the best'}."
    between = names if pair else "the best and the others"
    return f"No difference could be shown between {between}: it is within {reach(others)}, the noise here."


def reach(comparisons: Sequence[Comparison]) -> str:
    """The farthest end of the intervals from 1: `±4 %`, or `a factor of 3.2` beyond double."""
    ratios = [comparison.ratio for comparison in comparisons]
    ends = [abs(end - 1) for ratio in ratios for end in (ratio.low, ratio.high) if end is not None]
    far = max(ends, default=1.0)
    return f"±{100 * far:.0f} %" if far <= 1 else f"a factor of {units.number(1 + far, 2)}"


def opening(results: Results, chosen: Cell, tied: Sequence[Cell], unsettled: Sequence[Cell]) -> str:
    """The best, what ties with it, and what its intervals do not exclude."""
    name, measured = results.config.grid.name, results.estimate(chosen)

    def listed(cells: Sequence[Cell]) -> str:
        return ", ".join(map(name, cells[:3])) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")

    words = f"Best: {name(chosen)}, {measured.value:,.0f} samples/s"
    if measured.low is not None and measured.high is not None:
        words += f" ({measured.low:,.0f}–{measured.high:,.0f})"
    words += f"; {listed(tied)} could not be shown to be faster" if tied else ""
    words += f"; that it beats {listed(unsettled)} is not shown" if unsettled else ""
    return f"{words}."


def sentence(results: Results, axis: str, a: Cell, b: Cell, against: Comparison, cores: float) -> str:
    """`2 workers beat 1 worker by 31 % (27 to 35 %).`"""
    if against.outcome == "slower":
        a, b, against = b, a, results.against(b, a)
    names = phrase(axis, a.settings[axis]), phrase(axis, b.settings[axis])
    if against.outcome == "faster":
        beat = "beat" if AXES[axis].noun and a.settings[axis] != 1 else "beats"
        value, low, high = against.ratio.value, against.ratio.low or 0.0, against.ratio.high or 0.0
        gain = f" by {100 * (value - 1):.0f} % ({100 * (low - 1):.0f} to {100 * (high - 1):.0f} %)"
        if value >= 2:
            gain = f": {value:.1f} times as fast ({low:.1f} to {high:.1f})"
        return f"{names[0][0].upper()}{names[0][1:]} {beat} {names[1]}{gain}."
    full = axis == "num_workers" and cores_used(results, b) > FULL * cores
    shown = "there is no difference" if against.outcome == "same" else "no difference could be shown"
    why = f": the {cores:g} cores are full" if full else ""
    return f"Between {names[0]} and {names[1]} {shown} ({reach([against])}){why}."
