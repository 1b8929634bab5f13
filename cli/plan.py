"""`feedline plan`: what a dataset and a number of GPUs will need, from costs measured here."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console, stderr
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.errors import UsageError

Opt = typer.Option


AT_LEAST_ONE = {"min": 1}
OPTIONS = fields(
    "benchmarks.plan.PlanInputs",
    *("images", "gpus", "cores", "epochs", "core_speed"),
    images=AT_LEAST_ONE,
    gpus=AT_LEAST_ONE,
    cores=AT_LEAST_ONE,
    epochs=AT_LEAST_ONE,
    core_speed={"min": 1e-6, "max": 1e6},
)


@command
def plan(
    options: Annotated[Settings, OPTIONS],
    dataset: Annotated[Path | None, typer.Argument(help="Prepared data whose costs are measured.")] = None,
    gpu_rate: Annotated[
        float | None, Opt(min=1e-6, max=1e12, help="samples/s of one GPU when data is free (`profile --legs`).")
    ] = None,
    bandwidth: Annotated[str | None, Opt(help="Of the storage, as 2GB/s or (bits) 16Gb/s; none: no limit.")] = None,
    image_size: Annotated[int, Opt(min=8, help="Side of the training images, px.")] = 224,
    load_us: Annotated[float | None, Opt(min=1e-6, max=1e12, help="Not measured: core µs to load a sample.")] = None,
    sample_kb: Annotated[float | None, Opt(min=1e-6, max=1e12, help="Not measured: kB of a prepared sample.")] = None,
    prepare_ms: Annotated[float | None, Opt(min=1e-6, max=1e12, help="Core ms to prepare an original.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Epoch time, cores to feed the GPUs, preparing time, shard count, and where the next bottleneck is.

    Example: feedline plan OUT --images 1281167 --gpus 4 --gpu-rate 2500 --cores 32 --bandwidth 2GB/s
    """
    from feedline.benchmarks.plan import PlanInputs, make_plan

    record = Record("plan", json_file)
    if gpu_rate is None:
        raise UsageError("--gpu-rate is not given: it is the ceiling of `feedline profile --legs` on that GPU")
    limit = None if bandwidth is None else parse_rate(bandwidth)
    costs = costs_of(dataset, image_size, load_us, sample_kb, prepare_ms)
    inputs = PlanInputs(gpu_samples_per_s=gpu_rate, bandwidth_bytes_per_s=limit, **options, **costs)
    found = make_plan(inputs)
    show(inputs, found)
    record.write(json_file, {"inputs": asdict(inputs), "plan": asdict(found)})


def costs_of(
    dataset: Path | None, image_size: int, load_us: float | None, sample_kb: float | None, prepare_ms: float | None
) -> dict[str, Any]:
    """As fields of PlanInputs; what is given is not measured."""
    measured: dict[str, Any] = {}
    if dataset is not None:
        from feedline.benchmarks.plan import measure_costs

        split, measured = measure_costs(dataset, image_size)
        stderr.print(f"costs measured on {split}", markup=False, soft_wrap=True)
    elif load_us is None or sample_kb is None:
        raise UsageError("no costs to plan with: name a prepared dataset, or give both --load-us and --sample-kb")
    given = {
        "load_cpu_s": None if load_us is None else load_us / 1e6,
        "sample_bytes": None if sample_kb is None else sample_kb * 1e3,
        "prepare_cpu_s": None if prepare_ms is None else prepare_ms / 1e3,
    }
    return {**measured, **{name: value for name, value in given.items() if value is not None}}


def parse_rate(text: str) -> float:
    """Bytes per second of `2GB/s`, of `16Gb/s` or `16Gbps`, which are bits, and of `1000000`. Raises UsageError."""
    from feedline.preprocess.config import parse_bytes

    size = re.sub(r"(/s|ps)$", "", text.strip())
    number = re.sub(r"(?<=[\dkKMGTi])\s*(bit|b)$", "", size)
    try:
        return parse_bytes(number) / (1 if number == size else 8)
    except UsageError as error:
        raise UsageError(f"--bandwidth {text!r}: write it as 2GB/s (bytes) or 16Gb/s (bits)") from error


def show(inputs: Any, found: Any) -> None:
    from feedline.profiling.record import units

    def line(name: str, value: str) -> None:
        console.print(f"{name:<22} {value}", markup=False, soft_wrap=True)

    line("rate", f"{units.rate(found.samples_per_s)}, bound by the {found.bound}")
    for name, limit in sorted(found.limits.items(), key=lambda item: item[1]):
        line(f"  {name} allow", units.rate(limit))
    if found.next_bound:
        line("next bottleneck", f"the {found.next_bound}, from {units.rate(found.limits[found.next_bound])}")
    if inputs.bandwidth_bytes_per_s is not None:
        line("storage given", f"{units.size(inputs.bandwidth_bytes_per_s)}/s")
    line("one epoch", units.seconds(found.epoch_s))
    line(f"{inputs.epochs} epochs", units.seconds(found.training_s))
    line("cores to feed the GPUs", f"{found.cores_needed:,} (there are {inputs.cores:,})")
    line("bandwidth for that", f"{units.size(found.bandwidth_needed_bytes_per_s)}/s")
    if found.prepare_s is not None:
        line("preparing", f"{units.seconds(found.prepare_s)}, bound by the {found.prepare_bound}")
    line(
        "prepared dataset",
        f"{units.size(found.dataset_bytes)} in {found.shards:,} shards of {units.size(found.shard_bytes)}",
    )
    console.print("\nassumed:", markup=False)
    for assumption in found.assumptions:
        console.print(f"  {assumption}", markup=False, soft_wrap=True)
