"""A finished comparison in plain words, and as the record's `cells`. Pure; claims only what its intervals show."""

from collections.abc import Sequence
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
LOPSIDED = 0.04
"""Ends of a ratio's interval that differ so much from ± their mean are given themselves."""
MOST_SENTENCES = 8


def cells_record(results: Results) -> list[dict[str, Any]]:
    """As in the record of `feedline compare`, in the order of the grid."""
    found: list[dict[str, Any]] = []
    best = best_of(results, results.cells())
    for cell in results.cells():
        measured, against = results.estimate(cell), results.against(cell, best)
        found.append(
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
                "cores_used": cores_used(results, cell),
                "wait_fraction": wait_fraction(results, cell),
                "split": str(results.config.splits[cell.key]),
            }
        )
    return found


def record_of(results: Results) -> dict[str, Any]:
    """What `feedline compare --json` writes, less its frame."""
    cores = usable_cores()
    return {
        "axes": {name: list(values) for name, values in results.config.grid.axes.items()},
        "cells": cells_record(results),
        "statement": " ".join([statement(results, cores), *failures(results)]),
        "failed": {results.config.grid.name(cell): why for cell, why in failed(results)},
        "claims": claims(results),
        "results": str(results.path),
        "window_s": results.config.window_s,
        "usable_cores": cores,
    }


def statement(results: Results, cores: float) -> str:
    """Sentences: who is best, who ties with it, and what each step along each axis gives."""
    cells = results.cells()
    if len(cells) == 1:
        alone = results.estimate(cells[0])
        return f"Only {results.config.grid.name(cells[0])} could be measured: {alone.value:,.0f} samples/s."
    best = best_of(results, cells)
    if all(results.against(cell, best).outcome != "slower" for cell in cells if cell.key != best.key):
        return nothing_shown(results, cells, best)
    tied = ties(results, best)
    chosen = choice(tied)
    named = {cell.key for cell in tied} | {best.key}
    unsettled = [c for c in cells if c.key not in named and results.against(c, best).outcome != "slower"]
    sentences = [opening(results, chosen, tied, unsettled)]
    for axis in results.config.grid.varied:
        sentences += [step(results, axis, a, b, cores) for a, b in step_pairs(results, axis, chosen)]
    return " ".join(sentences[:MOST_SENTENCES])


def failed(results: Results) -> list[tuple[Cell, str]]:
    return [(cell, results.failed[cell.key]) for cell in results.config.grid.cells() if cell.key in results.failed]


def failures(results: Results) -> list[str]:
    return [f"{results.config.grid.name(cell)} could not be measured: {why}." for cell, why in failed(results)]


def claims(results: Results) -> list[dict[str, Any]]:
    """Every pair that table and statement compare, with what is said of it: `a` against `b`, by name."""
    grid, cells = results.config.grid, results.cells()
    best = best_of(results, cells)
    chosen = choice(ties(results, best))
    pairs = [(cell, best) for cell in cells if cell.key != best.key]
    pairs += [pair for axis in grid.varied for pair in step_pairs(results, axis, chosen)]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for a, b in pairs:
        against = results.against(a, b)
        ratio = {"ratio": against.ratio.value, "low": against.ratio.low, "high": against.ratio.high}
        key = (grid.name(a), grid.name(b))
        found[key] = {"a": key[0], "b": key[1], "outcome": against.outcome, **ratio, "n": against.ratio.n}
    return list(found.values())


def ties(results: Results, best: Cell) -> list[Cell]:
    """The best and what is level with it, less what another of these beats."""
    near = [c for c in results.cells() if c.key == best.key or level(results.against(c, best))]
    unbeaten = [c for c in near if not any(beats(results, other, c) for other in near if other.key != c.key)]
    return unbeaten or [best]


def level(found: Comparison) -> bool:
    """Not clearly slower, and not far off either: what is neither is left unsaid."""
    return found.outcome != "slower" and found.ratio.value > 1 / (1 + NEAR)


def choice(tied: Sequence[Cell]) -> Cell:
    """Of those that nothing beats, the one that takes least."""
    chosen = tied[0]
    for cell in tied[1:]:
        chosen = cell if cheaper(cell, chosen) else chosen
    return chosen


def nothing_shown(results: Results, cells: Sequence[Cell], best: Cell) -> str:
    """All cells tie with the best."""
    others = [results.against(cell, best) for cell in cells if cell.key != best.key]
    names = " and ".join(results.config.grid.name(cell) for cell in cells) if len(cells) < 4 else "all settings"
    if all(found.outcome == "same" for found in others):
        return f"No difference: {names} are within {reach(others)} of each other."
    return f"No difference could be shown between {names}: it is within {reach(others)}, the noise here."


