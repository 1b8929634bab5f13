"""Does training from prepared shards wait, when the loader could deliver more than the model takes?

    python -m feedline.benchmarks.experiments.pinned OUT [--model mobilenet_v2 --image-size 64 --batch-size 64
        --rounds 3]

The trainer runs on one core with one thread, the loader's worker on another: neither can take time from the other.
In every round, in one process: the loader alone, the training loop on cached batches (the ceiling), the training loop
on the loader. Writes results/pinned-MODEL.json and prints its table.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from feedline.benchmarks.commands import this_command
from feedline.benchmarks.experiments.train_overhead import cached_batches, window_ours
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record.host import describe_host
from feedline.train import data
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined
from feedline.train.loop import fit
from feedline.train.metrics import silent
from feedline.train.report import Reporter
from feedline.train.run import Run

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--json", type=Path, help="default: results/pinned-MODEL.json")
    said = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UsageError("this needs two cores: one for the trainer, one for the worker")
    rounds = [one_round(said, cores) for _ in range(said.rounds)]
    result = {
        "command": this_command(),
        "host": describe_host(),
        "model": said.model,
        "image_size_px": said.image_size,
        "batch_size": said.batch_size,
        "warm_up": "two batches of each",
        "steps": said.steps,
        "n": said.rounds,
        **{name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "rounds": rounds,
    }
    write_atomically(
        said.json or RESULTS / f"pinned-{said.model}.json", (json.dumps(result, indent=1) + "\n").encode()
    )
    print(
        f"{said.model} {said.image_size} px: loader alone {result['loader_samples_per_s']:,.0f} samples/s, cached "
        f"batches {result['ceiling_samples_per_s']:,.0f}, trained at {result['samples_per_s']:,.0f}; "
        f"waiting {result['wait_fraction']:.2%}"
    )


def one_round(said: argparse.Namespace, cores: list[int]) -> dict[str, float]:
    config = TrainConfig(
        dataset=said.dataset, model=said.model, image_size=said.image_size, batch_size=said.batch_size, epochs=1,
        steps=said.steps + 2, eval_every=0, keep_last=0, tensorboard=False, num_workers=1, policy="wrap", threads=1,
    )  # fmt: skip
    with joined(config) as world:
        torch.set_num_threads(1)
        os.sched_setaffinity(0, cores[:1])
        try:
            return measured(Run(config, world, Path(tempfile.mkdtemp()), silent), said, cores[1])
        finally:
            os.sched_setaffinity(0, cores)


def measured(run: Run, said: argparse.Namespace, worker_core: int) -> dict[str, float]:
    loader = run.loader
    alone = loader_alone(run, said, worker_core)
    batches = cached_batches(run)
    window_ours(run, batches, 2)
    ceiling_s, _ = window_ours(run, batches, said.steps)
    run.loader = loader
    trained = training(run, said, worker_core)
    run.close()
    return {
        "loader_samples_per_s": alone,
        "ceiling_samples_per_s": said.steps * said.batch_size / ceiling_s,
        **trained,
    }


def loader_alone(run: Run, said: argparse.Namespace, worker_core: int) -> float:
    batches = endless(run)
    next(batches)
    pin(run, worker_core)
    for _ in range(8):
        next(batches)
    started = time.perf_counter()
    for _ in range(said.steps):
        next(batches)
    return said.steps * said.batch_size / (time.perf_counter() - started)


def endless(run: Run) -> Iterator[Any]:
    while True:
        yield from run.loader


def pin(run: Run, core: int) -> None:
    for pid in run.loader.worker_pids:
        os.sched_setaffinity(pid, [core])


def training(run: Run, said: argparse.Namespace, worker_core: int) -> dict[str, float]:
    """`fit` as it is; its first two steps, while the worker starts, do not count."""
    seen: dict[str, Any] = {}
    with Reporter(run) as report, counted(run, seen, worker_core):
        run.progress.epoch = run.progress.step = 0
        run.start_clock()
        fit(run, report)
        spent_s = time.perf_counter() - seen["started"]
        waited_s = data.waited_s(run.loader) - seen["waited_s"]
    return {"samples_per_s": said.steps * said.batch_size / spent_s, "wait_fraction": waited_s / spent_s}


@contextmanager
def counted(run: Run, seen: dict[str, Any], worker_core: int) -> Generator[None]:
    """Pins the worker and starts the clock as the second step ends."""
    step = run.set_lr

    def set_lr() -> None:
        step()
        if run.progress.step == 1:
            pin(run, worker_core)
            seen.update(started=time.perf_counter(), waited_s=data.waited_s(run.loader))

    run.set_lr = set_lr
    yield
    run.set_lr = step


if __name__ == "__main__":
    main()
