"""Does `profile` say that a script waits for storage, every time; and do its remedies give what it predicts?

    python -m feedline.benchmarks.experiments.cold_profile --work DIR [--repeats 10 --latency-ms 8 --images 3200]

`benchmarks/naive.py` reads an image folder through a file system of the kernel's that answers each request later
(tests/lab/slow_files.py; needs root), mounted anew for every run, so that nothing is in memory. Each repeat profiles
it as it is, and again when all is in memory; then it is run as each remedy says, three times as long: more workers,
the reads of a batch at once, a local copy. Right is a profile that is data-bound and names storage; a prediction is
right within a quarter of what the remedy gave in the same repeat, and so is that of a first epoch by the profile from
memory. Writes results/cold-profile.json.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, write
from feedline.benchmarks.experiments.predictions import watched
from feedline.benchmarks.ladder import NAIVE
from feedline.cli.profile import with_reads
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess.synth.inventory import SynthConfig
from feedline.preprocess.synth.write import synth
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import all_predictions, prediction_for
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Recording
from tests.lab.slow_files import mounted, why_not

WORKERS, MORE = 2, (4, 8)
RIGHT = 0.25
TOGETHER = """
import runpy, sys
from concurrent.futures import ThreadPoolExecutor
from torchvision import datasets

def __getitems__(self, indices):
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(self.__getitem__, indices))

datasets.ImageFolder.__getitems__ = __getitems__
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
Figures = dict[str, Any]


def main() -> None:
    given = options(__doc__, "cold-profile.json", "--work", repeats=10, latency_ms=8.0, images=3200, steps=24)
    if why := why_not():
        raise UsageError(why)
    photos, together = given.work / f"photos-{given.images}", given.work / "together.py"
    if not photos.exists():
        synth(SynthConfig(out=str(photos), images=given.images, layout="folder"))
    together.write_text(TOGETHER)
    run = partial(ran, photos, given.work / "slow", given.latency_ms / 1e3, given.steps)
    longer = partial(ran, photos, given.work / "slow", given.latency_ms / 1e3, 3 * given.steps)
    cells = {
        "cold": partial(told, run, warm=False),
        "from memory": partial(told, run, warm=True),
        **{f"num_workers={count}": partial(rate_of, longer, workers=count) for count in MORE},
        "a batch's reads at once": partial(rate_of, longer, before=(str(together),)),
        "local copy": partial(rate_of, longer, local=True),
    }
    by_round = in_rounds(cells, given.repeats, lambda one: f"{one['samples_per_s']:,.1f} samples/s")
    scores = [scored(one) for one in by_round]
    right = sum(one["cold"]["right"] for one in by_round)
    ratios = {name: column(scores, name) for name in scores[0]}
    within = {name: sum(abs(ratio - 1) <= RIGHT for ratio in known if ratio) for name, known in ratios.items()}
    write(given.out, {"settings": vars(given) | {"work": "", "out": ""}, "said_storage": right, "of": given.repeats,
                      "predicted_by_measured": ratios, "within_a_quarter": within, "by_round": by_round})  # fmt: skip
    print(f"storage was named in {right} of {given.repeats} profiles")
    show(("predicted by measured", "median", f"within {RIGHT:.0%}"), [
        (name, f"{median(filter(None, known)):.2f}" if any(known) else "–", f"{within[name]} of {len(known)}")
        for name, known in ratios.items()
    ])  # fmt: skip


def ran(
    photos: Path, place: Path, latency_s: float, steps: int, *, workers: int = WORKERS, before: tuple[str, ...] = (),
    warm: bool = False, local: bool = False, tried: bool = False,
) -> Recording:  # fmt: skip
    """One run of so many steps, all of its first epoch. Raises FeedlineError where it failed."""
    with mounted(photos, place, latency_s=latency_s) as slow:
        data = photos if local else slow.path
        if warm or local:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(Path.read_bytes, (data / "train").rglob("*.*")))
        words = [*before, str(NAIVE), str(data), "--batch-size", "32", "--num-workers", str(workers)]
        recording = watched(StudyConfig(argv=words, steps=steps))
        return with_reads(recording) if tried else recording


def rate_of(run: Any, **how: Any) -> Figures:
    now = measure(run(**how)).rates.now
    if now is None:
        raise FeedlineError("no rate was measured: more --steps")
    return {"samples_per_s": now.value}


def told(run: Any, *, warm: bool) -> Figures:
    """What a profile says, and what it predicts."""
    recording = run(warm=warm, tried=True)
    diagnosis = diagnose(recording)
    keys, now = record_keys(diagnosis), diagnosis.measured.rates.now
    found = all_predictions(diagnosis.measured, workers=MORE)
    predicted = {f"num_workers={count}": prediction_for(found, num_workers=count) for count in MORE}
    families = {"a batch's reads at once": "ahead", "local copy": "storage"}
    predicted |= {
        name: next((one for one in found if one.family == family), None) for name, family in families.items()
    }
    return {
        "samples_per_s": now.value if now else 0.0,
        "headline": diagnosis.headline,
        "storage": keys["storage"],
        "right": diagnosis.bound == "data" and bool(keys["storage"]["limits"]),
        "predicted": {name: one and one.samples_per_s for name, one in predicted.items()},
    }


def scored(one: Mapping[str, Figures]) -> dict[str, float | None]:
    """Predicted by measured, of one repeat; None where nothing was predicted."""
    predicted, cold = one["cold"]["predicted"], one["from memory"]["storage"]["cold"]
    ratios = {name: rate and rate / one[name]["samples_per_s"] for name, rate in predicted.items()}
    return {**ratios, "a first epoch": cold and cold["samples_per_s"] / one["cold"]["samples_per_s"]}


if __name__ == "__main__":
    end_with(main)
