"""A finished comparison in plain words, and as the record's `cells`. Pure; claims only what its intervals show."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from feedline.benchmarks.compare import Results, best_of
from feedline.benchmarks.grid import Cell, cheaper, phrase
from feedline.benchmarks.intervals import Comparison
from feedline.profiling.host import usable_cores

FULL = 0.9
"""Share of the usable cores from which they are called full."""
NEAR = 0.10
"""An undecided cell whose median is farther off than this is not offered as the equal of the best."""
MOST_SENTENCES = 8


def cells_record(results: Results) -> list[dict[str, Any]]:
    """As in the record of `feedline compare`, in the order of the grid."""
    found: list[dict[str, Any]] = []
    best = best_of(results, results.config.grid.cells())
    for cell in results.config.grid.cells():
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
        "statement": statement(results, cores),
        "results": str(results.path),
        "window_s": results.config.window_s,
        "usable_cores": cores,
    }


def statement(results: Results, cores: float) -> str:
    """Sentences: who is best, who ties with it, and what each step along each axis gives."""
    cells = results.config.grid.cells()
    best = best_of(results, cells)
    tied = [cell for cell in cells if cell.key == best.key or level(results.against(cell, best))]
    if all(results.against(cell, best).outcome != "slower" for cell in cells if cell.key != best.key):
        return nothing_shown(results, cells, best)
    chosen = choice(tied)
    sentences = [opening(results, chosen, best, tied)]
    for axis in results.config.grid.varied:
        sentences += steps(results, axis, chosen, cores)
    return " ".join(sentences[:MOST_SENTENCES])


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
        return f"No difference: {names} are within ±{reach(others)} of each other."
    return f"No difference could be shown between {names}: it is within ±{reach(others)}, the noise here."


def reach(found: Sequence[Comparison]) -> str:
    """The farthest end of the intervals from 1, as a percentage."""
    ends = [abs(end - 1) for one in found for end in (one.ratio.low, one.ratio.high) if end is not None]
    return f"{max(ends, default=1.0):.0%}".replace("%", " %")


def opening(results: Results, chosen: Cell, best: Cell, tied: Sequence[Cell]) -> str:
    grid = results.config.grid
    measured = results.estimate(chosen)
    words = f"Best: {grid.name(chosen)}, {measured.value:,.0f} samples/s"
    if measured.low is not None and measured.high is not None:
        words += f" ({measured.low:,.0f}–{measured.high:,.0f})"
    others = [grid.name(cell) for cell in tied if cell.key != chosen.key]
    if not others:
        return f"{words}."
    listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"{words}; no more could be shown for {listed}."


def steps(results: Results, axis: str, chosen: Cell, cores: float) -> list[str]:
    """Along one axis, the other settings as in the chosen cell: what each value gives over the one before."""
    line = [cell for cell in results.config.grid.cells() if differs_only_in(cell, chosen, axis)]
    numeric = all(isinstance(cell.settings[axis], int | float) for cell in line)
    if numeric:
        line.sort(key=lambda cell: cell.settings[axis])
        return [step(results, axis, after, before, cores) for before, after in pairwise(line)]
    return [
        step(results, axis, chosen, cell, cores)
        for cell in line
        if cell.key != chosen.key
    ]  # fmt: skip


def differs_only_in(cell: Cell, other: Cell, axis: str) -> bool:
    return all(cell.settings[name] == other.settings[name] for name in cell.settings if name != axis)


def step(results: Results, axis: str, a: Cell, b: Cell, cores: float) -> str:
    """`4 workers beat 2 workers by 31 ± 4 %.`"""
    found = results.against(a, b)
    name_a, name_b = phrase(axis, a.settings[axis]), phrase(axis, b.settings[axis])
    if found.outcome == "faster":
        return beats(found, name_a, name_b, verb(a, axis))
    if found.outcome == "slower":
        return beats(results.against(b, a), name_b, name_a, verb(b, axis))
    why = full_cores(results, b, cores) if axis == "num_workers" else ""
    if found.outcome == "same":
        return capital(f"between {name_a} and {name_b} there is no difference (±{reach([found])}){why}.")
    return capital(f"between {name_a} and {name_b} no difference could be shown (±{reach([found])}){why}.")


def beats(found: Comparison, winner: str, loser: str, verb: str) -> str:
    """With the interval around the ratio: `4 workers beat 2 workers by 31 ± 4 %.`"""
    ratio = found.ratio
    half = 0.0 if ratio.low is None or ratio.high is None else (ratio.high - ratio.low) / 2
    if ratio.value >= 2:
        return capital(f"{winner} {verb} {loser}: {ratio.value:.1f} ± {half:.1f} times as fast.")
    return capital(f"{winner} {verb} {loser} by {100 * (ratio.value - 1):.0f} ± {100 * half:.0f} %.")


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
