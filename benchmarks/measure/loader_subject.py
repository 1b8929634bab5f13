"""A subject of kind "loader": feedline's own loader over one split, alone or feeding a training step.

Settings: `split`, any field of `LoaderConfig`, `model` (None: the batches are only taken), `cached` (so many batches
are kept on the device and replayed: data is free) and `devices`: GPUs, or processes on a CPU, that train together
(DistributedDataParallel over NCCL or gloo); workers and batch size are each one's. Ranks are forks of the measuring
process, which stays rank 0 and holds the meter. Forking after torch's import costs no second one, so nothing may have
started a thread or touched a GPU before. Checksums are off, as behind a training's first epoch, unless a setting says
otherwise: each process would check again what a training checks once.

Of GPUs the window's facts say what NVML does (`gpus`, as `profiling.record.measurements.Gpu`).
"""

import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.window import Meter, WindowDone, endless
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.process import die_with, usable_cores

NO_BATCH = DatasetError("an epoch gave no batch: the split is smaller than one, take a smaller --batch-size")


def run_loader(meter: Meter, settings: dict[str, Any]) -> None:
    """Until the meter is full. The other ranks end with this one."""
    import torch

    wanted, devices = settings.get("device") or "auto", int(settings.get("devices") or 1)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    if devices == 1:
        drive(meter, settings, device, devices, 0)
        return
    with tempfile.TemporaryDirectory(prefix="feedline-ranks-") as folder:
        parent = os.getpid()

        def train(rank: int) -> None:
            if rank:
                die_with(parent)
            join(rank, devices, device, Path(folder) / "store")
            drive(meter, settings, device, devices, rank)

        fork = multiprocessing.get_context("fork")
        others = [fork.Process(target=train, args=(rank,)) for rank in range(1, devices)]
        for other in others:
            other.start()
        try:
            train(0)
        finally:
            for other in others:
                other.kill()
                other.join()


def join(rank: int, count: int, device: str, meeting: Path) -> None:
    import torch
    import torch.distributed as dist

    if device == "cpu":
        torch.set_num_threads(max(1, usable_cores() // count))
    else:
        torch.cuda.set_device(rank)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=meeting.as_uri(), rank=rank, world_size=count)


def drive(meter: Meter, settings: dict[str, Any], device: str, devices: int, rank: int) -> None:
    """One rank's loop. Rank 0's meter counts the samples of all; the others go on until they are ended."""
    import torch

    from feedline.pipeline.loader import Loader
    from feedline.pipeline.loader_config import LoaderConfig
    from feedline.train.run import pick_amp

    names = {field.name for field in fields(LoaderConfig)} - {"device"}
    given = {name: value for name, value in settings.items() if name in names and value is not None}
    options: dict[str, Any] = {"checksums": False} | given
    amp = pick_amp("auto", torch.device(device))  # as `feedline train` does
    if settings.get("model") or device != "cpu":
        options["device"] = device if devices == 1 or device == "cpu" else f"{device}:{rank}"
        options["dtype"] = amp if amp is not None and device != "cpu" else torch.float32
    loader = Loader(settings["split"], rank=rank, world_size=devices, **options)
    step = None
    if settings.get("model"):
        alone = devices == 1
        step = training_step(settings["model"], len(loader.manifest.classes), device, amp, None if alone else rank)
    cached = settings.get("cached")
    if loader.num_workers and devices == 1 and not cached:  # of several ranks one knows its own workers only
        meter.made = lambda: sum(worker["samples"] for worker in loader.stats()["workers"])
    batches = replayed(loader, cached) if cached else endless(loader.__iter__, NO_BATCH)
    if device != "cpu" and rank == 0:
        meter.look = gpu_look(torch.device(device))
    with closing(loader), suppress(WindowDone):
        while True:
            asked_s = time.perf_counter()
            images, labels = next(batches)
            if rank == 0:
                meter.batch(devices * len(labels), time.perf_counter() - asked_s)
            if step is not None:
                step(images, labels)


def replayed(loader: Any, count: int) -> Iterator[Any]:
    """Its first batches again and again; its workers are gone."""
    kept = list(itertools.islice(endless(loader.__iter__, NO_BATCH), count))
    loader.close()
    return itertools.cycle(kept)


def gpu_look(device: Any) -> Callable[[], dict[str, Any]]:
    """What NVML says of the GPU, GPM's counters since the call before."""
    from feedline.profiling.machine.nvml import GpuSampler
    from feedline.train.distributed import gpu_uuid

    sampler = GpuSampler(only=gpu_uuid(device))
    sampler.start()

    def look() -> dict[str, Any]:
        list(sampler.look({os.getpid()}))
        return {"gpus": [asdict(gpu) for gpu in sampler.summary()], "gpu_note": sampler.note}

    return look


def training_step(name: str, classes: int, device: str, amp: Any, rank: int | None) -> Callable[[Any, Any], None]:
    """`rank`: None without others to share the gradients with."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from feedline.train.models import build_model

    torch.manual_seed(0)
    model: Any = build_model(name, classes)
    model = model.to(device, memory_format=torch.channels_last)
    if rank is not None:
        model = DistributedDataParallel(model, device_ids=None if device == "cpu" else [rank])
    criterion = nn.CrossEntropyLoss(ignore_index=-1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images_NCHW: Any, labels_N: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, amp, enabled=amp is not None):
            loss = criterion(model(images_NCHW), labels_N.to(device))
        loss.backward()
        optimizer.step()

    return step
