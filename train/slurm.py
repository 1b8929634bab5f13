"""Batch scripts for Slurm: one node, several GPUs, several nodes, and a job array for a scaling study. Pure text.

Every script starts one torchrun agent per node and lets it start the ranks; a node that Slurm takes away and gives
back goes on from the last checkpoint (`--requeue` with `--resume auto`).
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from feedline.pipeline.base.errors import UsageError

_TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{2}){0,2}")


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    dataset: str
    """Prepared dataset, as the compute nodes see it."""
    run: str = "runs/slurm"
    """Run folder, on a file system all nodes share."""
    nodes: int = 1
    """Nodes."""
    gpus_per_node: int = 0
    """GPUs per node; 0 trains on the CPUs."""
    ranks_per_node: int | None = None
    """Default: one per GPU, or one on a CPU node."""
    workers_per_rank: int = 4
    """Loader processes per rank; sets the CPUs asked for."""
    model_cpus: int = 4
    """CPUs for each rank's model on nodes without GPUs."""
    partition: str | None = None
    """Slurm partition."""
    account: str | None = None
    """Slurm account."""
    time: str = "04:00:00"
    """Time limit: HH:MM:SS or D-HH:MM:SS."""
    memory_gib: int | None = None
    """Memory per node, GiB."""
    job_name: str = "feedline"
    """Name of the job."""
    sizes: tuple[int, ...] = ()
    """Scaling study: numbers of nodes, as 1,2,4; an array with one job for each."""
    setup: tuple[str, ...] = ()
    """A line that makes python available; repeatable."""
    train_args: tuple[str, ...] = ()  # handed on to `feedline.train.main`

    def __post_init__(self) -> None:
        for name in ("nodes", "workers_per_rank", "model_cpus"):
            if getattr(self, name) < (0 if name == "workers_per_rank" else 1):
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if self.gpus_per_node < 0:
            raise UsageError(f"--gpus-per-node {self.gpus_per_node}: must be at least 0")
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise UsageError(f"--ranks-per-node {self.ranks_per_node}: must be at least 1")
        if self.gpus_per_node and (self.ranks_per_node or 1) > self.gpus_per_node:
            raise UsageError(f"{self.ranks_per_node} ranks a node for {self.gpus_per_node} GPUs: each needs its own")
        if self.memory_gib is not None and self.memory_gib < 1:
            raise UsageError(f"--memory-gib {self.memory_gib}: must be at least 1")
        if not _TIME.fullmatch(self.time):
            raise UsageError(f"--time {self.time!r}: write minutes, HH:MM:SS or D-HH:MM:SS")
        if any(size < 1 for size in self.sizes):
            raise UsageError(f"--sizes {','.join(map(str, self.sizes))}: numbers of nodes are at least 1")
        for name in ("partition", "account", "job_name"):
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
    return "\n".join(["#!/bin/bash", *_directives(config), "", *_body(config)]) + "\n"


def _directives(config: SlurmConfig) -> list[str]:
    study = bool(config.sizes)
    wanted: dict[str, object] = {
        "job-name": config.job_name,
        "partition": config.partition,
        "account": config.account,
        "time": config.time,
        "nodes": max(config.sizes) if study else config.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": config.cpus_per_task,
        "gpus-per-node": config.gpus_per_node or None,
        "mem": f"{config.memory_gib}G" if config.memory_gib else None,
        "array": f"0-{len(config.sizes) - 1}%1" if study else None,
        "output": "%x-%A_%a.out" if study else "%x-%j.out",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in wanted.items() if value is not None]
    return [*lines, "#SBATCH --requeue"]


def _body(config: SlurmConfig) -> list[str]:
    return [
        "set -euo pipefail",
        "",
        *(config.setup or ("# Make python and feedline available here, for example:", "# source .venv/bin/activate")),
        "",
        *_nodes(config),
        "",
        "# One torchrun agent per node; the first node is where they meet. The port follows the job's number, so",
        "# that jobs sharing a node do not meet each other.",
        'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        "port=$((20000 + SLURM_JOB_ID % 20000))",
        'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun has not inherited it since Slurm 22.05',
        "",
        'srun --nodes="$nodes" --ntasks="$nodes" --kill-on-bad-exit=1 \\',
        "  python -m torch.distributed.run \\",
        f'  --nnodes="$nodes" --nproc-per-node={config.ranks} --max-restarts=3 \\',
        '  --rdzv-backend=c10d --rdzv-endpoint="$head_node:$port" --rdzv-id="$SLURM_JOB_ID" \\',
        *_command(config),
        "",
        "# Afterwards: seff $SLURM_JOB_ID, and the same figures at the end of the run's own output.",
    ]


def _nodes(config: SlurmConfig) -> list[str]:
    if not config.sizes:
        return [f"nodes={config.nodes}", f"run={shlex.quote(config.run)}"]
    sizes = " ".join(map(str, config.sizes))
    return [
        "# A scaling study: each job of the array trains on so many of the nodes, one job at a time.",
        f"sizes=({sizes})",
        'nodes="${sizes[$SLURM_ARRAY_TASK_ID]}"',
        f'run={shlex.quote(config.run)}/"nodes-$nodes"',
    ]


def _command(config: SlurmConfig) -> list[str]:
    device = "cuda" if config.gpus_per_node else "cpu"
    extra = " ".join(shlex.quote(word) for word in config.train_args)
    lines = [
        f'  -m feedline.train.main {shlex.quote(config.dataset)} --run-dir "$run" --resume auto \\',
        f"  --device {device} --num-workers {config.workers_per_rank}",
    ]
    if not config.gpus_per_node:
        lines[-1] += f" --threads {config.model_cpus}"
    return [*lines[:-1], f"{lines[-1]} \\", f"  {extra}"] if extra else lines


def write(config: SlurmConfig, path: Path) -> None:
    """Raises UsageError where it cannot be written, and rather than overwrite a file."""
    try:
        with path.open("x") as file:
            file.write(script(config))
        path.chmod(0o755)
    except FileExistsError:
        raise UsageError(f"{path} is there already: name another file or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
