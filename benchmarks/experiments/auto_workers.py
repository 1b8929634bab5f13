"""Does num_workers="auto" find as many workers as are best? Within 5 % of the best fixed number.

    python -m feedline.benchmarks.experiments.auto_workers SPLIT [--cases small_cnn:64 mobilenet_v2:96 none:224
        --rounds 3 --settle-s 10]

For each case (a model, or none: the batches are only taken; and the image size) the loader with 0 workers to one more
than there are cores, and with "auto", in rounds of random order: each in a fresh process, 3 s after so long as "auto"
needs to settle. The fixed numbers' rates are of the same rounds, so the best of them is a little too high by chance.
Adds the cases to results/auto-workers.json.
"""

import json
from functools import partial
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, write
from feedline.benchmarks.measure.intervals import compare, estimate
from feedline.benchmarks.measure.rounds import Bench
from feedline.benchmarks.measure.window import Subject
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.settings import BATCH_SIZE
from feedline.profiling.record.host import describe_host

AUTO = "auto"


def main() -> None:
    given = options(__doc__, "auto-workers.json", "split", cases=("small_cnn:64", "mobilenet_v2:96", "none:224"),
                    rounds=3, settle_s=10.0)  # fmt: skip
    kept = json.loads(given.out.read_text())["cases"] if given.out.exists() else {}
    for name in given.cases:
        model, _, px = name.partition(":")
        if not px.isdigit():
            raise UsageError(f"{name!r} is not MODEL:PX, as small_cnn:64")
        settings = {"split": str(given.split.resolve()), "model": None if model == "none" else model,
                    "image_size": int(px), "batch_size": BATCH_SIZE}  # fmt: skip
        kept[name] = case(settings, given.rounds, given.settle_s)
        write(given.out, {"window": f"3 s after {given.settle_s:g} s, each in a fresh process", "cases": kept})
    rows = [(name, *(f"{rate['value']:,.0f}" for rate in one["rates"].values()), f"{one['ratio']['value']:.3f}")
            for name, one in kept.items()]  # fmt: skip
    show(("samples/s", *next(iter(kept.values()))["rates"], "auto / best"), rows)


def case(settings: dict[str, Any], rounds: int, settle_s: float) -> dict[str, Any]:
    counts = [*map(str, range(usable_cores() + 2)), AUTO]
    with Bench() as bench:
        cells = {
            count: partial(bench.measure, Subject(
                kind="loader", settings={**settings, "num_workers": AUTO if count == AUTO else int(count)},
                warm_up_s=settle_s,
            ))
            for count in counts
        }  # fmt: skip
        by_round = in_rounds(cells, rounds, lambda window: f"{window.samples_per_s:,.0f} samples/s")
    rates = {count: [window.samples_per_s for window in column(by_round, count)] for count in counts}
    best = max(counts[:-1], key=lambda count: estimate(rates[count]).value)
    return {
        "host": describe_host(),
        "rounds": rounds,
        "rates": {count: estimate(values).record("value") for count, values in rates.items()},
        "best": int(best),
        "ratio": compare(rates[AUTO], rates[best]).ratio.record("value"),
        "others_cores": max(window.others_cores or 0.0 for one in by_round for window in one.values()),
    }


if __name__ == "__main__":
    end_with(main)
