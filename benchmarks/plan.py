"""Planning past this machine: epoch time, cores, storage, preparing and shards, from measured costs per sample.

    rate = min(GPUs × their rate, cores / CPU seconds per sample, bandwidth / bytes per sample)

The bandwidth is that of random reads; in shard windows it is that of sequential ones. Reads that must be under way to
hide a storage's latency are rate × latency (Little's law).

Costs per sample and core are taken to hold on the other machine; `core_speed` scales them where its cores are known
to be faster or slower. What is assumed is part of the answer.
"""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.rounds import Bench
from feedline.benchmarks.measure.window import Subject
from feedline.benchmarks.variants import find_train
from feedline.pipeline.base.settings import BATCH_SIZE, check_limits, limited
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.manifest import read_manifest
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.plan import choose_shards

MANY_ORIGINALS = 10_000
"""Smaller jobs spend more per original, since their workers warm up: a fifth at 2,000, 2 % from here."""
HEADROOM = 0.85
"""Share of a core's time that workers get for samples: the rest is the trainer's, the kernel's and luck's."""

MOST = 10**15
"""Beyond it no dataset, rate or time can be meant."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    images: int = limited(1_281_167, 1, MOST)
    """Images to plan for."""
    gpus: int = limited(1, 1, MOST)
    """GPUs of all machines together."""
    gpu_samples_per_s: float = limited(least=1 / MOST, most=MOST)
    """Of one GPU when data is free."""
    cores: int = limited(8, 1, MOST)
    """Cores for workers, of all machines together."""
    bandwidth_bytes_per_s: float | None = limited(least=1 / MOST, most=MOST)
    """Of the storage, for all machines together; None: no limit."""
    random_bytes_per_s: float | None = limited(None, 1 / MOST, MOST)
    """The same for samples at random places, many reads at once; None: as in sequence."""
    latency_s: float | None = limited(None, 0, MOST)
    """Of one of its reads."""
    load_cpu_s: float = limited(least=1 / MOST, most=MOST)
    """Loading one prepared sample, on one core."""
    sample_bytes: float = limited(least=1 / MOST, most=MOST)
    """Prepared."""
    picture_bytes: float | None = limited(None, 1 / MOST, MOST)
    """Of them what reads at random places take: without tar headers and labels; None: all."""
    prepare_cpu_s: float | None = limited(None, 1 / MOST, MOST)
    """Preparing one original, on one core."""
    original_bytes: float | None = None
    prepare_start_s: float = 0.0
    """Of preparing, whatever the number of images."""
    prepared_originals: int | None = None
    """From how many the cost of preparing is known; None: it was given."""
    epochs: int = limited(90, 1, MOST)
    """Epochs to train."""
    core_speed: float = limited(1.0, 1e-6, 1e6)
    """Speed of its cores by this machine's."""

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    samples_per_s: float
    bound: str
    """gpus, cores or storage."""
    limits: dict[str, float]
    """samples/s that each allows."""
    next_bound: str
    """What limits once the first is out of the way."""
    epoch_s: float
    training_s: float
    cores_needed: int
    """To feed the GPUs at their full rate."""
    bandwidth_needed_bytes_per_s: float
    window_samples_per_s: float | None
    """In shard windows, where storage limits the rate and is faster in sequence."""
    reads_at_once: int | None
    """That hide the storage's latency at this rate; None: it was not given."""
    prepare_s: float | None
    prepare_bound: str | None
    dataset_bytes: float
    shards: int
    shard_bytes: float
    assumptions: list[str]


