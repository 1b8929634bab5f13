"""Does this machine feed its GPU? What the GPU takes, what the cores deliver, what comes of both together.

    ceiling   training on cached batches: channels_last, and bf16 where the GPU computes in it
    loader    feedline's loader alone, its batches on the device, by codec and number of workers
    fed       the same training on the loader's batches, with all cores

Every window is measured in a fresh process (`benchmarks.measure.loader_subject`), the most telling cells first, and
all of them again for as long as the time allows. Checksums are off: a training checks them in its first epoch only.
Without a GPU there are the loader's rates, to the host; and the rest on the CPU for a model that is asked for.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from feedline.benchmarks.measure.intervals import estimate
from feedline.benchmarks.measure.rounds import Advance, Measure, Tried
from feedline.benchmarks.measure.window import Subject, Window, per_second
from feedline.benchmarks.sample_shards import make_shards
from feedline.benchmarks.variants import size_px, train_splits
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.base.settings import PREFETCH, check_limits, limited
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units

MODELS = ("mobilenet_v2", "resnet50")
GPU_DECODE = "gpu decode"
WAYS = {"jpeg": "jpeg", "planes": "planes", "raw": "raw", GPU_DECODE: "jpeg"}
"""Of getting samples to the device, and the codec of their shards."""
CACHED = 8
"""Distinct batches that are replayed for a ceiling."""
FED = 0.95
"""Share of its ceiling from which a model is called fed."""
WAITS = 0.05
"""Share of the time: a loop that waits less for data is not held back by it."""
NOTABLE = 0.05
"""What a doubling of the workers gains less than is nothing: the curve is flat."""

NO_GPU = (
    "no GPU takes part: the loader's rates are to the host; copies, GPU decoding and a GPU's activity are left out"
)
OWN_SHARDS = (
    "own small shards of synthetic pictures, read from the page cache: what a disk can do is not in these rates"
)

Splits = Mapping[tuple[str, int], Path]
"""By way and image size."""


@dataclass(frozen=True, kw_only=True)
class GpuCheckConfig:
    dataset: Path | None = None
    """A prepared folder; without one small shards are made for the occasion."""
    models: tuple[str, ...] = ()
    """Model to train, repeatable; default: mobilenet_v2 and resnet50, without a GPU none."""
    image_sizes: tuple[int, ...] = limited((224, 64), 8)
    """Sides of the training images, px."""
    batch_size: int = limited(256, 1)
    """Samples per batch."""
    num_workers: tuple[int, ...] = limited((), 1, 4096)
    """Loader processes, as 1,2,4; default: doubled up to all usable cores."""
    device: str = "auto"
    """cpu, cuda or auto."""
    budget_s: float = limited(480.0, 5)
    """Seconds for the windows; imports and small shards that are made come before."""
    rounds: int = limited(3, 1)
    """Windows of each cell at most."""
    window_s: float = limited(2.0, 0.2, 3600)
    """Seconds measured per window."""

    def __post_init__(self) -> None:
        check_limits(self)


class Cell(NamedTuple):
    """What one window is of."""

    px: int
    way: str
    workers: int
    model: str = ""
    """None: the loader alone."""
    cached: bool = False
    """The ceiling."""

    @property
    def name(self) -> str:
        if self.cached:
            return f"{self.model}, {self.px} px, cached batches"
        who = f"{self.model} on " if self.model else ""
        return f"{who}{self.way}, {self.px} px, {count_of(self.workers, 'worker')}"


def check(config: GpuCheckConfig, measure: Measure, told: Advance) -> dict[str, Any]:
    """The record of `feedline gpu-check`, its device known. Raises DatasetError, MeasureError where nothing runs."""
    with ExitStack() as stack:
        notes = [NO_GPU] if config.device == "cpu" else []
        dataset = config.dataset
        if dataset is None:
            notes.append(OWN_SHARDS)
            dataset = make_shards(stack.enter_context(scratch_folder("gpu-check")))
        splits = find_splits(dataset, config.image_sizes, config.device)
        about = {"cores": usable_cores(), "device": config.device, **about_gpu(config), "notes": notes}
        models = config.models or (MODELS if config.device == "cuda" else ())
        cells = cells_of(splits, models, config.num_workers or worker_counts(usable_cores()))
        return record_of(measure_cells(cells, splits, config, measure, told=told), cells, config, splits, about)


# --- what is measured ---------------------------------------------------------------------------------


def worker_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4 … and all cores."""
    return (*(2**power for power in range(20) if 2**power < cores), cores)


def find_splits(dataset: Path, sizes: Sequence[int], device: str) -> dict[tuple[str, int], Path]:
    """Of each codec the smallest shards that are as large as the images, else the largest. Raises DatasetError."""
    splits = train_splits(dataset)
    found: dict[tuple[str, int], Path] = {}
    for way, codec in WAYS.items():
        there = [split for split in splits if split[1].codec == codec]
        if there and (way != GPU_DECODE or device == "cuda"):
            for px in sizes:
                best = min(there, key=lambda split: (size_px(split[1]) < px, abs(size_px(split[1]) - px)))
                found[way, px] = best[0]
    if not found:
        raise DatasetError(
            f"{dataset} has no prepared train split of {', '.join(dict.fromkeys(WAYS.values()))} shards"
        )
    return found


