"""A finished comparison in plain words, and as the record's `cells`. Pure; claims only what its intervals show."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from feedline.benchmarks.compare import Results, beats, best_of
from feedline.benchmarks.grid import Cell, cheaper, phrase
from feedline.benchmarks.measure.intervals import Comparison
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record import units

FULL = 0.9
"""Share of the usable cores from which they are called full."""
NEAR = 0.10
"""An undecided cell whose median is farther off than this is not offered as the equal of the best."""
MOST_SENTENCES = 8


def record_of(results: Results) -> dict[str, Any]:
    """What `feedline compare --json` writes, less its frame."""
    grid, cores = results.config.grid, usable_cores()
    failed = {grid.name(cell): results.failed[cell.key] for cell in grid.cells() if cell.key in results.failed}
    missing = (f"{name} could not be measured: {why}." for name, why in failed.items())
    return {
        "axes": {name: list(values) for name, values in grid.axes.items()},
        "cells": cells_record(results),
        "statement": " ".join([statement(results, cores), *missing]),
        "failed": failed,
        "claims": claims(results),
        "results": str(results.path),
        "window_s": results.config.window_s,
        "usable_cores": cores,
    }


def cells_record(results: Results) -> list[dict[str, Any]]:
    """In the order of the grid."""
    best = best_of(results, results.cells())
    rows: list[dict[str, Any]] = []
    for cell in results.cells():
        measured, against = results.estimate(cell), results.against(cell, best)
        rows.append(
            {
                **cell.settings,
                "name": results.config.grid.name(cell),
                "samples_per_s": measured.value,
                "low": measured.low,
                "high": measured.high,
                "n": measured.n,
                "best": cell.key == best.key,
                "ratio_to_best": against.ratio.value,
                "outcome": "best" if cell.key == best.key else against.outcome,
                "cores_used": per_second(results, cell, "trainer_cpu_s", "worker_cpu_s"),
                "wait_fraction": per_second(results, cell, "wait_s"),
                "split": str(results.config.splits[cell.key]),
            }
        )
    return rows


def per_second(results: Results, cell: Cell, *names: str) -> float | None:
    """The sum of these fields over the cell's windows, per second measured."""
    windows = list(results.windows.get(cell.key, {}).values())
    seconds = sum(window.seconds for window in windows)
    return sum(getattr(window, name) for window in windows for name in names) / seconds if seconds else None


def claims(results: Results) -> list[dict[str, Any]]:
    """Every pair that table and statement compare, with what is said of it: `a` against `b`, by name."""
    grid, cells = results.config.grid, results.cells()
    best = best_of(results, cells)
    pairs = [(cell, best) for cell in cells if cell.key != best.key]
    pairs += [pair for axis in grid.varied for pair in step_pairs(results, axis, choice(ties(results, best)))]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for a, b in pairs:
        against = results.against(a, b)
        key = (grid.name(a), grid.name(b))
        ratio = {"ratio": against.ratio.value, **{k: v for k, v in asdict(against.ratio).items() if k != "value"}}
        rows[key] = {"a": key[0], "b": key[1], "outcome": against.outcome, **ratio}
    return list(rows.values())


# --- words --------------------------------------------------------------------------------------------


def statement(results: Results, cores: float) -> str:
    """Sentences: which cell is best, which tie with it, and what each step along each axis gives."""
    grid, cells = results.config.grid, results.cells()
    if len(cells) == 1:
        return f"Only {grid.name(cells[0])} could be measured: {results.estimate(cells[0]).value:,.0f} samples/s."
    best = best_of(results, cells)
    if all(results.against(cell, best).outcome != "slower" for cell in cells if cell.key != best.key):
        return no_difference(results, cells, best)
    tied = ties(results, best)
    chosen = choice(tied)
    named = {cell.key for cell in tied} | {best.key}
    unsettled = [c for c in cells if c.key not in named and results.against(c, best).outcome != "slower"]
    sentences = [opening(results, chosen, [cell for cell in tied if cell.key != chosen.key], unsettled)]
    for axis in grid.varied:
        sentences += [step(results, axis, a, b, cores) for a, b in step_pairs(results, axis, chosen)]
    return " ".join(sentences[:MOST_SENTENCES])


