"""What a loader costs beside its rate: memory, the time to the first batch, and what a larger dataset costs.

    python -m feedline.benchmarks.experiments.footprint SPLIT --work DIR

SPLIT: a prepared jpeg split of some 2,000 samples; DIR: where the larger datasets go (2 GB).

    plan      seconds for an epoch's order of 1,281,167 samples
    first     seconds from `Loader(...)` to the first batch, two workers, in fresh processes, torch's import apart
    flat      resident memory of trainer and workers at the end of each of 20 epochs
    pss       proportional memory of eight workers with an index of 1,281,167 samples, after 30 batches
    sizes     CPU and wall µs per sample from 2,000 and 50,000 samples (shards copied), rounds interleaved

Every figure but the plan's is taken in processes of its own. Writes results/footprint.json and prints it.
"""

import json
import math
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from feedline.benchmarks.experiments.harness import apart, column, end_with, in_rounds, options, spread, write
from feedline.benchmarks.measure.rounds import Bench
from feedline.benchmarks.measure.window import Subject
from feedline.benchmarks.sample_shards import lengthen
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.format.manifest import MANIFEST, read_manifest

IMAGENET = 1_281_167
MEBIBYTE = 1 << 20
EPOCHS = 20


def main() -> None:
    given = options(__doc__, "footprint.json", "split", "--work", rounds=5, seconds=3.0)
    huge = enlarge(given.split, given.work / "imagenet-rows", IMAGENET, copies=False)
    large = enlarge(given.split, given.work / "50000", 50_000, copies=True)
    firsts = [apart(first_batch_s, given.split) for _ in range(5)]
    with Bench() as bench:
        cells = {str(split): partial(rate, bench, split, given.seconds) for split in (given.split, large)}
        by_round = in_rounds(cells, given.rounds)
    sizes: list[dict[str, Any]] = []
    for split in cells:
        runs = column(by_round, split)
        sizes.append({"samples": read_manifest(Path(split)).samples, "n": given.rounds})
        for name in ("samples_per_s", "cpu_us_per_sample"):
            ends = spread([one[name] for one in runs], 1)
            sizes[-1] |= {f"{name}_{what}": value for what, value in ends.items()}
    figures = {
        "plan_s": round(min(plan_s(epoch) for epoch in range(5)), 3),
        "first_batch_s": {**spread(firsts, 3), "n": len(firsts)},
        "flat": apart(flat, given.split),
        "pss": apart(pss, huge),
        "sizes": sizes,
    }
    write(given.out, figures)
    print(json.dumps(figures, indent=1))


def enlarge(split: Path, out: Path, samples: int, *, copies: bool) -> Path:
    """A split of `samples` rows made of `split`'s, again and again. With `copies` each repetition has shard files of
    its own, so that its bytes are its own in the page cache; without, all rows point to the same few files."""
    if not (out / MANIFEST).exists():
        out.mkdir(parents=True, exist_ok=True)
        lengthen(split, samples, math.ceil(samples / read_manifest(split).samples) if copies else 1, out)
    return out


def plan_s(epoch: int) -> float:
    """How long an epoch's order takes."""
    started_s = time.perf_counter()
    plan = EpochPlan(samples=IMAGENET, seed=0, epoch=epoch, batch_size=256, world_size=4, rank=0, policy="drop",
                     shuffle=True)  # fmt: skip
    plan.batch(0)
    return time.perf_counter() - started_s


def rate(bench: Bench, split: Path, seconds: float) -> dict[str, float]:
    settings = {"split": str(split), "batch_size": 64, "image_size": 224, "num_workers": 2, "checksums": True}
    window = bench.measure(Subject(kind="loader", settings=settings, warm_up_s=1.5, window_s=seconds))
    cpu_us = 1e6 * window.worker_cpu_s / window.samples
    return {"samples_per_s": window.samples_per_s, "cpu_us_per_sample": cpu_us}


# --- each runs in a process of its own ----------------------------------------------------------------


def loader_of(split: str, **changed: Any) -> Any:
    from feedline.pipeline.loader import Loader

    usual: dict[str, Any] = {"batch_size": 64, "image_size": 224, "num_workers": 2, "rank": 0, "world_size": 1}
    return Loader(split, **usual | changed)


def first_batch_s(split: str) -> float:
    import_module("feedline.pipeline.loader")  # with torch: not what is measured
    began_s = time.perf_counter()
    next(iter(loader_of(split)))
    return time.perf_counter() - began_s


def flat(split: str) -> dict[str, Any]:
    loader, epochs = loader_of(split, image_size=64), list[list[float]]()
    for _ in range(EPOCHS):
        for _batch in loader:
            pass
        pids = [None, *loader.worker_pids]
        epochs.append([round(psutil.Process(pid).memory_info().rss / MEBIBYTE, 1) for pid in pids])
    return {"rss_mib_of_trainer_and_workers_by_epoch": epochs}


def pss(split: str) -> dict[str, Any]:
    loader = loader_of(split, num_workers=8)
    batches = iter(loader)
    for _ in range(30):
        next(batches)
    each = [round(psutil.Process(pid).memory_full_info().pss / MEBIBYTE, 1) for pid in loader.worker_pids]
    return {"samples": read_manifest(Path(split)).samples, "workers_mib": each, "together_mib": round(sum(each), 1)}


if __name__ == "__main__":
    end_with(main)
