"""Does a sweep find what a grid finds, in fewer epochs, though it is killed on its way?

    python -m feedline.benchmarks.experiments.sweeps OUT --work DIR [--trials 30 --epochs 9 --seeds 5 --image-size 32]

- *grid*: learning rate × weight decay, 5 × 5 values at equal steps of the exponent, each cell trained to the end;
- *sweep*: `feedline sweep` over both and the batch size, hopeless trials ended early. It is killed with -9, workers
  and all, once a third of the trials and once two thirds are done, and the last third has two commands at it;
- *judged*: the settings of both winners, trained again with seeds that neither has seen.

Writes benchmarks/results/sweeps.json and prints it.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.commands import FEEDLINE
from feedline.benchmarks.experiments.harness import end_with, options, say, write
from feedline.pipeline.base.errors import UsageError
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.study.search import JOURNAL
from feedline.train.study.tasks import Tasks

LR, DECAY, STEPS = (1e-3, 1.0), (1e-6, 1e-1), 5
SPACE = (
    f"[lr]\nlow = {LR[0]}\nhigh = {LR[1]}\nlog = true\n[weight_decay]\nlow = {DECAY[0]}\nhigh = {DECAY[1]}\n"
    "log = true\n[batch_size]\nchoices = [16, 32, 64, 128]\n"
)
KILLS = (1 / 3, 2 / 3)


def main() -> None:
    given = options(__doc__, "sweeps.json", "dataset", "--work", trials=30, epochs=9, seeds=5, image_size=32,
                    model="small_cnn")  # fmt: skip
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    base: dict[str, Any] = {
        "dataset": given.dataset, "model": given.model, "image_size": given.image_size, "epochs": given.epochs,
        "num_workers": 1, "threads": 1, "tensorboard": False, "keep_last": 1,
    }  # fmt: skip
    rates, decays = (np.geomspace(*ends, STEPS).tolist() for ends in (LR, DECAY))
    cells = [{"lr": lr, "weight_decay": decay} for lr in rates for decay in decays]
    grid = [(top1(base, cell, given.work / f"cell-{number}"), cell) for number, cell in enumerate(cells)]
    sweep = killed_and_joined(given)
    grid_best, winner = max(grid, key=lambda one: one[0]), sweep["best"]
    again = {
        name: [
            top1(base, {**params, "seed": 100 + seed}, given.work / f"{name}-{seed}") for seed in range(given.seeds)
        ]
        for name, params in (("grid", grid_best[1]), ("sweep", winner["params"]))
    }
    epochs = {"grid": len(grid) * given.epochs, "sweep": sweep["epochs"]}
    figures = {
        "grid_cells": [{**cell, "top1": found} for found, cell in grid],
        "grid_spread": grid_best[0] - min(found for found, _ in grid),
        "sweep": {name: sweep[name] for name in ("counts", "kills", "attempts", "importance", "journal_lines")},
        "best": {"grid": grid_best[1], "sweep": winner["params"]},
        "again_top1": again,
        "again_mean": {name: statistics.mean(values) for name, values in again.items()},
        "epochs": epochs,
        "epochs_ratio": epochs["sweep"] / epochs["grid"],
        "settings": {**base, "dataset": given.dataset.name},
    }
    write(given.out, figures)
    print(json.dumps({**figures, "grid_cells": len(cells)}, indent=1, default=str))


def top1(base: dict[str, Any], changes: dict[str, Any], run: Path) -> float:
    """Of the last epoch."""
    settings: dict[str, Any] = {**base, **changes, "run": run}
    found = train(TrainConfig(**settings))["epochs"][-1]["top1"]
    shutil.rmtree(run)
    say(f"{run.name}: {found:.1%}")
    return found


def killed_and_joined(given: Any) -> dict[str, Any]:
    """The sweep's record."""
    (given.work / "space.toml").write_text(SPACE)
    study, record = given.work / "study", given.work / "sweep.json"
    words = ["sweep", given.dataset, "--space", given.work / "space.toml", "--study", study, "--trials", given.trials,
             "--epochs", given.epochs, "--model", given.model, "--image-size", given.image_size, "--num-workers", 1,
             "--threads", 1, "--no-tensorboard"]  # fmt: skip
    command = [*FEEDLINE, *map(str, words)]
    tasks, killed = Tasks(study), 0
    for share in KILLS:
        running = subprocess.Popen([*command, "--jobs", "2"])
        while len(tasks.records()) < share * given.trials or not tasks.running():
            time.sleep(0.05)
        for lease in tasks.running().values():
            os.kill(lease["pid"], signal.SIGKILL)
            killed += 1
        running.kill()
        running.wait()
    joined = [subprocess.Popen([*command, *more]) for more in ([], ["--json", str(record)])]
    if [status for status in [process.wait() for process in joined] if status]:
        raise UsageError("the sweep failed: see above")
    subprocess.run([*command, "--json", str(record)], check=True)  # all of it, whichever ended last
    lines, found = (study / JOURNAL).read_text().splitlines(), json.loads(record.read_text())
    attempts = sum(trial["attempts"] for trial in found["trials"])
    return {**found, "kills": killed, "attempts": attempts, "journal_lines": len(lines)}


if __name__ == "__main__":
    end_with(main)