def cells_of(splits: Splits, models: Sequence[str], counts: Sequence[int]) -> list[Cell]:
    """The most telling first: what a slow machine has no time for is the least missed."""
    most, ways = max(counts), list(splits)
    sizes = dict.fromkeys(px for _, px in ways)
    first = {px: next(way for way, other in ways if other == px) for px in sizes}
    ceilings = [Cell(px, first[px], most, model, cached=True) for model in models for px in sizes]
    fed = [Cell(px, way, most, model) for model in models for way, px in ways]
    alone = [
        Cell(px, way, workers)
        for workers in sorted(counts, key=lambda count: (count != most, count))
        for way, px in ways
    ]
    return [*ceilings, *alone[: len(ways)], *fed, *alone[len(ways) :]]


def subject(cell: Cell, splits: Splits, config: GpuCheckConfig) -> Subject:
    settings = {
        "split": str(splits[cell.way, cell.px]),
        "image_size": cell.px,
        "batch_size": config.batch_size,
        "num_workers": cell.workers,
        "device": config.device,
        "decode": "gpu" if cell.way == GPU_DECODE else "cpu",
        "model": cell.model or None,
        "cached": CACHED if cell.cached else None,
    }
    warm_up = 3 if cell.cached else PREFETCH * cell.workers + 3
    return Subject(kind="loader", settings=settings, window_s=config.window_s, warm_up_batches=warm_up,
                   warm_up_most_s=4 * config.window_s, least_batches=3)  # fmt: skip


def measure_cells(
    cells: Sequence[Cell], splits: Splits, config: GpuCheckConfig, measure: Measure,
    clock: Callable[[], float] = time.monotonic, told: Advance = lambda done, of: None,
) -> Tried[Cell]:  # fmt: skip
    """One window of each, then one more of each, until the time is over: then the rest is left out."""
    found = Tried[Cell](
        measure=lambda cell: measure(subject(cell, splits, config)), budget_s=config.budget_s, clock=clock
    )
    turns = [cell for _ in range(config.rounds) for cell in cells]
    for done, cell in enumerate(turns, 1):
        if found.out_of_time:
            break
        if cell not in found.failed:
            found.run(cell)
        told(done, len(turns))
    found.check()
    return found


# --- what comes of it ---------------------------------------------------------------------------------


def cores_needed(rates: Mapping[int, float], wanted: float) -> float | None:
    """Workers that deliver so much, by the rates of some numbers of them: between two as on a line; beyond the most
    by what each of these delivers, None where the last of them had hardly helped."""
    counts = sorted(rates)
    known = {0: 0.0, **rates}
    for fewer, more in pairwise([0, *counts]):
        if known[more] >= wanted:
            return fewer + (more - fewer) * (wanted - known[fewer]) / (known[more] - known[fewer])
    most = counts[-1]
    half = max((count for count in counts if 2 * count <= most), default=None)
    if half and rates[most] < (1 + NOTABLE) * rates[half]:
        return None
    return most * wanted / rates[most]


