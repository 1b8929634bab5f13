"""A scaling and timing study: training runs over devices, processes, nodes, batch sizes and repeats: time, accuracy.

    python -m feedline.benchmarks.experiments.scaling_study OUT [--devices cpu 1 2 4 --procs 1 2 --nodes 1 2 3]
        [--batch-size 60 120 240 --repeats 3 --epochs 2 --model small_cnn --image-size 64 --num-workers N --work DIR]

Every cell is `torchrun` (or one process) training on prepared shards; preparing is not timed. `--devices`: `cpu`, and
numbers of GPUs; `--procs`: processes on the CPU of one node; `--nodes`: more nodes, each with the fewest processes,
here as agents on one host.
Repeats go in rounds, in an order drawn anew for each. `--batch-size` is the global batch by default, so that every
number of processes takes the same steps; with `--per-rank` it is each process's. Both are stated. Time is that of the
training itself (start-up, evaluation and checkpoints apart). Runs that --work holds are not repeated. Writes the
record, results/study.json by default, a page and a Markdown table beside it (`scaling_report`).
"""

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

from feedline.benchmarks.comparison import read_lines
from feedline.benchmarks.experiments.harness import end_with, options, say, write
from feedline.benchmarks.experiments.scaling_report import markdown, study_page
from feedline.benchmarks.measure.rounds import check_devices, rounds
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.format.manifest import manifest_hash, prepared_splits
from feedline.profiling.render.html import document
from feedline.train.metrics import read_events

PORT = 29500
MOST_S = 900
"""No run of a study is that long; a rank that was lost would wait for ever."""
FIGURES = ("samples_per_s", "epoch_s", "top1", "wait_fraction")


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
    procs: tuple[int, ...] = limited((1, 2), 1)
    nodes: tuple[int, ...] = limited((1,), 1)
    devices: tuple[str, ...] = ("cpu",)
    batch_sizes: tuple[int, ...] = limited((60, 120, 240), 1)
    repeats: int = limited(3, 2)
    """One alone has no deviation."""
    epochs: int = 2
    model: str = "small_cnn"
    image_size: int = 64
    per_rank: bool = False
    num_workers: int | None = limited(None, 0)
    """None: as `feedline train` chooses."""

    def __post_init__(self) -> None:
        check_limits(self)
        if bad := [word for word in self.devices if word != "cpu" and not (word.isdigit() and int(word))]:
            raise UsageError(f"--devices {bad[0]}: cpu or a number of GPUs")

    def batch_per_rank(self, cell: Cell) -> int:
        """A global batch that does not divide over the processes is taken at the nearest size that does."""
        return cell.batch_size if self.per_rank else max(1, round(cell.batch_size / cell.ranks))

    @property
    def cells(self) -> list[Cell]:
        """One node with each number of processes; more nodes with the fewest processes; each number of GPUs."""
        layouts: list[tuple[int, int, str]] = []
        if "cpu" in self.devices:
            layouts = [(1, procs, "cpu") for procs in self.procs]
            layouts += [(nodes, min(self.procs), "cpu") for nodes in self.nodes if nodes > 1]
        layouts += [(1, int(gpus), "cuda") for gpus in self.devices if gpus != "cpu"]
        return [
            Cell(nodes=nodes, procs=procs, batch_size=batch_size, device=device)
            for (nodes, procs, device), batch_size in itertools.product(layouts, self.batch_sizes)
        ]

    @property
    def identity(self) -> str:
        """What a run's figures depend on beside its cell."""
        manifests = [manifest_hash(split) for split in prepared_splits(self.dataset)]
        settings = [self.model, self.image_size, self.epochs, self.per_rank, self.num_workers]
        return " ".join(map(str, [self.dataset.resolve(), *settings, *manifests]))


def main() -> None:
    asked = vars(options(
        __doc__, "study.json", "dataset", devices=("cpu",), procs=(1, 2), nodes=(1,), batch_size=(60, 120, 240),
        num_workers=int, per_rank=False, repeats=3, epochs=2, model="small_cnn", image_size=64, work=Path,
    ))  # fmt: skip
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()
    }
    work, out = given.pop("work"), given.pop("out")
    config = StudyConfig(batch_sizes=given.pop("batch_size"), **given)
    if gpus := [cell.procs for cell in config.cells if cell.device == "cuda"]:
        check_devices(gpus, "cuda", [config.model])
    with tempfile.TemporaryDirectory(prefix="feedline-study-") as scratch:
        record = study(config, Path(scratch), (work or Path(scratch)) / "runs.jsonl")
    write(out, record)
    record = json.loads(out.read_text())
    write_atomically(out.with_suffix(".html"), document(study_page(record)).encode())
    write_atomically(out.with_suffix(".md"), markdown(record).encode())
    print(markdown(record))


