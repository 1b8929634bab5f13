"""Does training from prepared shards wait, when the loader could deliver more than the model takes?

    python -m feedline.benchmarks.experiments.pinned OUT [--model mobilenet_v2 --image-size 64 --batch-size 64
        --rounds 3 --steps 25]

The trainer runs on one core with one thread, the loader's worker on another: neither can take time from the other.
In every round, in one process: the loader alone, the training loop on cached batches (the ceiling), the training loop
on the loader. Writes results/pinned-MODEL.json and prints its table.
"""

import itertools
import os
import statistics
import time
from argparse import Namespace
from typing import Any

from feedline.benchmarks.experiments.harness import end_with, options, write
from feedline.benchmarks.experiments.train_overhead import cached_batches, opened, short_training, window_ours
from feedline.pipeline.base.errors import UsageError
from feedline.train.loop import fit
from feedline.train.report import Reporter
from feedline.train.run import Run


def main() -> None:
    given = options(__doc__, "pinned-MODEL.json", "dataset", model="mobilenet_v2", image_size=64, batch_size=64,
                    rounds=3, steps=25)  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UsageError("this needs two cores: one for the trainer, one for the worker")
    rounds = [one_round(given, cores) for _ in range(given.rounds)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    about = {"model": given.model, "image_size_px": given.image_size, "batch_size": given.batch_size,
             "warm_up": "two batches of each", "steps": given.steps, "n": given.rounds}  # fmt: skip
    out = given.out.with_name(given.out.name.replace("MODEL", given.model))
    write(out, {**about, **medians, "rounds": rounds})
    print(f"{given.model}, {given.image_size} px: alone {medians['loader_samples_per_s']:,.0f} samples/s, "
          f"cached batches {medians['ceiling_samples_per_s']:,.0f}, trained at {medians['samples_per_s']:,.0f}; "
          f"waiting {medians['wait_fraction']:.2%}")  # fmt: skip


def one_round(given: Namespace, cores: list[int]) -> dict[str, float]:
    config = short_training(given, given.steps + 2, num_workers=1, threads=1)
    samples = given.steps * given.batch_size
    os.sched_setaffinity(0, cores[:1])
    try:
        with opened(config) as run:
            loader = run.loader
            alone_s = loader_alone_s(run, given.steps, cores[1])
            batches = cached_batches(run)
            window_ours(run, batches, 2)
            ceiling_s, _ = window_ours(run, batches, given.steps)
            run.loader = loader
            trained_s, waited_s = trained(run, cores[1])
    finally:
        os.sched_setaffinity(0, cores)
    return {"loader_samples_per_s": samples / alone_s, "ceiling_samples_per_s": samples / ceiling_s,
            "samples_per_s": samples / trained_s, "wait_fraction": waited_s / trained_s}  # fmt: skip


def pin(run: Run, core: int) -> None:
    for pid in run.loader.worker_pids:
        os.sched_setaffinity(pid, [core])


def loader_alone_s(run: Run, steps: int, worker_core: int) -> float:
    batches = (batch for _ in itertools.repeat(None) for batch in run.loader)
    next(batches)
    pin(run, worker_core)
    for _ in range(8):
        next(batches)
    started_s = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return time.perf_counter() - started_s


def trained(run: Run, worker_core: int) -> tuple[float, float]:
    """Seconds of `fit` as it is, and of them waited; its first two steps, while the worker starts, do not count."""
    begun: dict[str, Any] = {}
    set_lr = run.set_lr

    def starting() -> None:
        set_lr()
        if run.progress.step == 1:
            pin(run, worker_core)
            begun.update(clock_s=time.perf_counter(), waited_s=run.waited_s())

    run.set_lr = starting
    with Reporter(run) as report:
        run.progress.epoch = run.progress.step = 0
        run.start_clock()
        fit(run, report)
        spent_s = time.perf_counter() - begun["clock_s"]
        return spent_s, run.waited_s() - begun["waited_s"]


if __name__ == "__main__":
    end_with(main)
