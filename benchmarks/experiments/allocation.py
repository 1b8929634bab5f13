"""What page faults cost a training step on the CPU: steps with freed memory kept or not (`pipeline.base.process`).

    python -m feedline.benchmarks.experiments.allocation [--rounds 5 --seconds 4]

One cached batch, a bare step (forward, loss, backward, SGD), channels_last; every window in a fresh process, both
ways in every round in random order. Writes results/allocation.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedline.benchmarks.commands import this_command
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.rounds import rounds
from feedline.pipeline.base.process import ENVIRONMENT, keep_freed_memory
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "allocation.json"
CASES = (("small_cnn", 64, 64), ("mobilenet_v2", 64, 64), ("mobilenet_v2", 224, 32), ("resnet18", 224, 32))
"""Model, image size in px, batch size."""
WAYS = ("as it is", "kept")
WARM_UP_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m feedline.benchmarks.experiments.allocation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one window")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.one:
        model, px, batch_size, way = said.one
        print(json.dumps(window(model, int(px), int(batch_size), way, said.seconds)))
        return
    found = [case(*one, count=said.rounds, seconds=said.seconds) for one in CASES]
    record = {"command": this_command(), "host": describe_host(), "warm_up_s": WARM_UP_S, "cases": found}
    said.out.write_text(json.dumps(record, indent=1) + "\n")


def case(model: str, px: int, batch_size: int, *, count: int, seconds: float) -> dict[str, Any]:
    windows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _, way in rounds(WAYS, count):
        windows[way].append(fresh_window(model, px, batch_size, way, seconds))
    rates = {way: [one["samples_per_s"] for one in found] for way, found in windows.items()}
    ratio = compare(rates["kept"], rates["as it is"]).ratio
    print(f"{model} {px} px: {ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})", flush=True)
    return {
        "model": model,
        "image_size_px": px,
        "batch_size": batch_size,
        "ratio": asdict(ratio),
        "ways": {way: {**asdict(estimate(rates[way])), "windows": windows[way]} for way in WAYS},
    }


def fresh_window(model: str, px: int, batch_size: int, way: str, seconds: float) -> dict[str, float]:
    argv = [sys.executable, "-m", "feedline.benchmarks.experiments.allocation", "--seconds", str(seconds)]
    argv += ["--one", model, str(px), str(batch_size), way]
    env = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def window(model: str, px: int, batch_size: int, way: str, seconds: float) -> dict[str, float]:
    if way == "kept" and not keep_freed_memory():
        raise SystemExit("malloc could not be told to keep memory here: this measures glibc's")
    step = training_step(model, px, batch_size)
    repeat(step, WARM_UP_S)
    before = resource.getrusage(resource.RUSAGE_SELF)
    steps, taken_s = repeat(step, seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "samples_per_s": steps * batch_size / taken_s,
        "page_faults_per_step": (after.ru_minflt - before.ru_minflt) / steps,
        "kernel_cpu_fraction": (after.ru_stime - before.ru_stime)
        / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "peak_memory_mb": after.ru_maxrss / 1024,
    }


def training_step(name: str, px: int, batch_size: int) -> Any:
    import torch
    from torch.nn.functional import cross_entropy

    from feedline.train.models import build_model

    torch.manual_seed(0)
    model: Any = build_model(name, 10)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images_NCHW = torch.randn(batch_size, 3, px, px).contiguous(memory_format=torch.channels_last)
    labels_N = torch.randint(0, 10, (batch_size,))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(images_NCHW), labels_N)
        loss.backward()
        optimizer.step()

    return step


def repeat(step: Any, seconds: float) -> tuple[int, float]:
    """(steps, seconds taken)"""
    started = time.perf_counter()
    for steps in range(1, sys.maxsize):
        step()
        taken_s = time.perf_counter() - started
        if taken_s >= seconds:
            return steps, taken_s
    raise AssertionError


if __name__ == "__main__":
    main()