def reach(found: Sequence[Comparison]) -> str:
    """The farthest end of the intervals from 1: `±4 %`, or `a factor of 3.2` beyond double."""
    ends = [abs(end - 1) for one in found for end in (one.ratio.low, one.ratio.high) if end is not None]
    far = max(ends, default=1.0)
    return f"±{far:.0%}".replace("%", " %") if far <= 1 else f"a factor of {units.number(1 + far, 2)}"


def opening(results: Results, chosen: Cell, tied: Sequence[Cell], unsettled: Sequence[Cell]) -> str:
    """The best, what is level with it, and what its intervals do not exclude: nobody reads more into it than that."""
    measured = results.estimate(chosen)
    words = f"Best: {results.config.grid.name(chosen)}, {measured.value:,.0f} samples/s"
    if measured.low is not None and measured.high is not None:
        words += f" ({measured.low:,.0f}–{measured.high:,.0f})"
    others = [cell for cell in tied if cell.key != chosen.key]
    if others:
        words += f"; no more could be shown for {listed(results, others)}"
    if unsettled:
        words += f"; that it beats {listed(results, unsettled)} is not shown"
    return f"{words}."


def listed(results: Results, cells: Sequence[Cell], most: int = 3) -> str:
    names = ", ".join(results.config.grid.name(cell) for cell in cells[:most])
    return names + (f" and {len(cells) - most} more" if len(cells) > most else "")


def step_pairs(results: Results, axis: str, chosen: Cell) -> list[tuple[Cell, Cell]]:
    """Along one axis, the other settings as in the chosen cell: each value and the one before it; values without an
    order each beside the chosen one."""
    line = [cell for cell in results.cells() if differs_only_in(cell, chosen, axis)]
    if all(isinstance(cell.settings[axis], int | float) for cell in line):
        line.sort(key=lambda cell: cell.settings[axis])
        return [(after, before) for before, after in pairwise(line)]
    return [(chosen, cell) for cell in line if cell.key != chosen.key]


def differs_only_in(cell: Cell, other: Cell, axis: str) -> bool:
    return all(cell.settings[name] == other.settings[name] for name in cell.settings if name != axis)


def step(results: Results, axis: str, a: Cell, b: Cell, cores: float) -> str:
    """`4 workers beat 2 workers by 31 ± 4 %.`"""
    found = results.against(a, b)
    name_a, name_b = phrase(axis, a.settings[axis]), phrase(axis, b.settings[axis])
    if found.outcome == "faster":
        return gain(found, name_a, name_b, verb(a, axis))
    if found.outcome == "slower":
        return gain(results.against(b, a), name_b, name_a, verb(b, axis))
    why = full_cores(results, b, cores) if axis == "num_workers" else ""
    if found.outcome == "same":
        return capital(f"between {name_a} and {name_b} there is no difference ({reach([found])}){why}.")
    return capital(f"between {name_a} and {name_b} no difference could be shown ({reach([found])}){why}.")


def gain(found: Comparison, winner: str, loser: str, verb: str) -> str:
    """With the interval around the ratio: `4 workers beat 2 workers by 31 ± 4 %.`; its ends where it is lopsided."""
    value, low, high = found.ratio.value, found.ratio.low, found.ratio.high
    assert low is not None and high is not None  # or it would not be called faster
    lopsided = abs((high - value) - (value - low)) > LOPSIDED
    half = (high - low) / 2
    if value >= 2:
        said = f": {value:.1f} times as fast ({low:.1f} to {high:.1f})" if lopsided else (
            f": {value:.1f} ± {half:.1f} times as fast")  # fmt: skip
    elif lopsided:
        said = f" by {100 * (value - 1):.0f} % ({100 * (low - 1):.0f} to {100 * (high - 1):.0f} %)"
    else:
        said = f" by {100 * (value - 1):.0f} ± {100 * half:.0f} %"
    return capital(f"{winner} {verb} {loser}{said}.")


def verb(cell: Cell, axis: str) -> str:
    return "beat" if axis in ("num_workers", "devices", "shards") and cell.settings[axis] != 1 else "beats"


def full_cores(results: Results, cell: Cell, cores: float) -> str:
    used = cores_used(results, cell)
    return f": the {cores:g} cores are full" if used is not None and used > FULL * cores else ""


def cores_used(results: Results, cell: Cell) -> float | None:
    windows = list(results.windows.get(cell.key, {}).values())
    seconds = sum(window.seconds for window in windows)
    return sum(w.trainer_cpu_s + w.worker_cpu_s for w in windows) / seconds if seconds else None


def wait_fraction(results: Results, cell: Cell) -> float | None:
    windows = list(results.windows.get(cell.key, {}).values())
    seconds = sum(window.seconds for window in windows)
    return sum(window.wait_s for window in windows) / seconds if seconds else None


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
