"""Of the processes of a run, those whose training the figures are of."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from feedline.pipeline.base.text import count_of
from feedline.profiling.record.journal import Journal, StepRow

LIKE_STEPS, LIKE_WAITING = 1.25, 0.15
"""Trainings of one kind: their steps take at most so many times as long, and wait that much of the time more or
less."""
About = dict[str, Any]  # what a process wrote of itself: `Capture.about`, `WorkerWatch`
Rows = Mapping[int, Sequence[StepRow]]  # by process


def is_trainer(about: About) -> bool:
    """Whether a process iterated a loader or stepped an optimiser."""
    return bool(about["loaders"] or about["optimizer_steps"])


def of_one_training(found: Sequence[About], rows: Rows, journal: Journal) -> tuple[list[About], list[str]]:
    """The processes of `found` that train (all, where none does) and, where some of the same rank train each on its
    own (folds, trials, members of an ensemble), only those like the one that had windows, or trained longest; with
    a note where others are left out. What else processes iterate over, such as an evaluation, is not the loop's."""
    training = [one for one in found if one["optimizer_steps"] or any(row.trained for row in rows[one["pid"]])]
    trainers = training or list(found)
    ranks = Counter(one["rank"] for one in trainers)
    if len(ranks) == len(trainers):
        return trainers, []
    kinds = {one["pid"]: _Kind.of(one, [row for row in rows[one["pid"]] if row.trained]) for one in trainers}
    main = max(trainers, key=lambda one: (journal.has(f"legs-{one['pid']}"), kinds[one["pid"]].seconds))
    like = kinds[main["pid"]]

    def belongs(one: About) -> bool:
        mine = kinds[one["pid"]]
        return ranks[one["rank"]] == 1 or (mine.like(like) if one["rank"] == main["rank"] else mine.in_step(like))

    kept = list(filter(belongs, trainers))
    if len(kept) == len(trainers):
        return kept, []
    beside = f", and {count_of(len(kept) - 1, 'process')} like it" if len(kept) > 1 else ""
    whose = f"these figures are of one, which trained for {like.seconds:.3g} s (PID {main['pid']}){beside}"
    return kept, [f"{len(trainers)} processes train on their own, and differ: {whose}"]


class _Kind(NamedTuple):
    """What one process trained with, and how fast."""

    settings: list[tuple[Any, ...]]
    seconds: float
    step_s: float
    waiting: float

    @classmethod
    def of(cls, trainer: About, trained: Sequence[StepRow]) -> "_Kind":
        seconds = sum(row.duration_s for row in trained)
        settings = [(one["kind"], one["batch_size"], one["num_workers"]) for one in trainer["loaders"]]
        waiting = sum(row.wait_s for row in trained) / seconds if seconds else 0.0
        return cls(settings, seconds, seconds / max(1, len(trained)), waiting)

    def in_step(self, other: "_Kind") -> bool:
        """As ranks are that train together."""
        return max(self.step_s, other.step_s) <= LIKE_STEPS * min(self.step_s, other.step_s)

    def like(self, other: "_Kind") -> bool:
        alike = self.settings == other.settings and abs(self.waiting - other.waiting) <= LIKE_WAITING
        return alike and self.in_step(other)
