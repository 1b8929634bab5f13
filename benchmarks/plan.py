"""Planning past this machine: epoch time, cores, storage, preparing and shards, from measured costs per sample. Pure.

    rate = min(GPUs × their rate, cores / CPU seconds per sample, bandwidth / bytes per sample)

Costs per sample and core are taken to hold on the other machine; `core_speed` scales them where its cores are known
to be faster or slower. What is assumed is part of the answer.
"""

import math
from dataclasses import dataclass, field

from feedline.pipeline.base.errors import UsageError

SHARD_BYTES = 64e6
MANY_ORIGINALS = 10_000
"""Smaller jobs spend more per original, since their workers warm up: a fifth at 2,000, 2 % from here."""
MOST_SHARDS = 100_000
"""Beyond this shards grow instead: listing and opening them would cost more than their size gains."""
HEADROOM = 0.85
"""Share of a core's time that workers get for samples: the rest is the trainer's, the kernel's and luck's."""

MOST = 10**15
"""Beyond it no dataset, rate or time can be meant."""
MAY_BE_UNKNOWN = ("bandwidth_bytes_per_s", "prepare_cpu_s")


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    images: int = 1_281_167
    """Images to plan for."""
    gpus: int = 1
    """GPUs of all machines together."""
    gpu_samples_per_s: float
    """Of one GPU when data is free."""
    cores: int = 8
    """Cores for workers, of all machines together."""
    bandwidth_bytes_per_s: float | None
    """Of the storage, for all machines together; None: no limit."""
    load_cpu_s: float
    """Loading one prepared sample, on one core."""
    sample_bytes: float
    """Prepared."""
    prepare_cpu_s: float | None = None
    """Preparing one original, on one core."""
    original_bytes: float | None = None
    prepare_start_s: float = 0.0
    """Of preparing, whatever the number of images."""
    prepared_originals: int | None = None
    """From how many the cost of preparing is known; None: it was given."""
    epochs: int = 90
    """Epochs to train."""
    core_speed: float = 1.0
    """Speed of its cores by this machine's."""

    def __post_init__(self) -> None:
        for name in ("images", "gpus", "cores", "epochs"):
            if not 1 <= getattr(self, name) <= MOST:
                raise UsageError(f"--{name} {getattr(self, name)}: between 1 and {MOST:.0e}")
        for name in ("gpu_samples_per_s", "load_cpu_s", "sample_bytes", "core_speed", *MAY_BE_UNKNOWN):
            value: float | None = getattr(self, name)
            if value is None and name in MAY_BE_UNKNOWN:
                continue
            if value is None or not 1 / MOST <= value <= MOST:  # not a number is neither
                raise UsageError(f"{name} must lie between {1 / MOST:.0e} and {MOST:.0e}, not {value}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    samples_per_s: float
    bound: str
    """gpus, cores or storage."""
    limits: dict[str, float]
    """samples/s that each allows."""
    next_bound: str | None
    """What limits once the first is out of the way."""
    epoch_s: float
    training_s: float
    cores_needed: int
    """To feed the GPUs at their full rate."""
    bandwidth_needed_bytes_per_s: float
    prepare_s: float | None
    prepare_bound: str | None
    dataset_bytes: float
    shards: int
    shard_bytes: float
    assumptions: list[str] = field(default_factory=list)


def make_plan(inputs: PlanInputs) -> Plan:
    per_core_s = inputs.load_cpu_s / inputs.core_speed
    limits = {
        "gpus": inputs.gpus * inputs.gpu_samples_per_s,
        "cores": HEADROOM * inputs.cores / per_core_s,
    }
    if inputs.bandwidth_bytes_per_s is not None:
        limits["storage"] = inputs.bandwidth_bytes_per_s / inputs.sample_bytes
    ranked = sorted(limits, key=lambda name: limits[name])
    rate = limits[ranked[0]]
    prepare_s, prepare_bound = preparing(inputs)
    shards = shard_count(inputs)
    dataset_bytes = inputs.images * inputs.sample_bytes
    return Plan(
        samples_per_s=rate,
        bound=ranked[0],
        limits=limits,
        next_bound=ranked[1] if len(ranked) > 1 else None,
        epoch_s=inputs.images / rate,
        training_s=inputs.epochs * inputs.images / rate,
        cores_needed=math.ceil(limits["gpus"] * per_core_s / HEADROOM),
        bandwidth_needed_bytes_per_s=limits["gpus"] * inputs.sample_bytes,
        prepare_s=prepare_s,
        prepare_bound=prepare_bound,
        dataset_bytes=dataset_bytes,
        shards=shards,
        shard_bytes=dataset_bytes / shards,
        assumptions=assumptions(inputs),
    )


def preparing(inputs: PlanInputs) -> tuple[float | None, str | None]:
    """Seconds to start, and for all images on all cores or as fast as originals are read and shards written; and
    which of the two it is."""
    if inputs.prepare_cpu_s is None:
        return None, None
    cpu_s = inputs.images * inputs.prepare_cpu_s / inputs.core_speed / inputs.cores
    if inputs.bandwidth_bytes_per_s is None or inputs.original_bytes is None:
        return inputs.prepare_start_s + cpu_s, "cores"
    moved = inputs.images * (inputs.original_bytes + inputs.sample_bytes)
    read_s = moved / inputs.bandwidth_bytes_per_s
    return inputs.prepare_start_s + max(cpu_s, read_s), "cores" if cpu_s >= read_s else "storage"


def shard_count(inputs: PlanInputs) -> int:
    """About 64 MB each, a multiple of the GPUs, at least eight per GPU where there are samples enough."""
    wanted = min(MOST_SHARDS, max(inputs.images * inputs.sample_bytes / SHARD_BYTES, 8 * inputs.gpus))
    rounded = math.ceil(wanted / inputs.gpus) * inputs.gpus
    return max(1, min(rounded, inputs.images))


def assumptions(inputs: PlanInputs) -> list[str]:
    """In words, each with its figure."""
    found = [
        f"a core loads a prepared sample in {1e6 * inputs.load_cpu_s / inputs.core_speed:,.0f} µs",
        f"workers get {HEADROOM:.0%} of their cores",
        f"one GPU takes {inputs.gpu_samples_per_s:,.0f} samples/s when data is free, and {inputs.gpus} take "
        f"{inputs.gpus} times that (all-reduce is not counted)",
        f"a prepared sample has {inputs.sample_bytes / 1e3:,.1f} kB and is read once an epoch (no cache)",
    ]
    if inputs.bandwidth_bytes_per_s is None:
        found.append("the storage sets no limit")
    if inputs.prepare_cpu_s is not None:
        core_ms = 1e3 * inputs.prepare_cpu_s / inputs.core_speed
        found.append(f"a core prepares an original in {core_ms:,.2f} ms, and a job takes "
                     f"{inputs.prepare_start_s:,.0f} s to start and end")  # fmt: skip
    if inputs.prepared_originals is not None and inputs.prepared_originals < MANY_ORIGINALS:
        found.append(f"that comes from a job over {inputs.prepared_originals:,} originals: so few show too much "
                     "(a fifth at 2,000)")  # fmt: skip
    if inputs.core_speed != 1.0:
        found.append(f"the other machine's cores are {inputs.core_speed:g} times as fast as this one's")
    return found
