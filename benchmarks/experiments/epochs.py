"""What an epoch's end costs: 20 epochs of 2,000 samples against one of 40,000, by this checkout and by another.

    python -m feedline.benchmarks.experiments.epochs SPLIT --work DIR --before CHECKOUT [--rounds 7]

SPLIT: a prepared jpeg split of some 2,000 samples; DIR: where the two datasets go (the long one's rows are the short
one's again and again, in the same files). A loop that only takes batches, two workers, every measurement a fresh
process of that checkout's own Python; a round has each cell once, in an order drawn anew. Timed are the 620 batches
behind the first 31: 20 short epochs with what lies between them, or the middle of the long one. Writes
results/epochs.json.
"""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from feedline.benchmarks.experiments.footprint import enlarge
from feedline.benchmarks.experiments.harness import end_with, in_rounds, options, output_of, show, spread, write
from feedline.benchmarks.measure.intervals import estimate

HERE = Path(__file__).resolve().parents[2]
SHORT, EPOCHS, BATCH = 2_000, 20, 64
BATCHES = SHORT // BATCH
LENGTHS = {"short": SHORT, "long": (EPOCHS + 1) * SHORT}
"""Samples in an epoch; one short epoch's batches are the warm-up."""
PROGRAM = """
import sys, time
from feedline.pipeline.loader import Loader
split, batch_size, first, last = sys.argv[1], *map(int, sys.argv[2:])
loader = Loader(split, batch_size=batch_size, image_size=224, num_workers=2, rank=0, world_size=1, checksums=False)
batches = epoch = 0
while batches < last:
    loader.set_epoch(epoch)
    epoch += 1
    for images, labels in loader:
        batches += 1
        if batches == first:
            began_s = time.perf_counter()
        if batches == last:
            print((last - first) * batch_size / (time.perf_counter() - began_s))
            break
"""


def main() -> None:
    given = options(__doc__, "epochs.json", "split", "--work", "--before", rounds=7)
    checkouts = {"before": given.before.resolve(), "now": HERE}
    splits = {
        length: enlarge(given.split, given.work / f"{samples}", samples, copies=False)
        for length, samples in LENGTHS.items()
    }
    cells = {
        f"{name}, {length}": partial(samples_per_s, checkout, split)
        for name, checkout in checkouts.items()
        for length, split in splits.items()
    }
    by_round = in_rounds(cells, given.rounds)
    pairs = [("now, short", "now, long"), ("before, short", "before, long"), ("now, long", "before, long"),
             ("now, short", "before, short")]  # fmt: skip
    ratios = {f"{a} / {b}": estimate([one[a] / one[b] for one in by_round]) for a, b in pairs}
    write(given.out, {
        "commits": {name: commit(checkout) for name, checkout in checkouts.items()},
        "epochs": EPOCHS, "batch_size": BATCH, "samples": LENGTHS, "warm_up_batches": BATCHES, "n": given.rounds,
        "load_average": os.getloadavg()[0],
        "samples_per_s": {name: spread([one[name] for one in by_round], 1) for name in cells},
        "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
        "rounds": by_round,
    })  # fmt: skip
    rows = [(name, *(f"{end or 0:.3f}" for end in (one.value, one.low, one.high))) for name, one in ratios.items()]
    show(("samples/s", "ratio", "low", "high"), rows)


def samples_per_s(checkout: Path, split: Path) -> float:
    numbers = (BATCH, BATCHES, (EPOCHS + 1) * BATCHES)
    command = [checkout / ".venv" / "bin" / "python", "-c", PROGRAM, split.resolve(), *map(str, numbers)]
    return float(output_of(command, f"the loader of {checkout}", cwd=checkout))


def commit(checkout: Path) -> str:
    return output_of(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], f"git in {checkout}").strip()


if __name__ == "__main__":
    end_with(main)