def study(config: StudyConfig, scratch: Path, kept: Path) -> dict[str, Any]:
    """Measures every cell `repeats` times. Raises FeedlineError with the last line of a run that fails."""
    cells = {cell.key: cell for cell in config.cells}
    runs: dict[str, list[dict[str, float]]] = {key: [] for key in cells}
    done = read_runs(kept, config)
    for number, key in rounds(list(cells), config.repeats):
        cell, name = cells[key], f"{key}-{number}"
        if name not in done:
            done[name] = one_run(config, cell, number, scratch / name)
            keep_run(kept, config, name, done[name])
        runs[key].append(done[name])
        say(f"{key} {done[name]['samples_per_s']:,.0f} samples/s, top-1 {done[name]['top1']:.1%}")
    return {
        "usable_cores": usable_cores(),
        "model": config.model,
        "image_size_px": config.image_size,
        "device": ", ".join(dict.fromkeys(cell.device for cell in config.cells)),
        "epochs": config.epochs,
        "num_workers": config.num_workers,
        "n": config.repeats,
        "warm_up": "the first epoch does not count",
        "cells": [summary(config, cell, runs) for cell in cells.values()],
    }


def read_runs(kept: Path, config: StudyConfig) -> dict[str, dict[str, float]]:
    """Of the same study; nothing of another. The file is left without what a kill tore."""
    if lines := read_lines(kept):
        write_atomically(kept, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return {line["run"]: line["found"] for line in lines if line["study"] == config.identity}


def keep_run(kept: Path, config: StudyConfig, run: str, found: Mapping[str, float]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a") as file:
        file.write(json.dumps({"study": config.identity, "run": run, "found": found}) + "\n")


def one_run(config: StudyConfig, cell: Cell, seed: int, run: Path) -> dict[str, float]:
    """A training by one process, or by an agent with its processes for each node."""
    agents = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in command_lines(config, cell, seed, run)
    ]
    try:
        outputs = [agent.communicate(timeout=MOST_S)[0] for agent in agents]
    except subprocess.TimeoutExpired as error:
        raise FeedlineError(f"{cell.key} did not end within {MOST_S} s") from error
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    for agent, output in zip(agents, outputs, strict=True):
        if agent.returncode:
            lines = output.strip().splitlines() or ["no message"]
            ours = [line for line in lines if line.startswith("feedline: ")]
            raise FeedlineError(f"{cell.key}: {(ours or lines)[-1].removeprefix('feedline: ')}")
    epochs = read_events(run, "end")[-1]["epochs"][1:]
    samples, seconds = sum(one["samples"] for one in epochs), sum(one["seconds"] for one in epochs)
    waits = statistics.mean(one["wait_fraction"] for one in epochs)
    figures = (samples / seconds, seconds / len(epochs), epochs[-1]["top1"], waits)
    return dict(zip(FIGURES, figures, strict=True))


def command_lines(config: StudyConfig, cell: Cell, seed: int, run: Path) -> list[list[str]]:
    """One per node."""
    values = {"model": config.model, "image_size": config.image_size, "batch_size": config.batch_per_rank(cell),
              "epochs": config.epochs + 1, "num_workers": config.num_workers,
              "threads": max(1, usable_cores() // cell.ranks), "seed": seed, "device": cell.device, "keep_last": 0,
              "run_dir": run}  # fmt: skip
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value is not None]
    training = ["-m", "feedline.train.main", str(config.dataset), *itertools.chain(*words), "--no-tensorboard"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={cell.procs}"]
    if cell.ranks == 1:
        return [[sys.executable, *training]]
    if cell.nodes == 1:
        return [[*torchrun, "--standalone", *training]]
    meeting = [f"--nnodes={cell.nodes}", "--master-addr=127.0.0.1", f"--master-port={PORT}"]
    return [[*torchrun, *meeting, f"--node-rank={number}", *training] for number in range(cell.nodes)]


def summary(config: StudyConfig, cell: Cell, runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Means with standard deviations; the speed-up over the least processes at the same batch, round by round."""
    alike = [one for one in config.cells if (one.device, one.batch_size) == (cell.device, cell.batch_size)]
    least, found = min(alike, key=lambda one: one.ranks), runs[cell.key]
    ups = [mine["samples_per_s"] / base["samples_per_s"] for mine, base in zip(found, runs[least.key], strict=True)]
    by_name = {**{name: [one[name] for one in found] for name in FIGURES}, "speed_up": ups}
    per_rank = config.batch_per_rank(cell)
    return {
        "device": cell.device,
        "nodes": cell.nodes,
        "procs": cell.procs,
        "batch_per_rank": per_rank,
        "batch_global": per_rank * cell.ranks,
        **{name: statistics.mean(values) for name, values in by_name.items()},
        **{f"{name}_deviation": statistics.stdev(values) for name, values in by_name.items()},
        "runs": list(found),
    }


if __name__ == "__main__":
    end_with(main)
