"""`feedline slurm`: an sbatch script from flags."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.common import Record, console
from feedline.cli.options import Settings, command, fields
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
    check_words(verb or "train", [options["dataset"], *words])
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


def check_words(verb: str, words: list[str]) -> None:
    """Of a command line for `verb`. Raises UsageError here, and not hours later in the queue."""
    from feedline.cli.main import WrongUse, app

    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    for parameter in command.params:
        parameter.callback = None  # they read files, which may be elsewhere
    try:
        command.make_context(f"feedline {verb}", list(words))
    except typer.Exit:  # --help
        raise UsageError(f"--help is of `feedline {verb}`, which has no use for it in a job") from None
    except WrongUse as error:  # type: ignore[misc]
        said = error.format_message()  # type: ignore[attr-defined]
        raise UsageError(f"`feedline {verb}`, to which what slurm does not know goes: {said}") from error
