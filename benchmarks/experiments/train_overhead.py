"""What the training loop costs: its own work beside a bare loop, checkpoints, ranks against threads.

    python -m feedline.benchmarks.experiments.train_overhead OUT [--model small_cnn --image-size 64 --batch-size 64
        --rounds 7]

- *own work*: everything but forward, backward, step and the next batch, as a share of a step, from the loop's own
  laps; and the same loop against a bare one (forward, loss, backward, step) on the same cached batches, in windows
  that alternate within one process, compared pair by pair.
- *checkpoints*: one run, its time with them and without.
- *ranks*: one process with N threads against N processes with one (`torchrun`, gloo), from prepared shards.

Writes benchmarks/results/training.json and prints its table.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feedline.benchmarks.commands import this_command
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.profiling.record.host import describe_host
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined
from feedline.train.loop import fit
from feedline.train.metrics import silent
from feedline.train.models import main_output
from feedline.train.report import Reporter
from feedline.train.run import Run

RESULT = Path(__file__).parents[1] / "results" / "training.json"
CACHED = 8
"""Distinct batches that are replayed."""


class Replay:
    """Stands in for the loader of a run: the same cached batches again and again, at no cost."""

    num_workers = 0

    def __init__(self, batches: list[tuple[Tensor, Tensor]], count: int) -> None:
        self._batches, self._count = batches, count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._batches[number % len(self._batches)] for number in range(self._count))

    def set_epoch(self, epoch: int) -> None: ...
    def set_image_size(self, px: int) -> None: ...
    def close(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        return {"trainer": {"wait_s": 0.0}}


def measure_own_work(config: TrainConfig, rounds: int, steps: int) -> dict[str, Any]:
    """`own_fraction` from the laps; `ratio`: time of our loop by that of the bare one, per pair of windows."""
    with joined(config) as world:
        run = Run(config, world, Path(tempfile.mkdtemp()), silent)
        batches = cached_batches(run)
        ours, bare, own = [], [], []
        window_ours(run, batches, steps)
        window_bare(run, batches, steps)
        for number in range(rounds):
            order = (window_ours, window_bare) if number % 2 else (window_bare, window_ours)
            for window in order:
                spent_s, own_share = window(run, batches, steps)
                (ours if window is window_ours else bare).append(spent_s / steps)
                own += [own_share] if window is window_ours else []
        run.close()
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


def cached_batches(run: Run) -> list[tuple[Tensor, Tensor]]:
    kept: list[tuple[Tensor, Tensor]] = []
    for images_NCHW, labels_N in run.loader:
        kept.append((images_NCHW, labels_N))
        if len(kept) == CACHED:
            break
    run.loader.close()
    return kept


def window_ours(run: Run, batches: list[tuple[Tensor, Tensor]], steps: int) -> tuple[float, float]:
    """(seconds, share of own work) of `steps` steps of `fit`, log lines included, evaluation and checkpoints not."""
    run.loader = Replay(batches, steps + 1)  # pyright: ignore[reportAttributeAccessIssue]
    run.progress.epoch = run.progress.step = 0
    run.progress.samples = 0
    with Reporter(run) as report:
        run.start_clock()
        fit(run, report)
    laps = run.laps.total_s
    return run.laps.training_s(), laps["own"] / run.laps.training_s()


def window_bare(run: Run, batches: list[tuple[Tensor, Tensor]], steps: int) -> tuple[float, float]:
    """The least that trains: no logs, no schedule, no accounts."""
    model, optimizer = run.model, run.optimizer
    model.train()
    started_s = time.perf_counter()
    for number in range(steps):
        images_NCHW, labels_N = batches[number % len(batches)]
        with torch.autocast(run.world.device.type, run.amp_dtype, enabled=run.amp_dtype is not None):
            loss = F.cross_entropy(main_output(model(images_NCHW)), labels_N)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if run.world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_s, 0.0


def measure_checkpoints(config: TrainConfig, folder: Path, every: int) -> dict[str, Any]:
    from feedline.train.loop import train

    record = train(replace(config, run=folder, keep_last=3, checkpoint_every=every))
    return {
        "every_steps": every,
        "steps": record["steps"],
        "run_s": record["train_s"],
        "without_checkpoints_s": record["without_checkpoints_s"],
        "fraction": record["checkpoint_s"] / max(record["train_s"], 1e-9),
    }


def measure_ranks(options: list[str], folder: Path, ranks: int, rounds: int) -> dict[str, Any]:
    """samples/s of the last epoch: one process with `ranks` threads, and as many processes with one each."""
    rates: dict[str, list[float]] = {"threads": [], "ranks": []}
    waits: dict[str, list[float]] = {"threads": [], "ranks": []}
    for number in range(rounds):
        for name in ("threads", "ranks") if number % 2 else ("ranks", "threads"):
            run = folder / f"{name}-{number}"
            command = [sys.executable, "-m", "feedline.train.main", *options, "--threads", str(ranks)]
            if name == "ranks":
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                           "-m", "feedline.train.main", *options, "--threads", "1"]  # fmt: skip
            subprocess.run([*command, "--run-dir", str(run)], check=True, capture_output=True)
            last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["epochs"][-1]
            rates[name].append(last["samples_per_s"])
            waits[name].append(last["wait_fraction"])
    return {
        "ranks": ranks,
        "threads_samples_per_s": statistics.median(rates["threads"]),
        "ranks_samples_per_s": statistics.median(rates["ranks"]),
        "ratio": statistics.median(b / a for a, b in zip(rates["threads"], rates["ranks"], strict=True)),
        "wait_fraction": {name: statistics.median(waits[name]) for name in waits},
        "rates": rates,
        "n": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="small_cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, help="of the model in the first two measurements; default: all")
    parser.add_argument("--rank-rounds", type=int, default=3, help="0 leaves the comparison of ranks out")
    parser.add_argument("--json", type=Path, default=RESULT)
    chosen = parser.parse_args()
    config = TrainConfig(
        dataset=chosen.dataset,
        model=chosen.model,
        image_size=chosen.image_size,
        batch_size=chosen.batch_size,
        epochs=1,
        steps=chosen.steps,
        eval_every=0,
        keep_last=0,
        tensorboard=False,
        num_workers=1,
        policy="wrap",
        threads=chosen.threads,
    )
    result = measure(chosen, config)
    write_atomically(chosen.json, (json.dumps(result, indent=1, default=str) + "\n").encode())
    show(result)


def measure(chosen: argparse.Namespace, config: TrainConfig) -> dict[str, Any]:
    options = [str(chosen.dataset), "--model", chosen.model, "--image-size", str(chosen.image_size), "--epochs", "2",
               "--global-batch", str(chosen.batch_size), "--num-workers", "1", "--eval-every", "0", "--keep-last",
               "0", "--no-tensorboard"]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        own = measure_own_work(config, chosen.rounds, chosen.steps)
        kept = measure_checkpoints(config, Path(scratch) / "kept", every=10)
        ranks = measure_ranks(options, Path(scratch), 2, chosen.rank_rounds) if chosen.rank_rounds else None
    return {
        "command": this_command(),
        "host": describe_host(),
        "threads": chosen.threads or usable_cores(),
        "model": chosen.model,
        "image_size_px": chosen.image_size,
        "batch_size": chosen.batch_size,
        "warm_up": "one window of each loop",
        "own_work": own,
        "checkpoints": kept,
        "ranks_against_threads": ranks,
    }


def show(result: dict[str, Any]) -> None:
    own, kept, ranks = result["own_work"], result["checkpoints"], result["ranks_against_threads"]
    what = f"{result['model']} {result['image_size_px']} px, batch {result['batch_size']}"
    print(f"{what}: own work {own['own_fraction']:.2%} of a step of {own['step_ms']:.2f} ms")
    print(
        f"beside a bare loop: × {own['ratio']:.4f} ({own['ratio_low']:.4f} to {own['ratio_high']:.4f}, n {own['n']})"
    )
    print(f"a checkpoint every {kept['every_steps']} steps: {kept['fraction']:.2%} of the run")
    if ranks:
        print(f"{ranks['ranks']} ranks of one thread: × {ranks['ratio']:.3f} of one rank of {ranks['ranks']} threads")


if __name__ == "__main__":
    main()
