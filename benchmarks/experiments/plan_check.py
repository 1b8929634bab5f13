"""`feedline plan` held against runs: epochs and preparing at several scales, predicted from the smallest one's costs.

    python -m feedline.benchmarks.experiments.plan_check SMALL MIDDLE LARGE [--image-size 128 --epochs 3]
                                         [--jobs prepare-job-N.json …]

The folders are prepared alike from different numbers of images. Costs per sample are measured on the first; with them
`make_plan` predicts each scale's epoch twice: for the loader alone (its workers fill the cores), and for a device
that takes 0.4 of what the cores could load (it is the limit then; here a loop that sleeps, so that no core is
taken). Then whole epochs are timed, scales and cases in turn; the first epoch of a loader, which checks every
sample's sum, is stated apart. Preparing is predicted too, from each of the `--jobs` (results of
`benchmarks.experiments.prepare_speed job`), for the larger ones. Writes results/plan-scales.json. Not checked here: a
limit set by storage, and more than one GPU.
"""

import itertools
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.harness import end_with, options, say, show, spread, write
from feedline.benchmarks.plan import Plan, PlanInputs, make_plan, measure_costs
from feedline.benchmarks.variants import find_train
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.format.manifest import read_manifest
from feedline.pipeline.loader import Loader

NO_LIMIT = 1e9
"""samples/s of a device that is never waited for."""
DEVICE_SHARE = 0.4
BATCH = 64


def main() -> None:
    given = options(__doc__, "plan-scales.json", "datasets+", image_size=128, epochs=3, jobs=("",))
    _, costs = measure_costs(given.datasets[0], given.image_size)
    device = DEVICE_SHARE * usable_cores() / costs["load_cpu_s"]
    scales = [scale(folder, costs, given.image_size, given.epochs, device) for folder in given.datasets]
    jobs = sorted(job_figures(json.loads(Path(path).read_text())) for path in given.jobs if path)
    preparing = [preparing_case(small, large) for small, large in itertools.combinations(jobs, 2)]
    figures = {"usable_cores": usable_cores(), "image_size_px": given.image_size, "costs": costs,
               "device_samples_per_s": device, "warm_up": "the first epoch of each loader, stated apart",
               "n": given.epochs, "scales": scales, "preparing": preparing}  # fmt: skip
    write(given.out, figures)
    cases = [(name, one["images"], one[name]["predicted_epoch_s"], one[name]["epoch_s"])
             for one in scales for name in ("loader_alone", "device")]  # fmt: skip
    cases += [("preparing", one["originals"], one["predicted_s"], one["measured_s"]) for one in preparing]
    rows = [(name, f"{images:,}", f"{predicted_s:.2f} s", f"{measured_s:.2f} s", f"{predicted_s / measured_s:.2f}")
            for name, images, predicted_s, measured_s in cases]  # fmt: skip
    show(("case", "images", "predicted", "measured", "ratio"), rows)


def scale(folder: Path, costs: Mapping[str, Any], px: int, epochs: int, device: float) -> dict[str, Any]:
    """Both cases of one scale."""
    split = find_train(folder)
    images = read_manifest(split).samples
    cases: dict[str, Any] = {"images": images}
    for name, rate in (("loader_alone", NO_LIMIT), ("device", device)):
        plan = planned(images, costs, rate)
        loader = Loader(split, batch_size=BATCH, image_size=px, num_workers=usable_cores(), persistent_workers=True)
        try:
            first_s, *times_s = [epoch_s(loader, rate) for _ in range(epochs + 1)]
        finally:
            loader.close()
        ends = spread(times_s)
        measured_s = ends.pop("median")
        cases[name] = {"predicted_epoch_s": plan.epoch_s, "bound": plan.bound, "epoch_s": measured_s, **ends,
                       "predicted_by_measured": plan.epoch_s / measured_s, "first_epoch_s": first_s}  # fmt: skip
        say(f"{images:,} images, {name}: {cases[name]}")
    return cases


def planned(images: int, costs: Mapping[str, Any], device: float) -> Plan:
    return make_plan(PlanInputs(images=images, gpu_samples_per_s=device, cores=usable_cores(), epochs=1,
                                bandwidth_bytes_per_s=None, **costs))  # fmt: skip


def epoch_s(loader: Loader, device: float) -> float:
    """With a device that takes `device` samples/s and holds one batch while it computes another."""
    started_s = free_s = time.perf_counter()
    for _, labels_N in loader:
        free_s = max(free_s, time.perf_counter()) + len(labels_N) / device
        time.sleep(max(0.0, free_s - len(labels_N) / device - time.perf_counter()))
    time.sleep(max(0.0, free_s - time.perf_counter()))
    return time.perf_counter() - started_s


def job_figures(job: Mapping[str, Any]) -> tuple[int, float, float]:
    """Images, seconds of Spark's start, seconds of the work: medians of the rounds."""
    ours = [one["feedline"] for one in job["by_round"]]
    start_s, run_s = (statistics.median(one[name] for one in ours) for name in ("spark_start_s", "seconds"))
    return job["n"], start_s, run_s


def preparing_case(small: tuple[int, float, float], large: tuple[int, float, float]) -> dict[str, Any]:
    """A job predicted from a smaller one: from its fixed seconds and its core seconds per image."""
    images, start_s, run_s = small
    costs = {"load_cpu_s": 1.0, "sample_bytes": 1.0, "prepare_cpu_s": run_s * usable_cores() / images,
             "prepare_start_s": start_s}  # fmt: skip
    predicted_s, measured_s = planned(large[0], costs, NO_LIMIT).prepare_s, large[1] + large[2]
    assert predicted_s is not None  # the costs name preparing
    return {"originals": large[0], "foretold_from": images, "predicted_s": predicted_s, "measured_s": measured_s,
            "predicted_by_measured": predicted_s / measured_s}  # fmt: skip


if __name__ == "__main__":
    end_with(main)
