"""Lottery tickets: a finished network is pruned, set back to epochs that its run kept, and trained again from there.

    ticket           of the final weights those of largest magnitude stay; in `rounds` steps of equal ratio, between
                     which what is left is set back and trained
    control random   as many weights of each layer, drawn
    control full     the whole network

Every (share kept, epoch set back to, seed, control) is a task that needs no other one. With the run's own seed the
retraining sees the same batches as the run did from there on; other seeds change order, augmentation and dropout, and
what is drawn. Weights that are left out are exactly zero from the first step to the last (`train.masks`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.settings import MOST, MOST_THREADS, TINY, check_limits, from_plain, limited, plain
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import Checkpoints, Where
from feedline.train.config import TrainConfig
from feedline.train.data import open_dataset
from feedline.train.distributed import World
from feedline.train.loop import train
from feedline.train.metrics import Event
from feedline.train.progress import Progress
from feedline.train.study.identity import open_study, versions
from feedline.train.study.tasks import Claim, Task, Tasks
from feedline.train.weights import parameters_of

MASK = "mask.pt"
WHERE = ("dataset", "device", "threads", "num_workers")
"""Settings of a pruning that are the retraining's too, and do not change what is learned."""
Control = Literal["random", "full"]


@dataclass(frozen=True, kw_only=True)
class PruneConfig:
    run: Path
    """A finished run that kept its weights: train --keep-epochs 0,1,4."""
    study: Path | None = None
    """Folder of the study; default: RUN/prune. The same command joins it, from any machine, or goes on with it."""
    keep: tuple[float, ...] = limited((0.4, 0.2, 0.1), TINY, 1)
    """Shares of the weights that stay."""
    rewind: tuple[int, ...] = limited((0,), 0)
    """Kept epochs to begin again from; 0 is the initialisation."""
    rounds: int = limited(1, 1)
    """Prune in so many steps, each retrained from the same epoch: so many trainings a ticket."""
    per_layer: bool = False
    """Keep that share of each layer, not of all weights together."""
    vectors: bool = False
    """Prune biases and batch norm too."""
    seeds: int = limited(1, 1)
    """Retrain each with so many seeds: the run's own and those after it."""
    controls: bool = True
    """Beside them, random masks of the same sparsity per layer, and the full network."""
    rewind_optimizer: bool = True
    """Begin with the optimiser's momentum as kept; without, empty."""
    dataset: Path | None = None
    """Prepared dataset; default: where the run found it."""
    device: str | None = None
    """cpu, cuda or auto; default: as the run."""
    threads: int | None = limited(None, 1, MOST_THREADS)
    """CPU threads of a task's model; default: as the run."""
    num_workers: int | None = limited(None, 0)
    """Loader processes of a task; default: as the run."""

    def __post_init__(self) -> None:
        check_limits(self)
        for name in ("keep", "rewind"):
            if not getattr(self, name):
                raise UsageError(f"--{name} names none: give at least one")


class Ticket(NamedTuple):
    """A task's params; `seed` is the retraining's."""

    keep: float
    rewind: int
    seed: int
    control: Control | None

    @property
    def name(self) -> str:
        return f"keep{self.keep!r}-rewind{self.rewind}-seed{self.seed}" + (f"-{self.control}" if self.control else "")


def plan(config: PruneConfig, own_seed: int) -> list[Ticket]:
    """Every ticket and control; whole seeds one after the other, so that half a study has all of half the seeds."""
    masked: list[tuple[float, Control | None]] = [(1.0, "full")] if config.controls else []
    for keep in config.keep:
        masked.append((keep, None))
        if config.controls:
            masked.append((keep, "random"))
    seeds = range(own_seed, own_seed + config.seeds)
    return list(dict.fromkeys(
        Ticket(keep, rewind, seed, control) for seed in seeds for rewind in config.rewind for keep, control in masked
    ))  # fmt: skip


# --- the run to prune ---------------------------------------------------------------------------------


class Parent(NamedTuple):
    """A finished run that kept its weights: how and on what it was trained, its checkpoints, `kept` by epoch."""

    config: TrainConfig
    dataset: str
    final: Where
    kept: Mapping[int, Where]


