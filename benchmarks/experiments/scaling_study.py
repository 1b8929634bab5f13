"""A scaling and timing study: training runs over devices, processes, nodes, batch sizes and repeats: time, accuracy.

    python -m feedline.benchmarks.experiments.scaling_study OUT [--devices cpu,1,2,4 --procs 1,2 --nodes 1,2,3
        --batch-size 60,120,240]
                                            [--repeats 3 --epochs 2 --model small_cnn --image-size 64 --work DIR]

Every cell is `torchrun` (or one process) training on prepared shards; preparing is not timed. `--devices`: `cpu`, and
numbers of GPUs; `--procs`: processes on the CPU of one node; `--nodes`: more nodes, each with the fewest processes,
here as network namespaces of their own (where that is not allowed: as agents on one host, and the record says so).
Repeats go in rounds, in an order drawn anew for each. `--batch-size` is the global batch by default, so that every
number of processes takes the same steps; with `--per-rank` it is each process's. Both are stated. Time is that of the
training itself (start-up, evaluation and checkpoints apart). Runs that --work holds are not repeated. Writes the
record, results/study.json by default, a page and a Markdown table beside it.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.benchmarks.commands import this_command
from feedline.benchmarks.compare import read_lines
from feedline.benchmarks.exit import end_with
from feedline.benchmarks.experiments.hosts import Host, joined_hosts
from feedline.benchmarks.experiments.scaling_page import markdown, study_page
from feedline.benchmarks.measure.rounds import rounds
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.format.manifest import manifest_hash, prepared_splits
from feedline.profiling.record.host import describe_host
from feedline.profiling.render.html import document

RESULT = Path(__file__).parents[1] / "results" / "study.json"
PORT = 29500
MOST_S = 900
"""No run of a study is that long; a rank that was lost would wait for ever."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    procs: int
    """On each node."""
    batch_size: int
    """Global, or of each process where the study is `per_rank`."""
    nodes: int = 1
    device: str = "cpu"
    """cpu, or cuda with a GPU for each process."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.procs

    @property
    def key(self) -> str:
        return f"{self.device}-{self.nodes}x{self.procs}x{self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    dataset: Path
    procs: tuple[int, ...] = (1, 2)
    nodes: tuple[int, ...] = (1,)
    gpus: tuple[int, ...] = ()
    """Numbers of GPUs on one node."""
    cpu: bool = True
    batch_sizes: tuple[int, ...] = (60, 120, 240)
    repeats: int = 3
    epochs: int = 2
    model: str = "small_cnn"
    image_size: int = 64
    per_rank: bool = False
    num_workers: int | None = None
    """None: as `feedline train` chooses."""

    def __post_init__(self) -> None:
        if self.repeats < 2:
            raise UsageError(f"--repeats {self.repeats}: at least 2, or there is no deviation")
        for name in ("procs", "nodes", "gpus", "batch_sizes"):
            if min(getattr(self, name), default=1) < 1:
                raise UsageError(f"--{name.replace('_sizes', '-size')} {min(getattr(self, name))}: at least 1")
        if self.num_workers is not None and self.num_workers < 0:
            raise UsageError(f"--num-workers {self.num_workers}: at least 0")

    def batch_per_rank(self, cell: "Cell") -> int:
        """A global batch that does not divide over the processes is taken at the nearest size that does."""
        return cell.batch_size if self.per_rank else max(1, round(cell.batch_size / cell.ranks))

    @property
    def cells(self) -> list[Cell]:
        """One node with each number of processes; more nodes with the fewest processes; each number of GPUs."""
        layouts = [(1, procs, "cpu") for procs in self.procs] if self.cpu else []
        layouts += [(nodes, min(self.procs), "cpu") for nodes in self.nodes if nodes > 1 and self.cpu]
        layouts += [(1, gpus, "cuda") for gpus in self.gpus]
        return [
            Cell(nodes=nodes, procs=procs, batch_size=batch_size, device=device)
            for (nodes, procs, device), batch_size in itertools.product(layouts, self.batch_sizes)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--devices", default="cpu", help="cpu and numbers of GPUs, as cpu,1,2,4")
    parser.add_argument("--procs", default="1,2", help="processes (ranks) on the CPU of one node")
    parser.add_argument("--nodes", default="1", help="nodes of the fewest processes each, as 1,2,3")
    parser.add_argument("--batch-size", default="60,120,240")
    parser.add_argument("--num-workers", type=int, help="of each process; default: as `feedline train` chooses")
    parser.add_argument("--per-rank", action="store_true", help="batch sizes are each process's")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--model", default="small_cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--work", type=Path, help="finished runs are kept here; default: a temporary folder")
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    words = said.devices.split(",")
    config = StudyConfig(
        dataset=said.dataset, procs=numbers(said.procs), nodes=numbers(said.nodes), cpu="cpu" in words,
        gpus=numbers(",".join(word for word in words if word != "cpu")), batch_sizes=numbers(said.batch_size),
        repeats=said.repeats, epochs=said.epochs, model=said.model, image_size=said.image_size,
        per_rank=said.per_rank, num_workers=said.num_workers,
    )  # fmt: skip
    check_gpus(config.gpus)
    with tempfile.TemporaryDirectory(prefix="feedline-study-") as scratch:
        record = study(config, Path(scratch), (said.work or Path(scratch)) / "runs.jsonl")
    write_atomically(said.json, (json.dumps(record, indent=1) + "\n").encode())
    write_atomically(said.json.with_suffix(".html"), document(study_page(record)).encode())
    write_atomically(said.json.with_suffix(".md"), markdown(record).encode())
    print(markdown(record))


def check_gpus(counts: Sequence[int]) -> None:
    if counts:
        import torch

        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if max(counts) > there:
            raise UsageError(f"--devices {max(counts)}: there are {there} GPUs here")


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"{text!r} is not a list of numbers like 1,2,4") from None


def study(config: StudyConfig, scratch: Path, kept: Path) -> dict[str, Any]:
    """Measures every cell `repeats` times. Raises FeedlineError with the last line of a run that fails."""
    cells = {cell.key: cell for cell in config.cells}
    runs: dict[str, list[dict[str, float]]] = {key: [] for key in cells}
    done = read_runs(kept, config)
    namespaces = None
    for number, key in rounds(list(cells), config.repeats):
        cell = cells[key]
        with joined_hosts(cell.nodes) as hosts:
            namespaces = hosts[0].apart if cell.nodes > 1 else namespaces
            found = done.get(f"{key}-{number}")
            if found is None:
                found = one_run(config, cell, hosts, number, scratch / f"{key}-{number}")
                keep_run(kept, config, f"{key}-{number}", found)
        runs[key].append(found)
        print(f"{key} {found['samples_per_s']:,.0f} samples/s, top-1 {found['top1']:.1%}", file=sys.stderr)
    return {
        "command": this_command(),
        "host": describe_host(),
        "usable_cores": usable_cores(),
        "model": config.model,
        "image_size_px": config.image_size,
        "device": ", ".join(dict.fromkeys(cell.device for cell in config.cells)),
        "namespaces": namespaces,
        "epochs": config.epochs,
        "num_workers": config.num_workers,
        "n": config.repeats,
        "warm_up": "the first epoch does not count",
        "cells": [summary(config, cell, runs[key], runs) for key, cell in cells.items()],
    }


def read_runs(kept: Path, config: StudyConfig) -> dict[str, dict[str, float]]:
    """Of the same study; nothing of another."""
    lines = read_lines(kept)
    if lines:
        whole = "".join(json.dumps(line) + "\n" for line in lines)  # without what a kill tore
        write_atomically(kept, whole.encode())
    return {line["run"]: line["found"] for line in lines if line["study"] == identity(config)}


def keep_run(kept: Path, config: StudyConfig, run: str, found: Mapping[str, float]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file:
        file.write(json.dumps({"study": identity(config), "run": run, "found": found}) + "\n")


def identity(config: StudyConfig) -> str:
    """What a run's figures depend on beside its cell."""
    manifests = [manifest_hash(split) for split in prepared_splits(config.dataset)]
    said = [config.model, config.image_size, config.epochs, config.per_rank, config.num_workers, *manifests]
    return " ".join(map(str, [config.dataset.resolve(), *said]))


