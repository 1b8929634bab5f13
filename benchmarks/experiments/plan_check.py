"""`feedline plan` held against runs: epochs and preparing at several scales, foretold from the smallest one's costs.

    python -m feedline.benchmarks.experiments.plan_check SMALL MIDDLE LARGE [--image-size 128 --epochs 3]
                                         [--jobs prepare-job-N.json …]

The folders are prepared alike from different numbers of images. Costs per sample are measured on the first; with them
`make_plan` foretells each scale's epoch twice: for the loader alone (its workers fill the cores), and for a device
that takes 0.4 of what the cores could load (it is the limit then; here a loop that sleeps, so that no core is
taken). Then whole epochs are timed, scales and cases in turn; the first epoch of a loader, which checks every
sample's sum, is told apart. Preparing is foretold too, from each of the results of
`benchmarks.experiments.prepare_speed job` that
are given, for the larger ones. Writes results/plan-scales.json. Not checked here: a limit set by storage, and more
than one GPU.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedline.benchmarks.exit import end_with
from feedline.benchmarks.plan import Plan, PlanInputs, make_plan
from feedline.benchmarks.sample_cost import Costs, measure_costs
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.format.manifest import prepared_splits, read_manifest
from feedline.pipeline.loader import Loader
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "plan-scales.json"
NO_LIMIT = 1e9
"""samples/s of a device that is never waited for."""
DEVICE_SHARE = 0.4
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+", help="prepared folders, the smallest first")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3, help="timed, after the first")
    parser.add_argument(
        "--jobs", type=Path, nargs="*", default=[], help="results of `benchmarks.experiments.prepare_speed job`"
    )
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    costs = measure_costs(said.datasets[0], said.image_size)
    device = DEVICE_SHARE * usable_cores() / costs.load_cpu_s
    scales = [scale(folder, costs, said.image_size, said.epochs, device) for folder in said.datasets]
    record = {
        "command": "python -m feedline.benchmarks.experiments.plan_check SMALL MIDDLE LARGE",
        "host": describe_host(),
        "usable_cores": usable_cores(),
        "image_size_px": said.image_size,
        "costs": {name: value for name, value in asdict(costs).items() if name != "split"},
        "device_samples_per_s": device,
        "warm_up": "the first epoch of each loader, stated apart",
        "n": said.epochs,
        "scales": scales,
        "preparing": preparing([json.loads(path.read_text()) for path in said.jobs]),
    }
    write_atomically(said.json, (json.dumps(record, indent=1) + "\n").encode())
    show(record)


def scale(folder: Path, costs: Costs, px: int, epochs: int, device: float) -> dict[str, Any]:
    """Both cases of one scale."""
    split = next(one for one in prepared_splits(folder) if read_manifest(one).split == "train")
    images = read_manifest(split).samples
    found: dict[str, Any] = {"images": images}
    for name, rate in (("loader_alone", NO_LIMIT), ("device", device)):
        plan = planned(images, costs, rate)
        first_s, times_s = epoch_times(split, px, epochs, rate)
        found[name] = {"predicted_epoch_s": plan.epoch_s, "bound": plan.bound, **figures(plan.epoch_s, times_s),
                       "first_epoch_s": first_s}  # fmt: skip
        print(f"{images:,} images, {name}: {found[name]}", file=sys.stderr)
    return found


def planned(images: int, costs: Costs, device: float) -> Plan:
    return make_plan(
        PlanInputs(
            images=images, gpus=1, gpu_samples_per_s=device, cores=usable_cores(), bandwidth_bytes_per_s=None,
            load_cpu_s=costs.load_cpu_s, sample_bytes=costs.sample_bytes, prepare_cpu_s=costs.prepare_cpu_s,
            original_bytes=costs.original_bytes, prepare_start_s=costs.prepare_start_s, epochs=1,
        )
    )  # fmt: skip


def figures(predicted_s: float, times_s: Sequence[float]) -> dict[str, Any]:
    measured_s = statistics.median(times_s)
    return {
        "epoch_s": measured_s,
        "low": min(times_s),
        "high": max(times_s),
        "predicted_by_measured": predicted_s / measured_s,
    }


def epoch_times(split: Path, px: int, epochs: int, device: float) -> tuple[float, list[float]]:
    """Seconds of the first epoch, start of the workers included, and of the following ones."""
    loader = Loader(split, batch_size=BATCH, image_size=px, num_workers=usable_cores(), persistent_workers=True)
    try:
        times_s = [one_epoch(loader, device) for _ in range(epochs + 1)]
    finally:
        loader.close()
    return times_s[0], times_s[1:]


def one_epoch(loader: Loader, device: float) -> float:
    """A device that takes `device` samples/s and holds one batch while it computes another."""
    started_s = free_s = time.perf_counter()
    for _, labels_N in loader:
        free_s = max(free_s, time.perf_counter()) + len(labels_N) / device
        time.sleep(max(0.0, free_s - len(labels_N) / device - time.perf_counter()))
    time.sleep(max(0.0, free_s - time.perf_counter()))
    return time.perf_counter() - started_s


def preparing(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every job foretold from every smaller one: from its fixed seconds and its core seconds per image."""
    known = sorted(job_figures(job) for job in jobs)
    return [foretold(small, large) for small, large in itertools.combinations(known, 2)]


def foretold(small: tuple[int, float, float], large: tuple[int, float, float]) -> dict[str, Any]:
    images, start_s, run_s = small
    costs = Costs(
        split=Path(), load_cpu_s=1.0, sample_bytes=1.0, original_bytes=None,
        prepare_cpu_s=run_s * usable_cores() / images, prepare_start_s=start_s,
    )  # fmt: skip
    predicted_s, measured_s = planned(large[0], costs, NO_LIMIT).prepare_s, large[1] + large[2]
    assert predicted_s is not None  # the costs name preparing
    return {
        "originals": large[0],
        "foretold_from": images,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "predicted_by_measured": predicted_s / measured_s,
    }


def job_figures(job: Mapping[str, Any]) -> tuple[int, float, float]:
    """Images, seconds of Spark's start, seconds of the work: medians of the rounds."""
    ours = [one["feedline"] for one in job["by_round"]]
    start_s, run_s = (statistics.median(one[name] for one in ours) for name in ("spark_start_s", "seconds"))
    return job["n"], start_s, run_s


def show(record: Mapping[str, Any]) -> None:
    print(f"{'images':>9}  {'case':<13} {'predicted':>10} {'measured':>10}  predicted / measured")
    for one in record["scales"]:
        for name in ("loader_alone", "device"):
            case = one[name]
            print(f"{one['images']:>9,}  {name:<13} {case['predicted_epoch_s']:>8.2f} s {case['epoch_s']:>8.2f} s"
                  f"  {case['predicted_by_measured']:.2f}")  # fmt: skip
    for case in record["preparing"]:
        print(f"{case['originals']:>9,}  {'preparing':<13} {case['predicted_s']:>8.1f} s"
              f" {case['measured_s']:>8.1f} s  {case['predicted_by_measured']:.2f}")  # fmt: skip


if __name__ == "__main__":
    end_with(main)
