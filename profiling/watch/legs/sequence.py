"""Which windows a diagnostic run has, and in which order."""

from collections.abc import Iterable, Sequence

from feedline.pipeline.base.process import usable_cores
from feedline.profiling.watch.legs.ways import Cached, Cold, Kept, LaidOut, LoaderOnly, Way


def plan(legs: Sequence[str], worker_counts: Sequence[int], rounds: int, lines: Iterable[Way] = ()) -> list[Way]:
    """Every leg once a round, the order turned by one each time so that drift cancels; then, once, the cold one:
    whatever ran after it would read files from storage that it had in memory before. `lines` follow. Last come the
    legs that a script may not survive or that cannot be undone, on batches that are at hand: kept memory, and the
    other layout in turn with it, which is what may end the script."""
    once: list[Way] = []
    if "normal" in legs:
        once.append(Way())
    if "cached" in legs:
        once.append(Cached())
    if "loader_only" in legs:
        once += [LoaderOnly(), *map(LoaderOnly, worker_counts)]
    turned = [once[(position + turn) % len(once)] for turn in range(rounds) for position in range(len(once))]
    cold = [Cold()] if "cold" in legs else []
    kept = [Kept()] * rounds if "kept" in legs else []
    laid_out = [LaidOut()] * rounds if "laid_out" in legs else []
    return [*turned, *cold, *lines, *in_turn(kept, laid_out)]


def in_turn(safe: Sequence[Way], risky: Sequence[Way]) -> list[Way]:
    """Half of the safe windows first, then one of each in turn."""
    ahead = len(safe) // 2 if risky else len(safe)
    rest = list(safe[ahead:])
    mixed = list(safe[:ahead])
    for window in risky:
        mixed += [window, *rest[:1]]
        rest = rest[1:]
    return mixed + rest


def chosen(legs: Sequence[str], kind: str) -> list[str]:
    """With what belongs to the ceiling: batches as feedline's loader has them."""
    if "cached" not in legs:
        return list(legs)
    return [*legs, *([] if kind == "feedline" else ["kept", "laid_out"])]


def worker_counts(current: int | None) -> list[int]:
    """1, 2, 4 … up to the usable cores, without the script's own number."""
    cores = usable_cores()
    counts = {cores, *(2**power for power in range(8) if 2**power <= cores)}
    return sorted(counts - {current or 0})[-4:]
