"""What a diagnostic run saw beside its verdict, from the journal: legs, lines, and why there are not all of them."""

import linecache
from collections import Counter, defaultdict
from dataclasses import dataclass

from feedline.profiling.record.journal import Journal, LegRow, LineRow
from feedline.profiling.record.recording import EndedBy, Leg, Line

MOST_FUNCTIONS = 12  # functions in a recording, those with the most time first; beside those that the user named


@dataclass(frozen=True)
class Progress:
    """How far the windows got."""

    ended_by: EndedBy | None = None  # what ended the verdict's steps; None: no windows followed them
    whole: bool = False  # all ranks had theirs
    window: str | None = None  # the leg whose window was not finished
    why: str = ""  # what the director says of it


def progress(journal: Journal) -> Progress:
    ranks = list(journal.all("legs-"))
    broken = next((one for key in ("why", "window") for one in ranks if one[key]), None)
    ended_by = next((one["ended_by"] for one in ranks), None)
    if broken is None:
        return Progress(ended_by=ended_by, whole=bool(ranks))
    return Progress(ended_by=ended_by, window=broken["window"], why=broken["why"])


def legs(journal: Journal) -> list[Leg]:
    """Ranks' rates add up."""
    ranks = {one["rank"]: [LegRow(*row) for row in one["windows"]] for one in journal.all("legs-")}
    by_leg: dict[tuple[str, int | None], dict[int, list[LegRow]]] = {}
    for rank, rows in ranks.items():
        for row in rows:
            by_leg.setdefault((row.leg, row.processes), {}).setdefault(rank, []).append(row)
    return [_leg(name, count, list(rows.values()), len(ranks)) for (name, count), rows in by_leg.items()]


def _leg(name: str, num_workers: int | None, by_rank: list[list[LegRow]], ranks: int) -> Leg:
    """Windows count that all ranks had, and that no neighbour has disturbed."""
    had = list(zip(*by_rank, strict=False)) if len(by_rank) == ranks else []
    windows = [window for window in had if not any(row.disturbed for row in window)]
    rows = [row for window in windows for row in window]
    cpu_s = [row.worker_cpu_s / row.samples for row in rows if row.worker_cpu_s is not None and row.samples]
    used = [(sum(row.trainer_cpu_s for row in window), sum(row.samples for row in window)) for window in windows]
    return Leg(
        name=name,  # type: ignore[arg-type]
        num_workers=num_workers,
        samples_per_s=[sum(row.samples / row.seconds for row in window if row.seconds) for window in windows],
        window_s=[max(row.seconds for row in window) for window in windows],
        worker_cpu_s_per_sample=sum(cpu_s) / len(cpu_s) if cpu_s else None,
        trainer_cpu_s_per_sample=[] if name == "loader_only" else [own_s / max(1, many) for own_s, many in used],
        note="; ".join(Counter(row.note for row in rows if row.note)),
        dropped=min((row.dropped or 0.0 for row in rows), default=None) if name == "cold" else None,
        disturbed=len(had) - len(windows),
    )


def lines(journal: Journal) -> list[Line]:
    """Merged over processes per function, the functions with the most time first, lines in their order. What the user
    named is kept, however little it took."""
    merged: dict[tuple[str, int, str, str], dict[int, list[float]]] = {}
    named: set[tuple[str, int]] = set()
    for process in journal.all("lines-"):
        named |= {(file, first_line) for file, first_line in process["named"]}
        for row in (LineRow(*values) for values in process["functions"]):
            key = (row.file, row.first_line, row.function, process["where"])
            of_lines = merged.setdefault(key, defaultdict(lambda: [0.0, 0.0]))
            for number, hits, seconds in row.timings:
                of_lines[int(number)][0] += hits
                of_lines[int(number)][1] += seconds
    totals = {key: sum(seconds for _, seconds in of_lines.values()) for key, of_lines in merged.items()}
    ranked = sorted(merged, key=lambda key: -totals[key])
    kept = [key for place, key in enumerate(ranked) if place < MOST_FUNCTIONS or key[:2] in named]
    return [
        Line(
            file=key[0],
            function=key[2],
            line=number,
            hits=int(hits),
            seconds=seconds,
            fraction=seconds / totals[key] if totals[key] else 0.0,
            source=linecache.getline(key[0], number).strip(),
            where=key[3],
        )
        for key in kept
        for number, (hits, seconds) in sorted(merged[key].items())
    ]
