"""A page cache a third as large as the data: is a second epoch slower than the first, and what does the kernel keep?

    python -m feedline.benchmarks.experiments.small_cache SPLIT --work DIR [--memory-mb 1500 --times 3 --rounds 3]

SPLIT: a prepared split, planes for short epochs; its shards are copied until they have so many times the memory of a
control group (tests/lab/small_memory.py; needs root), in which a fresh process takes three epochs of batches with two
workers, in full random order and in the shard windows that fit. The share of an epoch's bytes that came from the disk
again is set beside what a cache that forgets what was used longest ago would leave (`storage_advice.found_again`).
Writes results/small-cache.json.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.footprint import enlarge
from feedline.benchmarks.experiments.harness import end_with, in_rounds, options, output_of, show, spread, write
from feedline.benchmarks.storage_advice import found_again
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.format.manifest import read_manifest
from feedline.pipeline.rereading import window_fits
from feedline.profiling.watch.data_files import drop
from tests.lab.small_memory import small_memory, why_not

PROGRAM = """
import json, sys, time
import psutil
from feedline.pipeline.loader import Loader
split, windows, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loader = Loader(split, batch_size=64, image_size=224, num_workers=2, rank=0, world_size=1, checksums=False,
                window_shards=windows)
before = told = 0
for epoch in range(epochs):
    loader.set_epoch(epoch)
    began_s, samples = time.perf_counter(), 0
    for images, labels in loader:
        samples += len(labels)
    seconds = time.perf_counter() - began_s
    read = sum(psutil.Process(pid).io_counters().read_bytes for pid in loader.worker_pids)
    asked = sum(worker["bytes_read"] for worker in loader.stats()["workers"])
    print(json.dumps({"samples_per_s": samples / seconds, "from_disk": (read - before) / (asked - told)}), flush=True)
    before, told = read, asked
"""
EPOCHS = 3


def main() -> None:
    given = options(__doc__, "small-cache.json", "split", "--work", memory_mb=1500, times=3.0, rounds=3)
    if why := why_not():
        raise UsageError(why)
    manifest, memory = read_manifest(given.split), given.memory_mb << 20
    size = sum(shard.bytes for shard in manifest.shards)
    samples = int(given.times * memory / size * manifest.samples)
    larger = enlarge(given.split, given.work / f"{samples}", samples, copies=True)
    shards = read_manifest(larger).shards
    fits = window_fits(len(shards), size / len(manifest.shards), memory)
    orders = {"full random order": 0, f"windows of {fits} shards": fits}
    cells = {name: partial(epochs_of, larger, window, memory) for name, window in orders.items()}
    by_round = in_rounds(cells, given.rounds, lambda one: " ".join(f"{of['samples_per_s']:,.0f}" for of in one))
    found: dict[str, list[dict[str, Any]]] = {
        name: [
            {key: spread([one[name][epoch][key] for one in by_round]) for key in by_round[0][name][epoch]}
            for epoch in range(EPOCHS)
        ]
        for name in cells
    }
    again = 1.0 - found_again(1.0 / given.times)
    write(given.out, {"memory_bytes": memory, "times": given.times, "samples": samples, "n": given.rounds,
                      "predicted_from_disk_again": again, "epochs": found, "by_round": by_round})  # fmt: skip
    show(("samples/s, from disk", *(f"epoch {number}" for number in range(EPOCHS))), [
        (name, *(f"{of['samples_per_s']['median']:,.0f}, {of['from_disk']['median']:.0%}" for of in epochs))
        for name, epochs in found.items()
    ])  # fmt: skip
    print(f"a cache that forgets what was used longest ago: {again:.0%} from disk in later epochs")


def epochs_of(split: Path, window: int, memory_bytes: int) -> list[dict[str, Any]]:
    """From a cold cache. Raises FeedlineError."""
    drop([str(path) for path in split.iterdir()])
    with small_memory(memory_bytes) as inside:
        command = [*inside, sys.executable, "-c", PROGRAM, str(split), str(window), str(EPOCHS)]
        return [json.loads(line) for line in output_of(command, f"the loader of {split}").splitlines()]


if __name__ == "__main__":
    end_with(main)
