"""`feedline slurm`: an sbatch script from flags, and from a few questions for what a terminal did not say."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from feedline.cli.common import JsonFile, Record, console

T = TypeVar("T")
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def slurm(
    context: typer.Context,
    dataset: Annotated[str, typer.Argument(metavar="OUT", help="Prepared dataset, as the compute nodes see it.")],
    script_file: Annotated[Path, typer.Option("--script", help="File to write.")] = Path("train.sbatch"),
    run: Annotated[str, typer.Option(help="Run folder, on a file system all nodes share.")] = "runs/slurm",
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node; 0 trains on the CPUs.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(help="Default: one per GPU, or one on a CPU node.")] = None,
    workers_per_rank: Annotated[int, typer.Option(help="Loader processes per rank; sets the CPUs asked for.")] = 4,
    model_cpus: Annotated[int, typer.Option(help="CPUs for each rank's model on nodes without GPUs.")] = 4,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit: HH:MM:SS or D-HH:MM:SS.")] = None,
    memory_gib: Annotated[int | None, typer.Option(help="Memory per node, GiB.")] = None,
    job_name: Annotated[str, typer.Option(help="Name of the job.")] = "feedline",
    sizes: Annotated[str, typer.Option(help="Scaling study: numbers of nodes, as 1,2,4.")] = "",
    setup: Annotated[list[str] | None, typer.Option(help="A line that makes python available; repeatable.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Write an sbatch script for training on a cluster. Options it does not know go to the training.

    Example: feedline slurm /data/256-jpeg --nodes 2 --gpus-per-node 4 --partition gpu --epochs 90 --global-batch 1024
    """
    from feedline.pipeline.base.errors import UsageError
    from feedline.train.options import unknown_options
    from feedline.train.slurm import SlurmConfig, script, write

    record = Record("slurm", json_file)
    if unknown := unknown_options(context.args):
        raise UsageError(f"{unknown[0]} is an option of neither `feedline slurm` nor `feedline train`")
    try:
        counts = tuple(int(word) for word in sizes.split(",") if word.strip())
    except ValueError:
        raise UsageError(f"--sizes {sizes!r}: write it as 1,2,4") from None
    config = SlurmConfig(
        dataset=dataset,
        run=run,
        nodes=_asked(nodes, "Nodes", 1),
        gpus_per_node=_asked(gpus_per_node, "GPUs per node (0: CPUs only)", 0),
        ranks_per_node=ranks_per_node,
        workers_per_rank=workers_per_rank,
        model_cpus=model_cpus,
        partition=_asked(partition, "Partition (empty: the default one)", "") or None,
        account=account,
        time=_asked(time, "Time limit", "04:00:00"),
        memory_gib=memory_gib,
        job_name=job_name,
        sizes=counts,
        setup=tuple(setup or ()),
        train_args=tuple(context.args),
    )
    write(config, script_file)
    console.print(f"{script_file}: {config.ranks} ranks on each node, {config.cpus_per_task} CPUs for them; "
                  f"start it with: sbatch {shlex.quote(str(script_file))}", markup=False, soft_wrap=True)  # fmt: skip
    record.write(json_file, {"script": str(script_file), "text": script(config)})


def _asked(given: T | None, question: str, default: T) -> T:
    """What a flag said, else what somebody at a terminal answers, else the default."""
    if given is not None:
        return given
    return typer.prompt(question, default=default, err=True) if sys.stdin.isatty() else default
