"""What page faults cost a training step on the CPU: steps with freed memory kept or not (`pipeline.base.process`).

    python -m feedline.benchmarks.experiments.allocation [--rounds 5 --seconds 4]

One cached batch, a bare step (forward, loss, backward, SGD), channels_last; every window in a fresh process, both
ways in every round in random order. Writes results/allocation.json.
"""

import os
import resource
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from feedline.benchmarks.experiments.harness import apart, column, end_with, in_rounds, options, write
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.loader_subject import training_step
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import ENVIRONMENT, keep_freed_memory

CASES = (("small_cnn", 64, 64), ("mobilenet_v2", 64, 64), ("mobilenet_v2", 224, 32), ("resnet18", 224, 32))
"""Model, image size in px, batch size."""
WAYS = ("as it is", "kept")
WARM_UP_S = 2.0


def main() -> None:
    given = options(__doc__, "allocation.json", rounds=5, seconds=4.0)
    env = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    cases: list[dict[str, Any]] = []
    for model, px, batch_size in CASES:
        cells = {way: partial(apart, window, model, px, batch_size, way, given.seconds, env=env) for way in WAYS}
        by_round = in_rounds(cells, given.rounds)
        windows = {way: column(by_round, way) for way in WAYS}
        rates = {way: [one["samples_per_s"] for one in windows[way]] for way in WAYS}
        ratio = compare(rates["kept"], rates["as it is"]).ratio
        print(f"{model} {px} px: {ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})", flush=True)
        ways = {way: {**asdict(estimate(rates[way])), "windows": windows[way]} for way in WAYS}
        cases.append(
            {"model": model, "image_size_px": px, "batch_size": batch_size, "ratio": asdict(ratio), "ways": ways}
        )
    write(given.out, {"warm_up_s": WARM_UP_S, "cases": cases})


def window(name: str, px: int, batch_size: int, way: str, seconds: float) -> dict[str, float]:
    import torch

    if way == "kept" and not keep_freed_memory():
        raise FeedlineError("malloc could not be told to keep memory here: this measures glibc's")
    step = training_step(name, 10, "cpu", None, None)
    images_NCHW = torch.randn(batch_size, 3, px, px).contiguous(memory_format=torch.channels_last)
    labels_N = torch.randint(0, 10, (batch_size,))

    def steps(least_s: float) -> tuple[int, float]:
        """(steps, seconds taken)"""
        count, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < least_s:
            step(images_NCHW, labels_N)
            count += 1
        return count, time.perf_counter() - started_s

    steps(WARM_UP_S)
    before = resource.getrusage(resource.RUSAGE_SELF)
    count, taken_s = steps(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    kernel_s, user_s = after.ru_stime - before.ru_stime, after.ru_utime - before.ru_utime
    return {
        "samples_per_s": count * batch_size / taken_s,
        "page_faults_per_step": (after.ru_minflt - before.ru_minflt) / count,
        "kernel_cpu_fraction": kernel_s / (kernel_s + user_s),
        "peak_memory_mb": after.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    end_with(main)