def make_plan(inputs: PlanInputs) -> Plan:
    """Pure."""
    core_s, bandwidth = inputs.load_cpu_s / inputs.core_speed, inputs.bandwidth_bytes_per_s
    limits = {"gpus": inputs.gpus * inputs.gpu_samples_per_s, "cores": HEADROOM * inputs.cores / core_s}
    read_bytes = inputs.picture_bytes or inputs.sample_bytes
    if inputs.random_bytes_per_s is not None:
        limits["storage"] = inputs.random_bytes_per_s / read_bytes
    elif bandwidth is not None:
        limits["storage"] = bandwidth / inputs.sample_bytes
    ranked = sorted(limits, key=lambda name: limits[name])
    rate, dataset_bytes = limits[ranked[0]], inputs.images * inputs.sample_bytes
    in_sequence = min(limits[ranked[1]], (bandwidth or 0.0) / inputs.sample_bytes)
    prepare_s, prepare_bound = None, None
    if inputs.prepare_cpu_s is not None:
        cpu_s, moved_s = inputs.images * inputs.prepare_cpu_s / inputs.core_speed / inputs.cores, 0.0
        if bandwidth is not None and inputs.original_bytes is not None:
            moved_s = inputs.images * (inputs.original_bytes + inputs.sample_bytes) / bandwidth
        prepare_s = inputs.prepare_start_s + max(cpu_s, moved_s)
        prepare_bound = "cores" if cpu_s >= moved_s else "storage"
    shards, _ = choose_shards(inputs.images, inputs.sample_bytes, PrepareConfig(source="", out=""))
    return Plan(
        samples_per_s=rate,
        bound=ranked[0],
        limits=limits,
        next_bound=ranked[1],
        epoch_s=inputs.images / rate,
        training_s=inputs.epochs * inputs.images / rate,
        cores_needed=math.ceil(limits["gpus"] * core_s / HEADROOM),
        bandwidth_needed_bytes_per_s=limits["gpus"] * inputs.sample_bytes,
        window_samples_per_s=in_sequence if ranked[0] == "storage" and in_sequence > rate else None,
        reads_at_once=None if inputs.latency_s is None else max(1, math.ceil(rate * inputs.latency_s)),
        prepare_s=prepare_s,
        prepare_bound=prepare_bound,
        dataset_bytes=dataset_bytes,
        shards=shards,
        shard_bytes=dataset_bytes / shards,
        assumptions=assumptions(inputs),
    )


def assumptions(inputs: PlanInputs) -> list[str]:
    """In words, each with its figure."""
    picture = "" if inputs.picture_bytes is None else f" (its picture {inputs.picture_bytes / 1e3:,.1f} kB)"
    words = [
        f"a core loads a prepared sample in {1e6 * inputs.load_cpu_s / inputs.core_speed:,.0f} µs",
        f"workers get {HEADROOM:.0%} of their cores",
        f"one GPU takes {inputs.gpu_samples_per_s:,.0f} samples/s when data is free"
        + (f", and {inputs.gpus} take {inputs.gpus} times that (all-reduce is not counted)" * (inputs.gpus > 1)),
        f"a prepared sample has {inputs.sample_bytes / 1e3:,.1f} kB{picture} and is read once an epoch (no cache)",
    ]
    if inputs.bandwidth_bytes_per_s is None and inputs.random_bytes_per_s is None:
        words.append("the storage sets no limit")
    if inputs.prepare_cpu_s is not None:
        core_ms = 1e3 * inputs.prepare_cpu_s / inputs.core_speed
        words.append(f"a core prepares an original in {core_ms:,.2f} ms, and a job takes "
                     f"{inputs.prepare_start_s:,.0f} s to start and end")  # fmt: skip
    if inputs.prepared_originals is not None and inputs.prepared_originals < MANY_ORIGINALS:
        originals = count_of(inputs.prepared_originals, "original")
        words.append(f"that comes from a job over {originals}: so few show too much (a fifth at 2,000)")
    if inputs.core_speed != 1.0:
        words.append(f"the other machine's cores are {inputs.core_speed:g} times as fast as this one's")
    return words


def measure_costs(dataset: Path, image_size_px: int) -> tuple[Path, dict[str, Any]]:
    """The first train split, and what one sample of it costs, as fields of PlanInputs: loaded here for a few seconds
    with one worker, and read from what the prepare job wrote down. Raises DatasetError."""
    split = find_train(dataset)
    manifest = read_manifest(split)
    settings = {"split": str(split), "num_workers": 1, "image_size": image_size_px,
                "batch_size": max(1, min(BATCH_SIZE, manifest.samples)),
                "device": "cpu"}  # fmt: skip
    subject = Subject(kind="loader", settings=settings, window_s=1.0, warm_up_s=0.5)
    with Bench() as bench:
        measured = [bench.measure(subject) for _ in range(3)]
    costs = {
        "load_cpu_s": statistics.median_high(window.worker_cpu_s / window.samples for window in measured),
        "sample_bytes": sum(shard.bytes for shard in manifest.shards) / max(1, manifest.samples),
    }
    for folder in (split.parent, split.parent.parent):
        try:
            report = json.loads((folder / "report.json").read_text())
            originals = report["input_samples"] - report["resumed_samples"]
            run_s, all_s = report["seconds"]["run"], report["seconds"]["all"]
            core_s, bytes_in = run_s * report["parallelism"], report.get("bytes_in")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if originals > 0:
            original_bytes = bytes_in / report["input_samples"] if bytes_in else None
            job = {"prepare_cpu_s": core_s / originals, "original_bytes": original_bytes,
                   "prepare_start_s": all_s - run_s, "prepared_originals": originals}  # fmt: skip
            return split, {**costs, **job}
    return split, costs