def ties(results: Results, best: Cell) -> list[Cell]:
    """The best and what ties with it (not clearly slower, nor far off), less what another of these beats."""

    def ties_with_best(cell: Cell) -> bool:
        against = results.against(cell, best)
        return against.outcome != "slower" and against.ratio.value > 1 / (1 + NEAR)

    near = [cell for cell in results.cells() if cell.key == best.key or ties_with_best(cell)]
    return [c for c in near if not any(beats(results, o, c) for o in near if o.key != c.key)] or [best]


def choice(tied: Sequence[Cell]) -> Cell:
    """Of those that nothing beats, the one that takes least."""
    chosen = tied[0]
    for cell in tied[1:]:
        chosen = cell if cheaper(cell, chosen) else chosen
    return chosen


def no_difference(results: Results, cells: Sequence[Cell], best: Cell) -> str:
    """All cells tie with the best."""
    others = [results.against(cell, best) for cell in cells if cell.key != best.key]
    names = " and ".join(results.config.grid.name(cell) for cell in cells) if len(cells) < 4 else "all settings"
    if all(against.outcome == "same" for against in others):
        return f"No difference: {names} are within {reach(others)} of each other."
    return f"No difference could be shown between {names}: it is within {reach(others)}, the noise here."


def reach(comparisons: Sequence[Comparison]) -> str:
    """The farthest end of the intervals from 1: `±4 %`, or `a factor of 3.2` beyond double."""
    ends = [abs(end - 1) for one in comparisons for end in (one.ratio.low, one.ratio.high) if end is not None]
    far = max(ends, default=1.0)
    return f"±{100 * far:.0f} %" if far <= 1 else f"a factor of {units.number(1 + far, 2)}"


def opening(results: Results, chosen: Cell, tied: Sequence[Cell], unsettled: Sequence[Cell]) -> str:
    """The best, what ties with it, and what its intervals do not exclude."""
    measured = results.estimate(chosen)
    words = f"Best: {results.config.grid.name(chosen)}, {measured.value:,.0f} samples/s"
    if measured.low is not None and measured.high is not None:
        words += f" ({measured.low:,.0f}–{measured.high:,.0f})"
    if tied:
        words += f"; {listed(results, tied)} could not be shown to be faster"
    if unsettled:
        words += f"; that it beats {listed(results, unsettled)} is not shown"
    return f"{words}."


def listed(results: Results, cells: Sequence[Cell], most: int = 3) -> str:
    names = ", ".join(results.config.grid.name(cell) for cell in cells[:most])
    return names + (f" and {len(cells) - most} more" if len(cells) > most else "")


def step_pairs(results: Results, axis: str, chosen: Cell) -> list[tuple[Cell, Cell]]:
    """Along one axis, the other settings as in the chosen cell: each value and the one before it; values without an
    order each beside the chosen one."""
    fixed = {name: value for name, value in chosen.settings.items() if name != axis}
    line = [cell for cell in results.cells() if fixed.items() <= cell.settings.items()]
    if all(isinstance(cell.settings[axis], int | float) for cell in line):
        line.sort(key=lambda cell: cell.settings[axis])
        return [(after, before) for before, after in pairwise(line)]
    return [(chosen, cell) for cell in line if cell.key != chosen.key]


def step(results: Results, axis: str, a: Cell, b: Cell, cores: float) -> str:
    """`2 workers beat 1 worker by 31 % (27 to 35 %).`"""
    against = results.against(a, b)
    if against.outcome == "slower":
        a, b, against = b, a, results.against(b, a)
    name_a, name_b = phrase(axis, a.settings[axis]), phrase(axis, b.settings[axis])
    if against.outcome == "faster":
        plural = axis in ("num_workers", "devices", "shards") and a.settings[axis] != 1
        return f"{capital(name_a)} {'beat' if plural else 'beats'} {name_b}{gain(against)}."
    used = per_second(results, b, "trainer_cpu_s", "worker_cpu_s") if axis == "num_workers" else None
    why = f": the {cores:g} cores are full" if used is not None and used > FULL * cores else ""
    shown = "there is no difference" if against.outcome == "same" else "no difference could be shown"
    return f"Between {name_a} and {name_b} {shown} ({reach([against])}){why}."


def gain(against: Comparison) -> str:
    value, low, high = against.ratio.value, against.ratio.low or 0.0, against.ratio.high or 0.0
    if value >= 2:
        return f": {value:.1f} times as fast ({low:.1f} to {high:.1f})"
    return f" by {100 * (value - 1):.0f} % ({100 * (low - 1):.0f} to {100 * (high - 1):.0f} %)"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
