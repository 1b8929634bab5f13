"""Where a job's tasks run: the contract between `prepare` and Spark, or whatever else runs tasks.

An engine gets tasks and tells of each shard once it is done. What a task does, and what becomes of its receipt, is no
concern of an engine; plan, tasks and commit know no engine. In a process of its own an engine calls `settle` once and
`write_shards` for its tasks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from feedline.preprocess.plan import ShardTask
from feedline.preprocess.write_shard import OnOutcome, Order


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """How a run went, for the report."""

    start_s: float = 0.0
    """Starting the engine, which is no part of the work."""
    run_s: float = 0.0
    stop_s: float = 0.0
    parallelism: int = 1
    """Processes that work on shards at once."""
    master: str = ""
    """Where it ran, in the engine's own words."""


class Engine(Protocol):
    def begin(self) -> AbstractContextManager[None]:
        """Around a job: what can start before the tasks are known starts. Nothing of it is left behind."""
        return nullcontext()

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        """Runs all tasks, in any order, and tries again those whose process died; `on_outcome` hears of each in this
        thread, soon after it is done. Leaves no process behind, also when `on_outcome` raises. Raises FeedlineError
        for anything that keeps it from finishing.
        """
        ...
