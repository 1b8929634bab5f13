"""`feedline slurm`: an sbatch script from flags."""

import shlex
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import Record, console
from feedline.cli.options import Options, Settings, command, fields
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import count_of

OPTIONS = fields("train.slurm.SlurmConfig", dataset={"metavar": "OUT"})


@command
def slurm(
    context: typer.Context,
    options: Annotated[Settings, OPTIONS],
    record: Record,
    script_file: Annotated[Path, typer.Option("--script", help="File to write.")] = Path("train.sbatch"),
) -> None:
    """Write an sbatch script for training on a cluster. Options it does not know go to the training.

    Examples:

      feedline slurm /data/256-jpeg --nodes 2 --gpus-per-node 4 --partition gpu --epochs 90 --global-batch 1024

      feedline slurm /data/256-jpeg --array sweep --tasks 30 --at-once 8 --space space.toml --study /shared/sweep

      feedline slurm runs/parent --array prune --tasks 60 --after 4711 --keep 0.4,0.1,0.02 --rewind 0,4
    """
    from feedline.train.slurm import SlurmConfig, script, write

    verb, words = options["array"], list(context.args)
    if options["dataset"].startswith("-"):
        raise UsageError(f"{options['dataset']} stands before OUT: give OUT first, then options of the training")
    if unknown := unknown_options(words, verb or "train"):
        raise UsageError(f"{unknown[0]} is an option of neither `feedline slurm` nor `feedline {verb or 'train'}`")
    if verb == "sweep":
        given = {word.partition("=")[0] for word in words}
        if not {"--space", "--study"} <= given:
            raise UsageError("--array sweep needs --space FILE and --study DIR, a folder that all nodes share")
        if "--trials" in given:
            raise UsageError("--trials: each job of the array does one, so --tasks says how many")
        words += ["--trials", str(options["tasks"])]
    config = SlurmConfig(**options, train_args=tuple(words))
    write(config, script_file)
    room = f"{count_of(config.ranks, 'rank')} on each node, with {count_of(config.cpus_per_task, 'CPU')}"
    console.print(f"{script_file}: {room}; start it with: sbatch {shlex.quote(str(script_file))}")
    record.write({"script": str(script_file), "text": script(config)})


def unknown_options(words: list[str], verb: str = "train") -> list[str]:
    """Of a command line for `verb`, the options that it does not have."""
    there = vars(import_module(f"feedline.cli.{verb}")).values()
    flags = {flag for options in there if isinstance(options, Options) for flag in options.flags}
    flags |= {"--config"} if verb == "train" else set()  # it is no setting of the training
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]
