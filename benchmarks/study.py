"""A scaling and timing study: training runs over processes, batch sizes and repeats, with time and accuracy.

    python -m feedline.benchmarks.study OUT [--procs 1,2 --batch-size 50,100,200 --repeats 3 --epochs 2]
                                            [--model small_cnn --image-size 64 --devices cpu]

Every cell is `torchrun` (or one process) training on prepared shards; preparing is not timed. Repeats go in rounds,
in an order drawn anew for each. `--batch-size` is the global batch by default, so that every number of processes
takes the same steps; with `--per-rank` it is each process's. Both are stated. Time is that of the training itself
(start-up, evaluation and checkpoints apart). Writes the record, results/study.json by default, a page and a Markdown
table beside it.
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

from feedline.benchmarks.measuring import rounds
from feedline.pipeline.atomic import write_atomically
from feedline.pipeline.errors import FeedlineError, UsageError
from feedline.profiling.host import describe_host, usable_cores
from feedline.profiling.render import units
from feedline.profiling.render.charts import Bar, bars
from feedline.profiling.render.markup import Markup
from feedline.profiling.render.page import page, section, table, verdict

RESULT = Path(__file__).with_name("results") / "study.json"


@dataclass(frozen=True, kw_only=True)
class Cell:
    procs: int
    batch_size: int
    """Global, or of each process where the study is `per_rank`."""

    @property
    def key(self) -> str:
        return f"{self.procs}x{self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    dataset: Path
    procs: tuple[int, ...] = (1, 2)
    batch_sizes: tuple[int, ...] = (50, 100, 200)
    repeats: int = 3
    epochs: int = 2
    model: str = "small_cnn"
    image_size: int = 64
    device: str = "cpu"
    per_rank: bool = False

    def __post_init__(self) -> None:
        if self.repeats < 2:
            raise UsageError(f"--repeats {self.repeats}: at least 2, or there is no deviation")
        if not self.per_rank:
            uneven = [(p, b) for p in self.procs for b in self.batch_sizes if b % p]
            if uneven:
                raise UsageError(f"a global batch of {uneven[0][1]} does not divide over {uneven[0][0]} processes")

    @property
    def cells(self) -> list[Cell]:
        pairs = itertools.product(self.procs, self.batch_sizes)
        return [Cell(procs=procs, batch_size=batch_size) for procs, batch_size in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--procs", default="1,2", help="processes (ranks) on this host")
    parser.add_argument("--devices", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-size", default="50,100,200")
    parser.add_argument("--per-rank", action="store_true", help="batch sizes are each process's")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--model", default="small_cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    config = StudyConfig(
        dataset=said.dataset, procs=numbers(said.procs), batch_sizes=numbers(said.batch_size), repeats=said.repeats,
        epochs=said.epochs, model=said.model, image_size=said.image_size, device=said.devices, per_rank=said.per_rank,
    )  # fmt: skip
    record = study(config)
    write_atomically(said.json, (json.dumps(record, indent=1) + "\n").encode())
    write_atomically(said.json.with_suffix(".html"), str(study_page(record)).encode())
    write_atomically(said.json.with_suffix(".md"), markdown(record).encode())
    print(markdown(record))


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is not a list of numbers like 1,2,4") from None


def study(config: StudyConfig) -> dict[str, Any]:
    """Measures every cell `repeats` times. Raises FeedlineError with the last line of a run that fails."""
    cells = {cell.key: cell for cell in config.cells}
    runs: dict[str, list[dict[str, float]]] = {key: [] for key in cells}
    with tempfile.TemporaryDirectory(prefix="feedline-study-") as scratch:
        for number, key in rounds(list(cells), config.repeats):
            found = one_run(config, cells[key], number, Path(scratch) / f"{key}-{number}")
            runs[key].append(found)
            print(f"{key} {found['samples_per_s']:,.0f} samples/s, top-1 {found['top1']:.1%}", file=sys.stderr)
    return {
        "command": f"python -m feedline.benchmarks.study {' '.join(sys.argv[1:])}".strip(),
        "host": describe_host(),
        "usable_cores": usable_cores(),
        "model": config.model,
        "image_size_px": config.image_size,
        "device": config.device,
        "epochs": config.epochs,
        "n": config.repeats,
        "warm_up": "the first epoch does not count",
        "cells": [summary(config, cell, runs[key], runs) for key, cell in cells.items()],
    }


def one_run(config: StudyConfig, cell: Cell, seed: int, run: Path) -> dict[str, float]:
    threads = max(1, usable_cores() // cell.procs)
    sizes = ["--batch-size" if config.per_rank else "--global-batch", str(cell.batch_size)]
    options = [str(config.dataset), "--model", config.model, "--image-size", str(config.image_size), *sizes,
               "--epochs", str(config.epochs + 1), "--num-workers", "1", "--threads", str(threads),
               "--seed", str(seed), "--device", config.device, "--keep-last", "0", "--no-tensorboard",
               "--run-dir", str(run)]  # fmt: skip
    start = [sys.executable, "-m"]
    if cell.procs > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={cell.procs}", "-m"]
    done = subprocess.run([*start, "feedline.train.main", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise FeedlineError(f"{cell.procs} processes, batch {cell.batch_size}: {lines[-1]}")
    epochs = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["epochs"][1:]
    samples, seconds = sum(one["samples"] for one in epochs), sum(one["seconds"] for one in epochs)
    return {
        "samples_per_s": samples / seconds,
        "epoch_s": seconds / len(epochs),
        "top1": epochs[-1]["top1"],
        "wait_fraction": statistics.mean(one["wait_fraction"] for one in epochs),
    }


def summary(
    config: StudyConfig, cell: Cell, found: Sequence[Mapping[str, float]], runs: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Means with standard deviations; the speed-up over the least processes at the same batch, round by round."""
    least = Cell(procs=min(config.procs), batch_size=cell.batch_size)
    ups = [mine["samples_per_s"] / base["samples_per_s"] for mine, base in zip(found, runs[least.key], strict=True)]
    whole = cell.batch_size * cell.procs if config.per_rank else cell.batch_size
    figures = {
        name: statistics.mean(one[name] for one in found)
        for name in ("samples_per_s", "epoch_s", "top1", "wait_fraction")
    }
    spreads = {
        f"{name}_deviation": statistics.stdev(one[name] for one in found)
        for name in ("samples_per_s", "epoch_s", "top1")
    }
    return {
        "procs": cell.procs,
        "batch_per_rank": whole // cell.procs,
        "batch_global": whole,
        **figures,
        **spreads,
        "speed_up": statistics.mean(ups),
        "speed_up_deviation": statistics.stdev(ups),
        "runs": list(found),
    }