def parent_of(config: PruneConfig) -> Parent:
    """Raises UsageError for a run that is not there, has not ended or did not keep what is asked for, CheckpointError
    for a final checkpoint that cannot be read."""
    if not config.run.exists():
        raise UsageError(f"{config.run} does not exist: give the folder of a finished run")
    checkpoints = Checkpoints(config.run)
    kept, asked = checkpoints.kept(), ",".join(map(str, config.rewind))
    found = checkpoints.newest_good() if kept else None
    if found is None:
        raise UsageError(f"{config.run} kept no weights: train it, to the end, with --keep-epochs {asked}")
    with checkpoint.as_whole(found.where):
        trained, progress = from_plain(TrainConfig, found.state["config"]), Progress(**found.state["progress"])
        dataset, ranks = found.state["dataset"]["identity"], found.state["world_size"]
    # the steps stay as large, whatever the tasks' ranks
    trained = replace(trained, global_batch=trained.global_batch or trained.batch_size * trained.accumulate * ranks)
    stopped = progress.time_to_target_s is not None or progress.step >= (trained.steps or MOST)
    if progress.epoch < trained.epochs and not stopped:
        done = f"{progress.epoch} of {trained.epochs} epochs"
        raise UsageError(f"{config.run} has not ended ({done}): train it on with --resume auto")
    if missing := [epoch for epoch in config.rewind if epoch not in kept]:
        raise UsageError(
            f"{config.run} kept the weights of epochs {','.join(map(str, kept))} and not of {missing[0]}: --rewind "
            f"one of these, or train it with --keep-epochs {asked}"
        )
    if not progress.samples and max(config.rewind) >= progress.epoch:
        raise UsageError(f"--rewind {max(config.rewind)}: the run ended there, and nothing would be trained")
    return Parent(trained, dataset, found.where, kept)


# --- one task -----------------------------------------------------------------------------------------


def settings(config: PruneConfig) -> dict[str, Any]:
    """What `begin` needs, as JSON. Opens the study. Raises as `parent_of` and `open_dataset`, and UsageError for a
    study of something else."""
    study = config.study or config.run / "prune"
    pruning = Pruning(study, config)
    if open_dataset(pruning.config).identity != pruning.parent.dataset:
        raise UsageError(f"{pruning.config.dataset} is not what {config.run} was trained on: give that as --dataset")
    open_study(study, pruning.identity())
    return plain(replace(config, study=study))


def begin(study: Path, told: Mapping[str, Any]) -> "Pruning":
    return Pruning(study, from_plain(PruneConfig, told))


