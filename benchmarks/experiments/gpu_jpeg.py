"""Decoding on the GPU: regions that workers cut out, against whole files, against workers that decode themselves.

    python -m feedline.benchmarks.experiments.gpu_jpeg OUT [--image-size 224 --batch-size 256 --rounds 5
        --workers 1 2 4 --device cuda]

*decoding*: batches that lie in memory, as cuts and as whole files with the region's place, through the very code of
the loader (`pipeline.gpu_decode`): samples/s of one thread and the device, bytes that cross the bus, and how far the
pixels of both are from the workers'. *loader*: the loader alone, its batches on the device, decoded by the workers or
there. Rounds in random order. `--device cpu` tries the code with torchvision's decoder on the CPU. Writes
results/gpu-jpeg.json.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.gpu_check import GPU_DECODE, Cell, GpuCheckConfig, Splits, find_splits, subject
from feedline.benchmarks.measure.rounds import Bench, check_devices
from feedline.pipeline import gpu_decode
from feedline.pipeline.codecs import crop_jpeg
from feedline.pipeline.draw import regions
from feedline.pipeline.loader import Loader
from feedline.pipeline.workers.dispatch import HostBatch
from feedline.pipeline.workers.fill_regions import RegionFiller, unpack

BATCHES = 4
LEAST_S = 0.5


def main() -> None:
    given = options(__doc__, "gpu-jpeg.json", "dataset", image_size=224, batch_size=256, rounds=5, workers=(1, 2, 4),
                    device="cuda")  # fmt: skip
    device = check_devices([1], given.device, [])
    config = GpuCheckConfig(image_sizes=(given.image_size,), batch_size=given.batch_size, device=device)
    splits = find_splits(given.dataset, config.image_sizes, device)
    about = {"image_size_px": given.image_size, "batch_size": given.batch_size, "device": device,
             "n": given.rounds, "warm_up": "one pass over the batches"}  # fmt: skip
    decoding = decoded(splits["jpeg", given.image_size], given, torch.device(device))
    write(given.out, {**about, "decoding": decoding})
    loader = loaded(given, config, splits)
    write(given.out, {**about, "decoding": decoding, "loader": loader})
    rates = {name: one["samples_per_s"] for name, one in decoding.items()} | loader
    rows = [(name, *(f"{value:,.0f}" for value in one.values())) for name, one in rates.items()]
    show(("samples/s", "median", "low", "high"), rows)


def decoded(split: Path, given: Namespace, device: torch.device) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": given.batch_size, "image_size": given.image_size, "num_workers": 0,
                               "checksums": False, "policy": "drop", "rank": 0, "world_size": 1}  # fmt: skip
    forms = {"cut regions": packed(split, options)}
    with patch.object(RegionFiller, "_cut", leave_whole):
        forms["whole files"] = packed(split, options)
    pixels = taken(Loader(split, **options))
    cells = {name: passing(batches, device) for name, batches in forms.items()}
    in_rounds(cells, 1)
    by_round = in_rounds(cells, given.rounds, lambda rate: f"{rate:,.0f} samples/s")
    return {
        name: {
            "samples_per_s": spread(column(by_round, name)),
            "bytes_per_sample": fmean(data.nbytes for one in batches
                                      for data, _ in unpack(one.images, len(one.labels_N))),
            "levels_off": fmean(levels_off(gpu_decode.decode(one, device), by_workers)
                                for one, by_workers in zip(batches, pixels, strict=True)),
        } for name, batches in forms.items()
    }  # fmt: skip


def levels_off(images_NHWC: torch.Tensor, by_workers: HostBatch) -> float:
    """The mean difference, in grey levels."""
    return float((images_NHWC.cpu().float() - torch.from_numpy(by_workers.images_NHWC)).abs().mean())


def packed(split: Path, options: dict[str, Any]) -> list[HostBatch]:
    """What workers hand over to a device that decodes."""
    with patch.object(gpu_decode, "available", lambda _: True):
        return taken(Loader(split, **options, decode="gpu"))


def taken(loader: Loader) -> list[HostBatch]:
    """Copies of the first batches, before any device has them."""
    batches: Any = iter(loader)
    first = [next(batches._run) for _ in range(BATCHES)]
    copies = [HostBatch(batch.images.copy(), batch.labels_N.copy(), batch.px) for batch in first]
    loader.close()
    return copies


def leave_whole(filler: RegionFiller, data: bytes, epoch: int, sample: int, px: int) -> Any:
    """In the place of `_cut`: the same region, in the whole file."""
    frame = crop_jpeg.parse(data)
    region = regions.choose(frame.width_px, frame.height_px, px, filler.augment, filler.spec.seed, epoch, sample)
    left, top, width, height = region.inner or (0, 0, region.width_px, region.height_px)
    corner = region.left_px + round(left), region.top_px + round(top)
    return data, (*corner, max(1, round(width)), max(1, round(height)), int(region.flip))


def passing(batches: list[HostBatch], device: torch.device) -> Callable[[], float]:
    """samples/s."""

    def cell() -> float:
        samples, started_s = 0, time.perf_counter()
        while True:
            for batch in batches:
                samples += len(gpu_decode.decode(batch, device))
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent_s = time.perf_counter() - started_s
            if spent_s >= LEAST_S:
                return samples / spent_s

    return cell


def loaded(given: Namespace, config: GpuCheckConfig, splits: Splits) -> dict[str, Any]:
    ways = [way for way in ("jpeg", GPU_DECODE) if (way, given.image_size) in splits]
    kinds = [Cell(given.image_size, way, workers) for way in ways for workers in given.workers]
    with Bench() as bench:
        cells = {
            kind.name: lambda kind=kind: bench.measure(subject(kind, splits, config)).samples_per_s for kind in kinds
        }
        by_round = in_rounds(cells, max(1, given.rounds // 2), lambda rate: f"{rate:,.0f} samples/s")
    return {name: spread(column(by_round, name)) for name in cells}


if __name__ == "__main__":
    end_with(main)