HEADERS = ("processes", "batch per rank", "global batch", "samples/s", "epoch", "speed-up", "top-1", "waiting")


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(cell["procs"]),
            str(cell["batch_per_rank"]),
            str(cell["batch_global"]),
            f"{cell['samples_per_s']:,.0f} ± {cell['samples_per_s_deviation']:,.0f}",
            f"{cell['epoch_s']:.2f} ± {cell['epoch_s_deviation']:.2f} s",
            f"{cell['speed_up']:.2f} ± {cell['speed_up_deviation']:.2f}",
            f"{cell['top1']:.1%} ± {cell['top1_deviation']:.1%}",
            units.percent(cell["wait_fraction"]),
        )
        for cell in record["cells"]
    ]


def markdown(record: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(HEADERS)} |", f"|{'---|' * len(HEADERS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows(record)]
    return "\n".join([method(record), "", *lines]) + "\n"


def method(record: Mapping[str, Any]) -> str:
    host = record["host"]
    return (
        f"{record['model']} at {record['image_size_px']} px on {record['usable_cores']} cores of {host['cpu']} "
        f"({record['device']}), {counted(record['epochs'], 'epoch')} after one of warm-up, {record['n']} repeats in "
        "random order; mean ± standard deviation; preparing, start-up, evaluation and checkpoints are not timed."
    )


def counted(number: int, noun: str) -> str:
    return (
        f"1 {noun}" if number == 1 else f"{number} {noun}{'es' * noun.endswith('s')}{'s' * (not noun.endswith('s'))}"
    )


def study_page(record: Mapping[str, Any]) -> Markup:
    """Pure."""
    cells: list[dict[str, Any]] = record["cells"]
    best = max(cells, key=lambda cell: cell["samples_per_s"])
    low = best["samples_per_s"] - best["samples_per_s_deviation"]
    near = [one for one in cells if one is not best and one["samples_per_s"] + one["samples_per_s_deviation"] >= low]
    words = f"{counted(best['procs'], 'process')} and a global batch of {best['batch_global']} train fastest"
    words += f"; {len(near)} other cells come within a standard deviation of it." if near else "."
    speeds = [
        Bar(label=name_of(cell), value=cell["samples_per_s"],
            low=cell["samples_per_s"] - cell["samples_per_s_deviation"],
            high=cell["samples_per_s"] + cell["samples_per_s_deviation"])
        for cell in cells
    ]  # fmt: skip
    ups = [
        Bar(label=name_of(cell), value=cell["speed_up"], low=cell["speed_up"] - cell["speed_up_deviation"],
            high=cell["speed_up"] + cell["speed_up_deviation"])
        for cell in cells
    ]  # fmt: skip
    return page(
        "Scaling study",
        verdict(words, evidence=method(record)),
        section("Throughput", bars(speeds, title="Throughput", note="whiskers: standard deviation")),
        section(
            "Speed-up", bars(ups, title="Speed-up over the fewest processes", unit="times", reference=("none", 1.0))
        ),
        section("Every cell", table(HEADERS, rows(record), numeric=range(len(HEADERS)))),
        kicker="feedline study",
    )


def name_of(cell: Mapping[str, Any]) -> str:
    return f"{counted(cell['procs'], 'process')}, global batch {cell['batch_global']}"


if __name__ == "__main__":
    main()
