"""What a diagnostic run saw beside its verdict, from the journal: legs, lines, and why there are not all of them."""

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from feedline.profiling.record.journal import Journal
from feedline.profiling.record.recording import Leg, Line
from feedline.profiling.record.rows import LegRow, LineRow

MOST_FUNCTIONS = 12
"""Functions in a recording, those with the most time first; beside those that the user named."""


# --- legs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How far the windows got."""

    began: bool = False
    whole: bool = False
    """All ranks had theirs."""
    window: str | None = None
    """The leg whose window was not finished."""
    why: str = ""
    """What the director says of it."""


def progress(journal: Journal) -> Progress:
    told = list(journal.all("legs-"))
    broken = next((one for one in told if one["why"]), None) or next((one for one in told if one["window"]), None)
    if not told or broken is None:
        return Progress(began=bool(told), whole=bool(told))
    return Progress(began=True, window=broken["window"], why=broken["why"])


def legs(journal: Journal) -> list[Leg]:
    """Ranks' rates add up."""
    told = {one["rank"]: [LegRow(*row) for row in one["windows"]] for one in journal.all("legs-")}
    by_leg: dict[tuple[str, int | None], dict[int, list[LegRow]]] = {}
    for rank, rows in told.items():
        for row in rows:
            by_leg.setdefault((row.leg, row.processes), {}).setdefault(rank, []).append(row)
    return [_leg(by_rank, len(told)) for by_rank in by_leg.values()]


def _leg(by_rank: dict[int, list[LegRow]], ranks: int) -> Leg:
    """Windows count that all ranks had."""
    turns = min(map(len, by_rank.values())) if len(by_rank) == ranks else 0
    windows = [[rows[turn] for rows in by_rank.values()] for turn in range(turns)]
    rows = [row for window in windows for row in window]
    name, count = next((row.leg, row.processes) for rows in by_rank.values() for row in rows)
    cpu_s = [row.worker_cpu_s / row.samples for row in rows if row.worker_cpu_s is not None and row.samples]
    used = [(sum(row.trainer_cpu_s for row in window), sum(row.samples for row in window)) for window in windows]
    return Leg(
        name=name,  # type: ignore[arg-type]
        num_workers=count,
        samples_per_s=[sum(row.samples / row.seconds for row in window if row.seconds) for window in windows],
        window_s=[max(row.seconds for row in window) for window in windows],
        worker_cpu_s_per_sample=sum(cpu_s) / len(cpu_s) if cpu_s else None,
        trainer_cpu_s_per_sample=[] if name == "loader_only" else [own_s / max(1, many) for own_s, many in used],
        note="; ".join(Counter(row.note for row in rows if row.note)),
        dropped=min((row.dropped or 0.0 for row in rows), default=None) if name == "cold" else None,
    )


# --- lines --------------------------------------------------------------------------------------------

Function = tuple[str, int, str, str]
"""File, first line, name, where it ran."""


def lines(journal: Journal) -> list[Line]:
    """Merged over processes per function, the functions with the most time first, lines in their order. What the user
    named is kept, however little it took."""
    merged: dict[Function, dict[int, list[float]]] = {}
    named: set[tuple[str, int]] = set()
    for told in journal.all("lines-"):
        named |= {(file, first) for file, first in told.get("named", [])}
        for row in (LineRow(*values) for values in told["functions"]):
            key = (row.file, row.first_line, row.function, told["where"])
            into = merged.setdefault(key, defaultdict(lambda: [0.0, 0.0]))
            for number, hits, seconds in row.timings:
                into[int(number)][0] += hits
                into[int(number)][1] += seconds
    totals = {key: sum(seconds for _, seconds in of_lines.values()) for key, of_lines in merged.items()}
    ranked = sorted(merged, key=lambda key: -totals[key])
    kept = [key for place, key in enumerate(ranked) if place < MOST_FUNCTIONS or key[:2] in named]
    return [line for key in kept for line in _lines_of(key, merged[key], totals[key])]


def _lines_of(key: Function, of_lines: dict[int, list[float]], total_s: float) -> Iterator[Line]:
    file, _, function, where = key
    for number, (hits, seconds) in sorted(of_lines.items()):
        yield Line(
            file=file,
            function=function,
            line=number,
            hits=int(hits),
            seconds=seconds,
            fraction=seconds / total_s if total_s else 0.0,
            source=linecache.getline(file, number).strip(),
            where=where,
        )
