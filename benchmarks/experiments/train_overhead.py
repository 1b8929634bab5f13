"""What the training loop costs: its own work beside a bare loop, checkpoints, ranks against threads.

    python -m feedline.benchmarks.experiments.train_overhead OUT [--model small_cnn --image-size 64 --batch-size 64
        --rounds 7 --steps 40 --threads N --rank-rounds 3]

- *own work*: everything but forward, backward, step and the next batch, as a share of a step, from the loop's own
  laps; and the same loop against a bare one (forward, loss, backward, step) on the same cached batches, in windows
  that alternate within one process, compared pair by pair.
- *checkpoints*: one run, its time with them and without.
- *ranks*: one process with N threads against N processes with one (`torchrun`, gloo), from prepared shards;
  `--rank-rounds 0` leaves it out.

Writes benchmarks/results/training.json and prints its table.
"""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, write
from feedline.pipeline.base.process import usable_cores
from feedline.train.checkpoint import Checkpoints
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined
from feedline.train.loop import fit, train
from feedline.train.metrics import read_events
from feedline.train.report import Reporter
from feedline.train.run import Run

Batches = list[tuple[Tensor, Tensor]]
CACHED = 8
"""Distinct batches that are replayed."""
RANKS, CHECKPOINT_EVERY = 2, 10


def main() -> None:
    given = options(__doc__, "training.json", "dataset", model="small_cnn", image_size=64, batch_size=64, rounds=7,
                    steps=40, threads=int, rank_rounds=3)  # fmt: skip
    config = short_training(given, given.steps, num_workers=1, threads=given.threads)
    words = [str(given.dataset), "--model", given.model, "--image-size", str(given.image_size), "--epochs", "2",
             "--global-batch", str(given.batch_size), "--num-workers", "1", "--eval-every", "0", "--keep-last", "0",
             "--no-tensorboard"]  # fmt: skip
    own = own_work(config, given.rounds, given.steps)
    with tempfile.TemporaryDirectory() as scratch:
        kept = checkpoints(config, Path(scratch) / "kept")
        ranks = against_threads(words, Path(scratch), given.rank_rounds) if given.rank_rounds else None
    about = {"threads": given.threads or usable_cores(), "model": given.model, "image_size_px": given.image_size,
             "batch_size": given.batch_size, "warm_up": "one window of each loop"}  # fmt: skip
    write(given.out, {**about, "own_work": own, "checkpoints": kept, "ranks_against_threads": ranks})
    print(f"own work {own['own_fraction']:.2%} of a step of {own['step_ms']:.2f} ms; beside a bare loop "
          f"× {own['ratio']:.4f} ({own['ratio_low']:.4f} to {own['ratio_high']:.4f}, n {own['n']})")  # fmt: skip
    print(f"a checkpoint every {kept['every_steps']} steps: {kept['fraction']:.2%} of the run")
    if ranks:
        print(f"{RANKS} ranks of one thread: × {ranks['ratio']:.3f} of one rank of {RANKS} threads")


def short_training(given: Namespace, steps: int, **more: Any) -> TrainConfig:
    """As the options of an experiment say: so many steps, no evaluation, and nothing that is written."""
    return TrainConfig(
        dataset=Path(given.dataset), model=given.model, image_size=given.image_size, batch_size=given.batch_size,
        epochs=1, steps=steps, eval_every=0, keep_last=0, tensorboard=False, policy="wrap", **more,
    )  # fmt: skip


def own_work(config: TrainConfig, rounds: int, steps: int) -> dict[str, Any]:
    """`own_fraction` from the laps; `ratio`: time of our loop by that of the bare one, per pair of windows."""
    with opened(config) as run:
        batches = cached_batches(run)
        cells: dict[str, Callable[[], tuple[float, float]]] = {
            "ours": lambda: window_ours(run, batches, steps),
            "bare": lambda: window_bare(run, batches, steps),
        }
        in_rounds(cells, 1)
        by_round = in_rounds(cells, rounds)
    ours, bare = ([spent_s / steps for spent_s, _ in column(by_round, name)] for name in ("ours", "bare"))
    own = [share for _, share in column(by_round, "ours")]
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return {
        "step_ms": statistics.median(ours) * 1e3,
        "bare_step_ms": statistics.median(bare) * 1e3,
        "samples_per_s": config.batch_size / statistics.median(ours),
        "own_fraction": statistics.median(own),
        "own_fraction_high": max(own),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "n": rounds,
        "steps_per_window": steps,
    }