class Pruning:
    """The study's tasks, in one process (`train.study.work`)."""

    def __init__(self, study: Path, config: PruneConfig) -> None:
        """Raises as `parent_of`."""
        self.pruning, self.parent = config, parent_of(config)
        self.tickets, self._tasks = plan(config, self.parent.config.seed), Tasks(study)
        trained = self.parent.config
        given = {name: value for name in WHERE if (value := getattr(config, name)) is not None}
        self.config = replace(
            trained, resume="auto", init=None, keep_epochs=(), keep_last=1, target_top1=None,
            eval_every=trained.eval_every or trained.epochs, rewind_optimizer=config.rewind_optimizer, **given,
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What all processes of a study must agree on; more seeds only add tasks to it."""
        files = {"final weights": self.parent.final}
        files |= {f"weights of epoch {epoch}": self.parent.kept[epoch] for epoch in self.pruning.rewind}
        free = ("run", "study", "seeds", *WHERE)
        decisive = {name: value for name, value in asdict(self.pruning).items() if name not in free}
        return {
            "kind": "prune",
            **versions("torch"),
            "dataset": self.parent.dataset,
            **{name: checkpoint.digest(where) for name, where in files.items()},
            **{f"--{name.replace('_', '-')}": value for name, value in decisive.items()},
        }

    def tasks(self) -> list[Task]:
        return [Task(number=n, name=ticket.name, params=ticket._asdict()) for n, ticket in enumerate(self.tickets)]

    def do(self, task: Task, world: World, claim: Claim | None) -> dict[str, Any]:
        """Trains, and counts the zeros. What was begun before goes on where it was left. Raises FeedlineError as
        `train` does."""
        ticket, folder = Ticket(**task.params), world.from_main(claim and claim.run)

        def show(event: Event) -> None:
            if claim is not None and event["event"] == "epoch":
                claim.show(epoch=event["epoch"], epochs=self.config.epochs, top1=event["top1"], params=task.params)

        config = replace(self.config, rewind=self.parent.kept[ticket.rewind], seed=ticket.seed)
        rounds = world.on_main(partial(self._rounds, ticket, folder))
        record: dict[str, Any] = {}
        for number in range(1, rounds + 1):
            mask = world.on_main(partial(self._mask, ticket, folder, number, rounds))
            record = train(replace(config, run=mask.parent, mask=mask), [show])
        curve = [[epoch["epoch"], epoch["top1"]] for epoch in record["epochs"]]
        return {"state": "complete", "value": curve[-1][1], "curve": curve, "rounds": rounds,
                "optimizer": "kept" if self.config.rewind_optimizer else "empty",
                **world.on_main(partial(self._counts, folder))}  # fmt: skip

    def record(self) -> dict[str, Any]:
        """What `--json` has, at any time: `tasks`, each with its ticket, `top1` and `zeros` (None until it is done),
        and how many are in which state."""
        rows = [
            {**ticket._asdict(), "top1": row["value"], "zeros": None, "name": ticket.name, **row}
            for ticket, row in zip(self.tickets, self._tasks.told(len(self.tickets)), strict=True)
        ]
        return {
            "study": str(self._tasks.study),
            "run": str(self.pruning.run),
            "tasks": rows,
            "counts": dict(Counter(row["state"] for row in rows)),
        }

    def _rounds(self, ticket: Ticket, folder: Path) -> int:
        """The full network has none to prune in; how much a random mask leaves of each layer may be known already."""
        known = ticket.control == "random" and (self.pruning.per_layer or twin(ticket, folder).exists())
        return 1 if known or ticket.control == "full" else self.pruning.rounds

    def _mask(self, ticket: Ticket, folder: Path, number: int, rounds: int) -> Path:
        """A round's mask, a file beside its run that is made unless it is there: by the weights that the round before
        came to, of those that its mask kept."""
        before, run = folder / f"round-{number - 1}", folder if number == rounds else folder / f"round-{number}"
        path = run / MASK
        if path.exists():
            return path
        random = ticket.control == "random"
        if random and twin(ticket, folder).exists():
            made = masks.read(twin(ticket, folder))
        else:
            weights = self._prunable(Checkpoints(before).steps()[-1] if number > 1 else self.parent.final)
            among = masks.read(before / MASK) if number > 1 else None
            keep = ticket.keep ** (number / rounds)
            made = masks.by_magnitude(weights, keep, per_layer=self.pruning.per_layer, among=among)
        if random and number == rounds:
            made = masks.at_random(made, ticket.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, masks.to_bytes(made))
        return path

    def _prunable(self, where: Where) -> dict[str, Tensor]:
        with checkpoint.as_whole(where):
            return masks.prunable(parameters_of(checkpoint.read(where)), vectors=self.pruning.vectors)

    def _counts(self, folder: Path) -> dict[str, Any]:
        """Of the trained network: `zeros` among the `weights` that could be pruned, `pruned` by the mask."""
        weights, held = self._prunable(Checkpoints(folder).steps()[-1]), masks.read(folder / MASK)
        return {
            "zeros": sum(int((layer == 0).sum()) for layer in weights.values()),
            "pruned": masks.pruned(held),
            "weights": sum(layer.numel() for layer in weights.values()),
            "empty_layers": masks.empty_layers(held),
        }


def twin(ticket: Ticket, folder: Path) -> Path:
    """The mask of the ticket that a control stands beside."""
    return folder.parent / ticket._replace(control=None).name / MASK
