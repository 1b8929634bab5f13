"""A subject of kind "loader": feedline's own loader over one split, alone or feeding a training step.

Settings: the fields of `LoaderConfig` that a comparison varies (split, batch_size, image_size, num_workers,
prefetch_factor, pin_memory, device), `model` (None: the batches are only taken), `threads` of the model, `devices`
(GPUs, or processes on a CPU, that train together; workers and batch size are each one's).
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from feedline.benchmarks.measure.ranks import run_ranks, together
from feedline.benchmarks.measure.window import Meter, WindowDone
from feedline.pipeline.base.errors import DatasetError

LOADER_FIELDS = ("batch_size", "image_size", "num_workers", "prefetch_factor", "pin_memory", "seed", "train")


def run_loader(meter: Meter, settings: dict[str, Any]) -> None:
    """Until the meter is full."""
    device, devices = pick_device(settings), int(settings.get("devices") or 1)
    if devices == 1:
        drive(meter, settings, device, 1, 0)
    else:
        run_ranks(devices, device, partial(drive, meter, settings, device, devices))


def drive(meter: Meter, settings: dict[str, Any], device: str, devices: int, rank: int) -> None:
    """One rank's loop. Rank 0's meter counts the samples of all; the others go on until they are ended."""
    import torch

    from feedline.pipeline.loader import Loader
    from feedline.train.run import pick_amp

    options = {name: settings[name] for name in LOADER_FIELDS if settings.get(name) is not None}
    step: Callable[[Any, Any], None] | None = None
    if settings.get("model") or device != "cpu":
        options["device"] = device if devices == 1 or device == "cpu" else f"{device}:{rank}"
        amp = pick_amp("auto", torch.device(device))  # as `feedline train` does
        options["dtype"] = amp if amp is not None and device != "cpu" else torch.float32
    loader = Loader(settings["split"], rank=rank, world_size=devices, **options)
    if settings.get("model"):
        step = training_step(settings, len(loader.manifest.classes), device, devices, rank)
    if loader.num_workers and devices == 1:  # of several ranks one knows its own workers only
        meter.made = partial(made_by, loader)
    try:
        consume(meter if rank == 0 else None, epochs(loader), step, devices)
    except WindowDone:
        meter.facts["stages"] = loader.stats()["stages"]
        if meter.window is not None:
            meter.window.facts.update(meter.facts)
    finally:
        loader.close()


def made_by(loader: Any) -> int:
    """Samples that its workers have finished so far."""
    return sum(worker["samples"] for worker in loader.stats()["workers"])


def pick_device(settings: dict[str, Any]) -> str:
    import torch

    wanted = settings.get("device") or "auto"
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def consume(
    meter: Meter | None, batches: Iterator[Any], step: Callable[[Any, Any], None] | None, devices: int
) -> None:
    while True:
        asked = time.perf_counter()
        images, labels = next(batches)
        if meter is not None:
            if not meter.facts:
                meter.facts.update(dtype=str(images.dtype).removeprefix("torch."), shape=list(images.shape))
            meter.batch(devices * len(labels), time.perf_counter() - asked)
        if step is not None:
            step(images, labels)


def epochs(loader: Any) -> Iterator[Any]:
    while True:
        count = 0
        for count, batch in enumerate(loader, 1):  # noqa: B007  used after the loop
            yield batch
        if not count:
            raise DatasetError("an epoch gave no batch: the split is smaller than one, take a smaller --batch-size")


def training_step(
    settings: dict[str, Any], classes: int, device: str, devices: int = 1, rank: int = 0
) -> Callable[[Any, Any], None]:
    import torch
    from torch import nn

    from feedline.train.models import build_model
    from feedline.train.run import pick_amp

    if settings.get("threads"):
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    model: Any = build_model(settings["model"], classes)
    model = model.to(device, memory_format=torch.channels_last)
    if devices > 1:
        model = together(model, device, rank)
    criterion = nn.CrossEntropyLoss(ignore_index=-1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    amp = pick_amp("auto", torch.device(device))

    def step(images_NCHW: Any, labels_N: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, amp, enabled=amp is not None):
            loss = criterion(model(images_NCHW), labels_N.to(device))
        loss.backward()
        optimizer.step()

    return step
