"""How many cores feed a GPU? Training on the loader's batches, by codec and number of workers, against cached ones.

    python -m feedline.benchmarks.experiments.gpu_feed OUT [--model mobilenet_v2 --image-sizes 224 64
        --batch-size 256 --workers 1 2 4 8 --rounds 2 --seconds 540 --device auto]

OUT is a prepared folder with the codecs to compare, long enough that no epoch ends within a window (`gpu_check` makes
such). Rounds visit every cell in random order, each window in a fresh process; a share of the ceiling is one within a
round. What was measured is written after every window; a round that the time has no room for is left unfinished.
Writes results/gpu-feed.json.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, write
from feedline.benchmarks.gpu_check import (
    Cell,
    GpuCheckConfig,
    cells_of,
    fed_record,
    find_splits,
    subject,
    worker_counts,
)
from feedline.benchmarks.measure.intervals import estimate
from feedline.benchmarks.measure.rounds import Bench, MeasureError, check_devices
from feedline.benchmarks.measure.window import Window
from feedline.pipeline.base.process import usable_cores

ENOUGH = 0.98


def main() -> None:
    given = options(__doc__, "gpu-feed.json", "dataset", model="mobilenet_v2", image_sizes=(224, 64), batch_size=256,
                    workers=worker_counts(usable_cores()), rounds=2, seconds=540.0, window=2.0,
                    device="auto")  # fmt: skip
    device = check_devices([1], given.device, [given.model])
    config = GpuCheckConfig(models=(given.model,), image_sizes=tuple(given.image_sizes), device=device,
                            batch_size=given.batch_size, window_s=given.window)  # fmt: skip
    splits = find_splits(given.dataset, config.image_sizes, device)
    cells = {cell.name: cell for cell in feeding(cells_of(splits, config.models, given.workers), given.workers)}
    failed: dict[str, str] = {}
    about = {"model": given.model, "batch_size": given.batch_size, "window_s": given.window, "device": device,
             "baseline": "the same model on cached batches, in the same round"}  # fmt: skip
    with Bench() as bench:
        by_round = in_rounds(
            {name: partial(bench.measure, subject(cell, splits, config)) for name, cell in cells.items()},
            given.rounds, lambda window: f"{window.samples_per_s:,.0f} samples/s", failed=failed, but=MeasureError,
            told=lambda by_round: write(given.out, {**about, "failed": failed, **figures(cells, by_round)}),
            until_s=time.monotonic() + given.seconds,
        )  # fmt: skip
    found = figures(cells, by_round)
    rows = [(f"{row['way']}, {row['image_size']} px, workers: {row['workers']}", f"{row['samples_per_s']:,.0f}",
             f"{row['share'] or 0:.1%}", f"{row['wait_fraction']:.1%}") for row in found["fed"]]  # fmt: skip
    show(("fed from", "samples/s", "of ceiling", "waiting"), rows)
    for name, workers in found["enough_workers"].items():
        print(f"{name}: {ENOUGH:.0%} of the ceiling with {workers or 'more than these'} workers")


def feeding(cells: Sequence[Cell], counts: Sequence[int]) -> list[Cell]:
    """Ceilings, and what is fed with each number of workers; the loader alone is `gpu-check`'s."""
    trained = [cell for cell in cells if cell.model]
    return [
        *(cell for cell in trained if cell.cached),
        *(cell._replace(workers=workers) for cell in trained if not cell.cached for workers in counts),
    ]


def figures(cells: Mapping[str, Cell], by_round: Sequence[Mapping[str, Window]]) -> dict[str, Any]:
    """`enough_workers`, by way and image size: the fewest that reach ENOUGH of the ceiling; None where none do."""
    windows = {name: of for name in cells if (of := column(by_round, name))}
    rates = {name: estimate([window.samples_per_s for window in of]).record() for name, of in windows.items()}
    ceilings = {cells[name].px: name for name in windows if cells[name].cached}
    fed: list[dict[str, Any]] = []
    for name, of in windows.items():
        cell = cells[name]
        if cell.cached:
            continue
        row, free = fed_record(cell, rates[name], of, None), ceilings.get(cell.px, "")
        shares = [one[name].samples_per_s / one[free].samples_per_s for one in by_round if {name, free} <= one.keys()]
        fed.append({**row, "share": median(shares) if shares else None, "shares": shares})
    fed.sort(key=lambda row: (-row["image_size"], row["way"], row["workers"]))
    enough: dict[str, int | None] = {}
    for row in fed:
        name = f"{row['way']}, {row['image_size']} px"
        if enough.setdefault(name, None) is None and (row["share"] or 0.0) >= ENOUGH:
            enough[name] = row["workers"]
    ceiling = {str(px): rates[name] for px, name in ceilings.items()}
    return {"ceilings": ceiling, "enough_workers": enough, "fed": fed}


if __name__ == "__main__":
    end_with(main)
