"""What several trainings at once cost beside one: samples/s in sum, and memory.

    python -m feedline.benchmarks.experiments.many OUT [OUT …] [--jobs 4 --rounds 3 --steps 200 --model small_cnn
        --image-size 64 --batch-size 64 --num-workers 1]

For each prepared folder, in rounds of random order: one training on all cores (`one`), one on the share that each of
several gets (`alone`), and `--jobs` of them at once, each on its share of the cores, or on its GPU (`many`), as
`feedline sweep --jobs` places them. All read the same shards, none knows of the others.

- *samples/s*: of all trainings together, between two log lines that lie inside the time in which all of them train;
- *memory*: of all their processes at its largest; pages that several hold counted once (PSS), and each time (RSS).

Writes benchmarks/results/many.json and prints its table.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, spread, write
from feedline.pipeline.base.errors import FeedlineError
from feedline.train.metrics import read_events
from feedline.train.study.crew import CrewConfig, Place, places, visible_gpus

LOOK_S = 1.0
LOG_EVERY = 10
LEAST_S = 2.0
"""What all trainings must at least have in common."""


def main() -> None:
    given = options(__doc__, "many.json", "datasets+", jobs=4, rounds=3, steps=200, model="small_cnn", image_size=64,
                    batch_size=64, num_workers=1, jobs_per_gpu=1)  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    crew = CrewConfig(jobs=given.jobs, jobs_per_gpu=given.jobs_per_gpu)
    many = places(crew, cores, visible_gpus("auto"))
    settings = ("--model", given.model, "--image-size", given.image_size, "--batch-size", given.batch_size,
                "--num-workers", given.num_workers, "--steps", given.steps, "--epochs", 10**6,
                "--log-every", LOG_EVERY, "--eval-every", 0, "--keep-last", 0, "--no-tensorboard")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for dataset in given.datasets:
        words = [str(word) for word in (dataset, *settings)]
        ways = {"one": [Place(gpus=many[0].gpus)], "alone": many[:1], "many": many}
        by_round = in_rounds({name: partial(at_once, words, way) for name, way in ways.items()}, given.rounds)
        rows.append({"dataset": dataset.name, "n": given.rounds, **summary(by_round)})
        print(told(rows[-1], given.jobs))
    about = {"jobs": given.jobs, "places": [vars(place) for place in many], "warm_up": "the first log line",
             "settings": [str(word) for word in settings]}  # fmt: skip
    write(given.out, {**about, "datasets": rows})


def summary(by_round: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("one", "alone", "many"):
        runs = column(by_round, name)
        found[name] = {key: spread([run[key] for run in runs], 1) for key in runs[0]}
    ratios = [one["many"]["samples_per_s"] / one["one"]["samples_per_s"] for one in by_round]
    memory = [one["many"]["pss_bytes"] / one["one"]["pss_bytes"] for one in by_round]
    return {**found, "rate_ratio": spread(ratios, 3), "memory_ratio": spread(memory, 3)}


def told(row: dict[str, Any], jobs: int) -> str:
    rate, memory = row["rate_ratio"], row["memory_ratio"]
    return (
        f"{row['dataset']}: {jobs} trainings {row['many']['samples_per_s']['median']:,.0f} samples/s in sum, × "
        f"{rate['median']} ({rate['low']} to {rate['high']}) of one; memory × {memory['median']} "
        f"({memory['low']} to {memory['high']}), {row['many']['pss_bytes']['median'] / 2**20:,.0f} MiB"
    )


def at_once(words: list[str], where: Sequence[Place]) -> dict[str, float]:
    """Trainings, one at each place, to the end of the first one's steps."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = [Path(scratch, str(number)) for number in range(len(where))]
        trainings = [start(words, run, place) for run, place in zip(runs, where, strict=True)]
        most = {"pss_bytes": 0.0, "rss_bytes": 0.0}
        try:
            while all(training.poll() is None for training in trainings):
                now = memory([training.pid for training in trainings])
                most = {name: max(most[name], now[name]) for name in most}
                time.sleep(LOOK_S)
        finally:
            for training in trainings:
                training.terminate()
                training.wait()
        return {"samples_per_s": rate(runs), **most}


def start(words: list[str], run: Path, place: Place) -> "subprocess.Popen[bytes]":
    env = {**os.environ, **({} if place.gpus is None else {"CUDA_VISIBLE_DEVICES": place.gpus})}
    program = f"import os; os.sched_setaffinity(0, {place.cores or tuple(os.sched_getaffinity(0))}); "
    program += "from feedline.cli.main import run; run()"
    command = [sys.executable, "-c", program, "train", *words, "--run", str(run)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)


def memory(pids: Sequence[int]) -> dict[str, float]:
    """Of these processes and all of theirs."""
    found = {"pss_bytes": 0.0, "rss_bytes": 0.0}
    for pid in pids:
        try:
            for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                seen = process.memory_full_info()
                found["pss_bytes"] += seen.pss
                found["rss_bytes"] += seen.rss
        except psutil.Error:
            pass  # it has just ended
    return found


def rate(runs: Sequence[Path]) -> float:
    """samples/s of all, between the last one's first log line and the first one's last. Raises FeedlineError where
    they had too little time in common."""
    lines = [read_events(run, "step") for run in runs]
    began_s = max((line[0]["time"] if line else float("inf")) for line in lines)
    ended_s = min((line[-1]["time"] if line else 0.0) for line in lines)
    if ended_s - began_s < LEAST_S:
        raise FeedlineError(f"{len(runs)} trainings had {ended_s - began_s:.1f} s in common: give more --steps")
    total = 0.0
    for run, line in zip(runs, lines, strict=True):
        inside = [event for event in line if began_s <= event["time"] <= ended_s]
        batch = read_events(run, "start")[0]["global_batch"]
        steps, span_s = inside[-1]["step"] - inside[0]["step"], inside[-1]["time"] - inside[0]["time"]
        total += steps * batch / max(span_s, 1e-9)
    return total


if __name__ == "__main__":
    end_with(main)
