"""`feedline plan`: what a dataset and a number of GPUs will need, from costs measured here."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.common import Record, console, stderr
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import IMAGE_SIZE
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units

if TYPE_CHECKING:
    from feedline.benchmarks.plan import Plan, PlanInputs

OPTIONS = fields("benchmarks.plan.PlanInputs", "images", "gpus", "cores", "epochs", "core_speed")


def positive(words: str) -> Any:
    return typer.Option(min=1e-6, max=1e12, help=words)


@command
def plan(
    options: Annotated[Settings, OPTIONS],
    record: Record,
    dataset: Annotated[Path | None, typer.Argument(help="Prepared data whose costs are measured.")] = None,
    gpu_rate: Annotated[float | None, positive("samples/s of one GPU when data is free (`profile --legs`).")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of the storage, as 2GB/s or (bits) 16Gb/s; none: no limit.")
    ] = None,
    random_bandwidth: Annotated[
        str | None, typer.Option(help="The same at random places, many reads at once; none: as in sequence.")
    ] = None,
    latency_ms: Annotated[float | None, positive("Of one read of that storage.")] = None,
    image_size: Annotated[int, typer.Option(min=8, help="Side of the training images, px.")] = IMAGE_SIZE,
    load_us: Annotated[float | None, positive("Not measured: core µs to load a sample.")] = None,
    sample_kb: Annotated[float | None, positive("Not measured: kB of a prepared sample.")] = None,
    prepare_ms: Annotated[float | None, positive("Core ms to prepare an original.")] = None,
) -> None:
    """Epoch time, cores to feed the GPUs, preparing time, shard count, and where the next bottleneck is.

    Example: feedline plan OUT --images 1281167 --gpus 4 --gpu-rate 2500 --cores 32 --bandwidth 2GB/s
    """
    from feedline.benchmarks.plan import PlanInputs, make_plan

    limit = None if bandwidth is None else parse_rate(bandwidth)
    random = None if random_bandwidth is None else parse_rate(random_bandwidth, "--random-bandwidth")
    if dataset is not None:
        from feedline.pipeline.format.manifest import refuse_missing

        refuse_missing(dataset)
    if gpu_rate is None:
        ceiling = "the ceiling of `feedline gpu-check`, or of `feedline profile --legs`, on that GPU"
        raise UsageError(f"--gpu-rate is not given: it is {ceiling}")
    given = {"load_cpu_s": (load_us, 1e-6), "sample_bytes": (sample_kb, 1e3), "prepare_cpu_s": (prepare_ms, 1e-3)}
    costs: Settings = {}
    here: dict[str, Any] = {}
    if dataset is not None:
        from feedline.benchmarks.plan import measure_costs
        from feedline.benchmarks.storage_advice import storage_of

        split, costs = measure_costs(dataset, image_size)
        stderr.print(f"costs measured on {split}")
        storage = storage_of(split)
        here = {"storage": storage.record()}
        costs |= {"picture_bytes": storage.sample_bytes} if sample_kb is None else {}
        for name, words in storage.lines():
            console.print(f"{name:<22} {words}")
        console.print(f"to plan with it: {storage.plan_options}\n")
    elif load_us is None or sample_kb is None:
        raise UsageError("no costs to plan with: name a prepared dataset, or give both --load-us and --sample-kb")
    costs |= {name: value * unit for name, (value, unit) in given.items() if value is not None}
    slow: Settings = {
        "bandwidth_bytes_per_s": limit,
        "random_bytes_per_s": random,
        "latency_s": latency_ms and latency_ms / 1e3,
    }
    inputs = PlanInputs(gpu_samples_per_s=gpu_rate, **slow, **options, **costs)
    result = make_plan(inputs)
    show_plan(inputs, result)
    record.write({"inputs": asdict(inputs), "plan": asdict(result), **here})


def parse_rate(text: str, option: str = "--bandwidth") -> float:
    """Bytes per second of `2GB/s`, of `16Gb/s` or `16Gbps`, which are bits, and of `1000000`. Raises UsageError."""
    from feedline.preprocess.config import parse_bytes

    size = re.sub(r"(/s|ps)$", "", text.strip())
    number = re.sub(r"(?<=[\dkKMGTi])\s*(bit|b)$", "", size)
    try:
        if rate := parse_bytes(number) / (1 if number == size else 8):
            return rate
    except UsageError as error:
        raise UsageError(f"{option} {text!r}: write it as 2GB/s (bytes) or 16Gb/s (bits)") from error
    raise UsageError(f"{option} {text!r}: storage that gives nothing feeds nobody; leave it out for no limit")


def show_plan(inputs: "PlanInputs", result: "Plan") -> None:
    lines = {"rate": f"{units.rate(result.samples_per_s)}, bound by the {result.bound}"}
    for name, limit in sorted(result.limits.items(), key=lambda item: item[1]):
        lines[f"  {name} allow"] = units.rate(limit)
    lines["next bottleneck"] = f"the {result.next_bound}, from {units.rate(result.limits[result.next_bound])}"
    if inputs.bandwidth_bytes_per_s is not None:
        lines["storage given"] = f"{units.size(inputs.bandwidth_bytes_per_s)}/s"
    if inputs.random_bytes_per_s is not None:
        lines["  at random places"] = f"{units.size(inputs.random_bytes_per_s)}/s"
    if result.window_samples_per_s is not None:
        lines["  in shard windows"] = f"{units.rate(result.window_samples_per_s)} (window_shards)"
    if result.reads_at_once is not None:
        lines["  reads under way"] = f"{result.reads_at_once:,} hide its {units.seconds(inputs.latency_s)}"
    lines["one epoch"] = units.seconds(result.epoch_s)
    lines[count_of(inputs.epochs, "epoch")] = units.seconds(result.training_s)
    lines["cores to feed the GPUs"] = f"{result.cores_needed:,} (there are {inputs.cores:,})"
    lines["bandwidth for that"] = f"{units.size(result.bandwidth_needed_bytes_per_s)}/s"
    if result.prepare_s is not None:
        lines["preparing"] = f"{units.seconds(result.prepare_s)}, bound by the {result.prepare_bound}"
    shards = f"{count_of(result.shards, 'shard')} of {units.size(result.shard_bytes)}"
    lines["prepared dataset"] = f"{units.size(result.dataset_bytes)} in {shards}"
    for name, value in lines.items():
        console.print(f"{name:<22} {value}")
    console.print("\nassumed:")
    for assumption in result.assumptions:
        console.print(f"  {assumption}")