@contextmanager
def opened(config: TrainConfig) -> Generator[Run]:
    """A run of which nothing is kept."""
    with joined(config) as world, tempfile.TemporaryDirectory() as folder:
        run = Run(config, world, Checkpoints(Path(folder)), lambda _: None)
        yield run
        run.close()


class Replay:
    """Stands in for the loader of a run: the same cached batches again and again, at no cost."""

    num_workers = 0

    def __init__(self, batches: Batches, count: int) -> None:
        self._batches, self.batches_left = batches, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return itertools.islice(itertools.cycle(self._batches), self.batches_left)

    def set_epoch(self, epoch: int) -> None: ...
    def set_image_size(self, px: int) -> None: ...
    def close(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        return {"trainer": {"wait_s": 0.0}}


def cached_batches(run: Run) -> Batches:
    batches: Batches = list(itertools.islice(iter(run.loader), CACHED))
    run.loader.close()
    return batches


def window_ours(run: Run, batches: Batches, steps: int) -> tuple[float, float]:
    """(seconds, share of own work) of `steps` steps of `fit`, log lines included, evaluation and checkpoints not."""
    run.loader = Replay(batches, steps + 1)  # pyright: ignore[reportAttributeAccessIssue]
    run.progress.epoch = run.progress.step = run.progress.samples = 0
    with Reporter(run) as report:
        run.start_clock()
        fit(run, report)
    return run.laps.training_s(), run.laps.total_s["own"] / run.laps.training_s()


def window_bare(run: Run, batches: Batches, steps: int) -> tuple[float, float]:
    """The least that trains: no logs, no schedule, no accounts."""
    model, optimizer = run.model, run.optimizer
    model.train()
    started_s = time.perf_counter()
    for images_NCHW, labels_N in Replay(batches, steps):
        with torch.autocast(run.world.device.type, run.amp_dtype, enabled=run.amp_dtype is not None):
            loss = F.cross_entropy(model(images_NCHW), labels_N)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_s, 0.0


def checkpoints(config: TrainConfig, folder: Path) -> dict[str, Any]:
    record = train(replace(config, run=folder, keep_last=3, checkpoint_every=CHECKPOINT_EVERY))
    return {
        "every_steps": CHECKPOINT_EVERY,
        "steps": record["steps"],
        "run_s": record["train_s"],
        "without_checkpoints_s": record["without_checkpoints_s"],
        "fraction": record["checkpoint_s"] / max(record["train_s"], 1e-9),
    }


def against_threads(words: list[str], folder: Path, rounds: int) -> dict[str, Any]:
    """samples/s of the last epoch: one process with RANKS threads, and as many processes with one each."""

    def epoch(launcher: list[str], threads: int) -> dict[str, float]:
        run = Path(tempfile.mkdtemp(dir=folder))
        command = [sys.executable, *launcher, "-m", "feedline.train.main", *words, "--threads", str(threads)]
        subprocess.run([*command, "--run-dir", str(run)], check=True, capture_output=True)
        return read_events(run, "end")[-1]["epochs"][-1]

    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    by_round = in_rounds({"threads": lambda: epoch([], RANKS), "ranks": lambda: epoch(torchrun, 1)}, rounds)
    epochs = {name: column(by_round, name) for name in ("threads", "ranks")}
    rates = {name: [one["samples_per_s"] for one in epochs[name]] for name in epochs}
    return {
        "ranks": RANKS,
        "threads_samples_per_s": statistics.median(rates["threads"]),
        "ranks_samples_per_s": statistics.median(rates["ranks"]),
        "ratio": statistics.median(b / a for a, b in zip(rates["threads"], rates["ranks"], strict=True)),
        "wait_fraction": {name: statistics.median(one["wait_fraction"] for one in epochs[name]) for name in epochs},
        "rates": rates,
        "n": rounds,
    }


if __name__ == "__main__":
    end_with(main)
