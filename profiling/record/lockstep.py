"""Loaders that give one batch each to a step, or take turns: whose step it is."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from feedline.profiling.record.journal import OF_STEP, OWN_EPOCH, StepRow

ONE_EACH = 0.8  # of the steps
CLEARLY, LITTLE = 1.2, 0.02  # waited for longer than for another one, and of the steps' time
AT_ONCE = 0.1  # of a step: two batches that are drawn one behind the other are nearer
SELDOM = 0.05  # a turn in so many steps is too little to tell all of them by


def hand_steps_over(rows: Mapping[int, Sequence[StepRow]], trainers: Sequence[dict[str, Any]]) -> bool:
    """Of loaders that give one batch each to a step (`zip(a, b)`), or take turns, it is the last one drawn that is
    trained on, whose batch may have lain there: here the steps become those of the loader that was waited for most,
    by all ranks together. Whether they were another's."""
    counts, waited_s = Counter[int](), defaultdict[int, float](float)
    for row in chain(*rows.values()):
        counts[row.loader] += row.trained
        waited_s[row.loader] += row.own_wait_s
    if not counts.total() or any(row.epoch == OWN_EPOCH for row in chain(*rows.values())):
        return False
    given = counts.most_common(1)[0][0]
    first = next(mine for mine in rows.values() if any(row.trained for row in mine))
    trained = [row for row in first if row.trained and row.loader == given]
    others = {loader: [row for row in first if row.loader == loader] for loader in counts if loader != given}
    beside = [given, *(loader for loader, mine in others.items() if _beside(mine, trained))]
    to = max(beside, key=lambda loader: waited_s[loader])
    enough = waited_s[to] > CLEARLY * waited_s[given] + LITTLE * sum(row.duration_s for row in trained)
    if sum(counts[loader] for loader in beside) < ONE_EACH * counts.total() or (to != given and not enough):
        return False
    for mine, trainer in zip(rows.values(), trainers, strict=True):
        takers = [row for row in mine if row.loader == to]
        starts = [row.start_s for row in takers]
        for row in (row for row in mine if row.loader in beside and row.loader != to and row.trained):
            row.trained = False
            if (at := bisect_right(starts, row.start_s) - 1) >= 0:
                _take(takers[at], row)
        trainer["sync_places"] = [(to if one in beside else one, *rest) for one, *rest in trainer["sync_places"]]
    return to != given


def _take(taker: StepRow, row: StepRow) -> None:
    taker.trained = True
    for name in OF_STEP:
        setattr(taker, name, getattr(taker, name) + getattr(row, name))
    marked = taker.copy_s is not None and row.copy_s is not None
    for name in ("copy_s", "idle_s"):
        both = [value for value in (getattr(taker, name), getattr(row, name)) if value is not None]
        setattr(taker, name, sum(both) if marked and both else None)
    taker.starved_s = taker.starved_s if marked else None  # it has waited for the other batch, too


def _beside(mine: Sequence[StepRow], trained: Sequence[StepRow]) -> bool:
    """Whether a loader gives a batch to each step of another, beside its batch, or takes turns with it: its steps are
    trained on too and, each until the next, contain the other's. Not one that is begun for each, nor one of which a
    batch is evaluated in each."""
    starts = [row.start_s for row in mine]
    placed = [(bisect_right(starts, row.start_s) - 1, row) for row in trained]
    if 2 * len({row.epoch for row in mine}) > len(mine):
        return False
    if sum(row.trained for row in mine) >= ONE_EACH * len(mine):
        ends = [row.start_s + row.duration_s for row in mine]
        within = sum(number >= 0 and row.start_s < ends[number] for number, row in placed)
        return within >= ONE_EACH * len(trained) and len(mine) >= SELDOM * len(trained)
    if len({number for number, _ in placed} - {-1}) < ONE_EACH * max(len(trained), len(mine)):
        return False
    pairs = [(mine[number], row) for number, row in placed if number >= 0]
    before = median(row.start_s - one.start_s - one.own_wait_s for one, row in pairs)
    behind = [
        mine[number + 1].start_s - row.start_s - row.own_wait_s for number, row in placed if number + 1 < len(mine)
    ]
    return min(before, median(behind or [before])) < AT_ONCE * median(row.duration_s for row in trained)