def record_of(
    found: Tried[Cell], cells: Sequence[Cell], config: GpuCheckConfig, splits: Splits, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain JSON. `about`: what is known of the machine: gpu, cores, copies, notes."""
    rates = {cell: estimate([window.samples_per_s for window in of]) for cell, of in found.windows.items()}
    ceilings = {(cell.model, cell.px): rate for cell, rate in rates.items() if cell.cached}
    alone = [cell for cell in rates if not cell.model]
    by_workers = {
        (way, px): {cell.workers: rates[cell].value for cell in alone if (cell.way, cell.px) == (way, px)}
        for way, px in splits
    }
    notes = [f"{cell.name} could not be measured: {why}" for cell, why in found.failed.items()]
    if missing := [cell.name for cell in cells if cell not in found.windows and cell not in found.failed]:
        notes.append(f"the time was over before these were measured (--budget): {'; '.join(missing)}")
    record: dict[str, Any] = {
        **about,
        "batch_size": config.batch_size,
        "window_s": config.window_s,
        "splits": {f"{way}, {px} px": split.parent.name for (way, px), split in splits.items()},
        "ceilings": [
            {"model": model, "image_size": px, **rate.record(),
             "input_bytes_per_s": rate.value * px * px * 3} for (model, px), rate in ceilings.items()
        ],
        "loaders": [
            {"way": cell.way, "image_size": cell.px, "workers": cell.workers, **rates[cell].record(),
             "worker_cpu_us": 1e6 * median(one.worker_cpu_s / one.samples for one in found.windows[cell])}
            for cell in sorted(alone, key=lambda cell: (-cell.px, list(WAYS).index(cell.way), cell.workers))
        ],
        "fed": [
            fed_record(cell, rates[cell].record(), found.windows[cell], ceilings.get((cell.model, cell.px)))
            for cell in rates if cell.model and not cell.cached
        ],
        "needs": [
            {"model": model, "image_size": px, "way": way, "cores": cores_needed(by_workers[way, px], rate.value)}
            for (model, px), rate in ceilings.items() for way, other in splits if other == px and by_workers[way, px]
        ],
    }  # fmt: skip
    return {**record, **statement(record), "notes": [*about.get("notes", []), *notes]}


def fed_record(cell: Cell, rate: Mapping[str, Any], windows: Sequence[Window], ceiling: Any) -> dict[str, Any]:
    """With what NVML said of the first GPU meanwhile: means over the windows, None where it says nothing."""
    gpus = [gpu for window in windows for gpu in (window.facts.get("gpus") or [])[:1]]
    names = ("sm_active", "sm_occupancy", "tensor_active", "utilization", "pcie_rx_bytes_per_s")
    return {
        "model": cell.model, "image_size": cell.px, "way": cell.way, "workers": cell.workers, **rate,
        "share": rate["samples_per_s"] / ceiling.value if ceiling else None,
        "wait_fraction": per_second(windows, "wait_s"),
        **{name: mean_known(gpu.get(name) for gpu in gpus) for name in names},
        "sources": gpus[0].get("sources", {}) if gpus else {},
        "unavailable": gpus[0].get("unavailable", {}) if gpus else {},
    }  # fmt: skip


def mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def statement(record: Mapping[str, Any]) -> dict[str, Any]:
    """`fed_all`: whether every model at every size is fed in some way; None where there was no ceiling to compare
    with."""
    device, who = record.get("gpu") or "a model on this CPU", count_of(record["cores"], "core")
    if record.get("gpus", 1) > 1:
        device, who = f"one of the {record['gpus']} GPUs here ({device})", f"all {who} together"
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for fed in record["fed"]:
        key = fed["model"], fed["image_size"]
        if fed["share"] is not None and fed["share"] > best.get(key, {"share": 0.0})["share"]:
            best[key] = fed
    if not best:
        what, why = "cores deliver", "no GPU was there to feed"
        if record["ceilings"]:
            what, why = f"cores deliver, and what {device} takes", "no time was left to see one feed the other"
        elif record.get("gpu"):
            why = "no model was measured on its GPU"
        return {"statement": f"What this machine's {what}; {why}.", "fed_all": None}
    starving = [fed for fed in best.values() if fed["share"] < FED and fed["wait_fraction"] >= WAITS]
    worst = min(starving or best.values(), key=lambda fed: fed["share"])
    name = f"{worst['model']} at {worst['image_size']} px"
    if (most := max(one["share"] for one in best.values())) > units.FREE_AT_MOST:
        what = f"a model reaches {100 * most:.0f} % of the ceiling that was measured for it"
        return {"statement": f"Cannot tell: {what}: run it alone, with longer --window.", "fed_all": None}
    if worst["share"] >= FED:
        words = f"{who} can feed {device}: {100 * worst['share']:.0f} % of its ceiling"
        if len(best) == 1:
            return {"statement": f"{words} ({name} from {worst['way']}, its best way).", "fed_all": True}
        words += " or more, each model in its best way"
        return {"statement": f"{words} ({name} from {worst['way']} is the least).", "fed_all": True}
    if not starving:
        words = f"{who} keep {device} waiting for {100 * worst['wait_fraction']:.0f} % of the time: {name} gets"
        rest = "of its ceiling, and it is not the data that keeps it from the rest"
        return {"statement": f"{words} {100 * worst['share']:.0f} % {rest} (from {worst['way']}).", "fed_all": True}
    needs = [need for need in record["needs"] if (need["model"], need["image_size"]) == (worst["model"],
             worst["image_size"]) and need["cores"]]  # fmt: skip
    least = min(needs, key=lambda need: need["cores"], default=None)
    more = ""
    if least and least["cores"] > record["cores"]:
        more = f"; {least['way']} on {count_of(math.ceil(least['cores'] - 1e-9), 'core')} would do"
    if worst["workers"] < record["cores"]:  # more of them were not tried
        who = count_of(worst["workers"], "worker")
    words = f"{who} cannot feed {device}: {name} gets {100 * worst['share']:.0f} %"
    return {"statement": f"{words} of its ceiling, from {worst['way']}{more}.", "fed_all": False}


# --- the machine --------------------------------------------------------------------------------------


def about_gpu(config: GpuCheckConfig) -> dict[str, Any]:
    """Of the device that is measured: name, memory, copies of a batch. {} for a CPU."""
    if config.device != "cuda":
        return {}
    import torch

    from feedline.benchmarks.measure.copies import measure_copies

    device = torch.device("cuda", torch.cuda.current_device())
    known = torch.cuda.get_device_properties(device)
    copies = measure_copies(config.batch_size * max(config.image_sizes) ** 2 * 3, device)
    return {
        "gpu": known.name,
        "gpus": torch.cuda.device_count(),
        "gpu_memory_bytes": known.total_memory,
        "multiprocessors": known.multi_processor_count,
        "capability": f"{known.major}.{known.minor}",
        "cuda": torch.version.cuda,
        "copies": [asdict(one) for one in copies],
    }
