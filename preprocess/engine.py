"""Where a job's tasks run: the contract between `prepare` and Spark, or whatever else runs tasks.

An engine gets tasks and tells of each shard once it is done. What a task does, and what becomes of its receipt, is no
concern of an engine; plan, tasks and commit know no engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from feedline.preprocess.write_shard import Order, Outcome, ShardTask, settle, write_shards

TASK_SHARDS, TASK_SAMPLES = 16, 4000
"""At most, where shards share a group. Each group costs an engine some time to hand out and to hear of (Spark 20 ms),
and only within a group can a shard be published while the next is worked on; but news comes group by group."""
TAIL = 2
"""The last groups shrink to this part of what is left for each slot, so that all slots end together."""

OnOutcome = Callable[[Outcome], None]
"""Called once for each shard, in the caller's thread, soon after the shard is done. May raise, which ends the run."""


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """How a run went, for the report."""

    start_s: float = 0.0
    """Starting the engine, which is no part of the work."""
    run_s: float = 0.0
    stop_s: float = 0.0
    parallelism: int = 1
    """Groups worked on at once."""
    master: str = ""
    """Where it ran, in the engine's own words."""


class Engine(Protocol):
    def check(self) -> None:
        """Before any long work. Raises FeedlineError where the engine cannot run at all."""
        ...

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        """Runs all tasks, in any order, and tries again those whose process died; leaves no process behind, also
        when `on_outcome` raises. Raises FeedlineError for anything that keeps it from finishing.
        """
        ...


def write_group(order: Order, group: Sequence[ShardTask]) -> list[Outcome]:
    """The work of one group, in a process of the engine's: up to the first shard that cannot be mended."""
    settle()
    return write_shards(order, group)


def grouped(tasks: Sequence[ShardTask], slots: int) -> list[list[ShardTask]]:
    """The shards in order, small ones several to a group; the groups get smaller towards the end."""
    groups: list[list[ShardTask]] = []
    position = 0
    while position < len(tasks):
        most = min(TASK_SHARDS, (len(tasks) - position) // (TAIL * slots))
        samples = np.cumsum([len(task.keys) for task in tasks[position : position + most]])
        size = max(1, int(np.searchsorted(samples, TASK_SAMPLES, "right")))
        groups.append(list(tasks[position : position + size]))
        position += size
    return groups
