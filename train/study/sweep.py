"""`feedline sweep`: every task is a trial, a training with values that the search draws when the task is taken."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.settings import check_limits, from_plain, limited, plain
from feedline.train.config import FREE_TO_CHANGE, TrainConfig
from feedline.train.data import batch_sizes, open_dataset
from feedline.train.distributed import World
from feedline.train.loop import train
from feedline.train.metrics import as_trained
from feedline.train.models import check_name
from feedline.train.run import TrainingError
from feedline.train.study.identity import open_study, versions
from feedline.train.study.search import Search
from feedline.train.study.space import as_json, read_space
from feedline.train.study.tasks import Claim, Task, Tasks

HOPELESS = 5
"""A study in which so many tasks have failed and none has succeeded is wrong as a whole."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    space: Path
    """A TOML file with a table for each hyper-parameter: [lr] with low, high and log = true; [model] with choices."""
    study: Path
    """Folder of the study. The same command joins it, from any machine that sees the folder, or goes on with it."""
    trials: int = limited(30, 1)
    """Trials of the whole study."""
    min_epochs: int = limited(1, 1)
    """Epochs until a trial may be ended early, then --reduction times as many, and so on."""
    reduction: int = limited(3, 1)
    """There the best one in so many goes on, by validation accuracy; 1 ends none early."""

    def __post_init__(self) -> None:
        check_limits(self)


def settings(config: TrainConfig, options: SweepConfig) -> dict[str, Any]:
    """What `begin` needs, as JSON. Opens the study: raises UsageError where it is of another dataset or space, or was
    made by another version."""
    if not config.eval_every:
        raise UsageError("--eval-every 0: a sweep goes by validation accuracy")
    space, dataset = read_space(options.space, config), open_dataset(config)
    for name in space["model"].ends if "model" in space else (config.model,):
        check_name(name)
    for size in space["batch_size"].ends if "batch_size" in space else ():
        batch_sizes(replace(config, batch_size=size), 1, dataset.train_samples)
    decisive = [field.name for field in fields(config) if field.name not in FREE_TO_CHANGE]
    identity = {
        "kind": "sweep",
        **versions("torch", "optuna"),
        "dataset": dataset.identity[:16],
        "space": hashlib.sha256(json.dumps(as_json(space)).encode()).hexdigest()[:16],
        **{f"--{name.replace('_', '-')}": plain(config)[name] for name in decisive},
        **{f"--{name.replace('_', '-')}": getattr(options, name) for name in ("min_epochs", "reduction")},
    }
    open_study(options.study, identity)
    return {"config": plain(config), "options": plain(options)}


def begin(study: Path, told: Mapping[str, Any]) -> "Sweep":
    return Sweep(study, from_plain(TrainConfig, told["config"]), from_plain(SweepConfig, told["options"]))


class Sweep:
    """The study's tasks, in one process."""

    def __init__(self, study: Path, config: TrainConfig, options: SweepConfig) -> None:
        self.config, self.options = config, options
        self._tasks, self._space = Tasks(study), read_space(options.space, config)

    @cached_property
    def search(self) -> Search:
        """Opened on rank 0 alone."""
        plan = self.options
        return Search(
            plan.study, self._space, seed=self.config.seed, min_epochs=plan.min_epochs, reduction=plan.reduction
        )

    def tasks(self) -> Iterable[Task]:
        """Raises FeedlineError when there is no sense in going on."""
        records = self._tasks.records()
        self.search.catch_up(records)
        failed = [record for record in records.values() if record["state"] not in ("complete", "pruned")]
        if len(failed) >= HOPELESS and len(failed) == len(records):
            raise FeedlineError(
                f"the first {len(failed)} trials of {self._tasks.study} failed: {failed[-1]['error']}"
            )
        return [Task(number=number, name=f"trial-{number:04d}") for number in range(self.options.trials)]

    def do(self, task: Task, world: World, claim: Claim | None) -> dict[str, Any]:
        params: dict[str, Any] = world.from_main(self.search.draw(task.number) if claim else None)
        config = replace(self.config, **params, run=claim and claim.run, resume="auto")
        behind = False

        def hopeless(entry: Mapping[str, Any]) -> bool:
            nonlocal behind
            assert claim is not None
            epoch, top1 = entry["epoch"], entry["top1"]
            claim.show(epoch=epoch, epochs=config.epochs, top1=top1, params=params)
            if top1 is not None:
                behind = self.search.report(task.number, epoch, top1) and epoch < config.epochs
            return behind

        if claim is not None:
            claim.show(epoch=0, epochs=config.epochs, params=params)
        try:
            record = train(config, hopeless=hopeless)
        except TrainingError as error:  # it diverged, and would again: that is a result
            epochs = as_trained(claim.run)["epoch"] if claim else []
            curve, last = _curve(epochs), epochs[-1] if epochs else {}
            return {"state": "pruned", "value": curve[-1][1] if curve else None, "curve": curve, "error": str(error),
                    "epochs": last.get("epoch", 0), "train_s": last.get("elapsed_s", 0.0)}  # fmt: skip
        curve = _curve(record["epochs"])
        facts = {name: record[name] for name in ("best_top1", "train_s", "core_s", "steps", "world_size")}
        return {"state": "pruned" if behind else "complete", "value": curve[-1][1], "curve": curve,
                "epochs": len(record["epochs"]), **facts}  # fmt: skip

    def record(self) -> dict[str, Any]:
        """What `--json` has, at any time: `trials`, `best` (None until one is complete), `importance`, the cost."""
        self.search.catch_up(self._tasks.records())
        trials = self._tasks.told(self.options.trials)
        complete = [trial for trial in trials if trial["state"] == "complete"]
        return {
            "study": str(self._tasks.study),
            "trials": trials,
            "best": max(complete, key=lambda trial: trial["value"], default=None),
            "importance": self.search.importance(),
            "counts": dict(Counter(trial["state"] for trial in trials)),
            **{what: sum(trial.get(what, 0) for trial in trials) for what in ("epochs", "train_s", "core_s")},
            "full_epochs": sum(trial["params"].get("epochs", self.config.epochs) for trial in trials),
            "space": as_json(self._space),
        }


def _curve(epochs: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return [(entry["epoch"], entry["top1"]) for entry in epochs if entry["top1"] is not None]