def one_run(config: StudyConfig, cell: Cell, hosts: Sequence[Host], seed: int, run: Path) -> dict[str, float]:
    """A training by one process, or by an agent with its processes on each host."""
    agents = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in command_lines(config, cell, hosts, seed, run)
    ]
    try:
        outputs = [agent.communicate(timeout=MOST_S)[0] for agent in agents]
    except subprocess.TimeoutExpired as error:
        raise FeedlineError(f"{cell.key} did not end within {MOST_S} s") from error
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
    for agent, output in zip(agents, outputs, strict=True):
        if agent.returncode:
            lines = output.strip().splitlines() or ["no message"]
            ours = [line for line in lines if line.startswith("feedline: ")]
            raise FeedlineError(f"{cell.key}: {(ours or lines)[-1].removeprefix('feedline: ')}")
    epochs = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["epochs"][1:]
    samples, seconds = sum(one["samples"] for one in epochs), sum(one["seconds"] for one in epochs)
    return {
        "samples_per_s": samples / seconds,
        "epoch_s": seconds / len(epochs),
        "top1": epochs[-1]["top1"],
        "wait_fraction": statistics.mean(one["wait_fraction"] for one in epochs),
    }


def command_lines(config: StudyConfig, cell: Cell, hosts: Sequence[Host], seed: int, run: Path) -> list[list[str]]:
    """One per host."""
    threads = max(1, usable_cores() // cell.ranks)
    sizes = ["--batch-size", str(config.batch_per_rank(cell))]
    workers = [] if config.num_workers is None else ["--num-workers", str(config.num_workers)]
    training = ["feedline.train.main", str(config.dataset), "--model", config.model, "--image-size",
                str(config.image_size), *sizes, "--epochs", str(config.epochs + 1), *workers, "--threads",
                str(threads), "--seed", str(seed), "--device", cell.device, "--keep-last", "0", "--no-tensorboard",
                "--run-dir", str(run)]  # fmt: skip
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={cell.procs}"]
    if cell.ranks == 1:
        return [[sys.executable, "-m", *training]]
    if cell.nodes == 1:
        return [[*torchrun, "--standalone", "-m", *training]]
    return [
        [*host.prefix, *torchrun, f"--nnodes={cell.nodes}", f"--node-rank={number}",
         f"--master-addr={hosts[0].address}", f"--master-port={PORT}", "-m", *training]
        for number, host in enumerate(hosts)
    ]  # fmt: skip


def summary(
    config: StudyConfig, cell: Cell, found: Sequence[Mapping[str, float]], runs: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Means with standard deviations; the speed-up over the least processes at the same batch, round by round."""
    alike = [one for one in config.cells if (one.device, one.batch_size) == (cell.device, cell.batch_size)]
    least = min(alike, key=lambda one: one.ranks)
    ups = [mine["samples_per_s"] / base["samples_per_s"] for mine, base in zip(found, runs[least.key], strict=True)]
    per_rank = config.batch_per_rank(cell)
    figures = {
        name: statistics.mean(one[name] for one in found)
        for name in ("samples_per_s", "epoch_s", "top1", "wait_fraction")
    }
    spreads = {
        f"{name}_deviation": statistics.stdev(one[name] for one in found)
        for name in ("samples_per_s", "epoch_s", "top1")
    }
    return {
        "device": cell.device,
        "nodes": cell.nodes,
        "procs": cell.procs,
        "batch_per_rank": per_rank,
        "batch_global": per_rank * cell.ranks,
        **figures,
        **spreads,
        "speed_up": statistics.mean(ups),
        "speed_up_deviation": statistics.stdev(ups),
        "runs": list(found),
    }


if __name__ == "__main__":
    end_with(main)
