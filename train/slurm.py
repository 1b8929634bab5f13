"""Batch scripts for Slurm: one node, several GPUs, several nodes, and job arrays: for a scaling study (slurm.sh), and
for the tasks of a sweep or a pruning (slurm_array.sh).

A training's script starts one torchrun agent per node and lets it start the ranks; a node that Slurm takes away and
gives back goes on from the last checkpoint (`--requeue` with `--resume auto`).
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.base.text import count_of

Study = Literal["sweep", "prune"]
"""Kinds of study whose tasks can be an array's jobs, by their verb."""
SETUP = "# Make python and feedline available here, for example:\n# source .venv/bin/activate"


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    dataset: str
    """Prepared dataset, as the compute nodes see it."""
    run: str = "runs/slurm"
    """Run folder, on a file system all nodes share."""
    nodes: int = limited(1, 1)
    """Nodes."""
    gpus_per_node: int = limited(0, 0)
    """GPUs per node; 0 trains on the CPUs."""
    ranks_per_node: int | None = limited(None, 1)
    """Default: one per GPU, or one on a CPU node."""
    workers_per_rank: int = limited(4, 0)
    """Loader processes per rank; sets the CPUs asked for."""
    model_cpus: int = limited(4, 1)
    """CPUs for each rank's model on nodes without GPUs."""
    partition: str | None = None
    """Slurm partition."""
    account: str | None = None
    """Slurm account."""
    time: str = "04:00:00"
    """Time limit: minutes, HH:MM:SS or D-HH:MM:SS."""
    memory_gib: int | None = limited(None, 1)
    """Memory per node, GiB."""
    job_name: str = "feedline"
    """Name of the job."""
    sizes: tuple[int, ...] = limited((), 1)
    """Scaling study: numbers of nodes, as 1,2,4; an array with one job for each."""
    array: Study | None = None
    """An array whose jobs do one task each of such a study; give that verb's options too."""
    tasks: int = limited(30, 1)
    """Jobs of the array: trials of the sweep, or tickets and controls of the pruning."""
    at_once: int | None = limited(None, 1)
    """Jobs of the array that run at a time."""
    after: str | None = None
    """Number of a job that must have ended well before: of the run to prune."""
    setup: tuple[str, ...] = ()
    """A line that makes python available; repeatable."""
    train_args: tuple[str, ...] = ()  # handed on to `feedline.train.main`

    def __post_init__(self) -> None:
        check_limits(self)
        if self.gpus_per_node and (self.ranks_per_node or 1) > self.gpus_per_node:
            gpus = count_of(self.gpus_per_node, "GPU")
            raise UsageError(f"{self.ranks_per_node} ranks a node for {gpus}: each needs its own")
        if not re.fullmatch(r"(\d+-)?\d+(:\d{2}){0,2}", self.time):
            raise UsageError(f"--time {self.time!r}: write minutes, HH:MM:SS or D-HH:MM:SS")
        if self.array and (self.array not in get_args(Study) or self.sizes or self.nodes > 1):
            raise UsageError(f"--array {self.array}: {' or '.join(get_args(Study))}, on one node and without --sizes")
        for name in ("partition", "account", "job_name", "after"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[\w.,@:+-]+", value):
                raise UsageError(f"--{name.replace('_', '-')} {value!r}: no spaces or quotes in a Slurm name")

    @property
    def ranks(self) -> int:
        return self.ranks_per_node or self.gpus_per_node or 1

    @property
    def cpus_per_task(self) -> int:
        """One task per node: the agent with all its ranks and their workers."""
        own = 1 if self.gpus_per_node else self.model_cpus
        return self.ranks * (own + self.workers_per_rank)


def script(config: SlurmConfig) -> str:
    """The sbatch script's text; it ends with a newline."""
    sizes, in_array = config.sizes, bool(config.sizes or config.array)
    jobs, at_once = (len(sizes), 1) if sizes else (config.tasks, config.at_once)
    directives = {
        "job-name": config.job_name,
        "partition": config.partition,
        "account": config.account,
        "time": config.time,
        "nodes": max(sizes, default=config.nodes),
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_task,
        "gpus-per-node": config.gpus_per_node or None,
        "mem": f"{config.memory_gib}G" if config.memory_gib else None,
        "array": f"0-{jobs - 1}{f'%{at_once}' if at_once else ''}" if in_array else None,
        "dependency": f"afterok:{config.after}" if config.after else None,
        "output": "%x-%A_%a.out" if in_array else "%x-%j.out",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value is not None]
    nodes = f"nodes={config.nodes}\nrun={shlex.quote(config.run)}"
    if sizes:
        nodes = (
            "# A scaling study: each job of the array trains on so many of the nodes, one job at a time.\n"
            f"sizes=({' '.join(map(str, sizes))})\n"
            'nodes="${sizes[$SLURM_ARRAY_TASK_ID]}"\n'
            f'run={shlex.quote(config.run)}/"nodes-$nodes"'
        )
    training = f"--device {'cuda' if config.gpus_per_node else 'cpu'} --num-workers {config.workers_per_rank}"
    training += "" if config.gpus_per_node else f" --threads {config.model_cpus}"
    values = {
        "directives": "\n".join([*lines, "#SBATCH --requeue"]),
        "setup": "\n".join(config.setup) or SETUP,
        "nodes": nodes,
        "verb": config.array or "",
        "ranks": str(config.ranks),
        "dataset": shlex.quote(config.dataset),
        "training": f"{training} \\\n  {shlex.join(config.train_args)}" if config.train_args else training,
    }
    template = Path(__file__).with_name("slurm_array.sh" if config.array else "slurm.sh").read_text()
    return re.sub(r"@(\w+)", lambda found: values[found[1]], template)


def write(config: SlurmConfig, path: Path) -> None:
    """Raises UsageError where it cannot be written, and rather than overwrite a file."""
    try:
        with path.open("x") as file:
            try:
                file.write(script(config))
                file.flush()
            except OSError:
                path.unlink()  # or it would be there already when there is room
                raise
        path.chmod(0o755)
    except FileExistsError:
        raise UsageError(f"{path} is there already: name another file or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
