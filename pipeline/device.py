"""Batches on their device: copied on a side stream while the model computes, normalised there, channels_last.

uint8 crosses the bus (a quarter of float32) from page-locked slots, so no staging copy is made; NHWC bytes are
NCHW channels_last for free. A slot is filled again only when an event behind its copy has passed.

Nothing here makes the host wait for the device, but for an image size's first batch: from pageable memory the driver
may hold the host up until the stream has come that far, so labels are sent from the slot too.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.workers.dispatch import EpochRun, HostBatch
from feedline.pipeline.workers.memory import SharedMemory

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, labels."""
Deliver = Callable[[EpochRun], Batch]
"""Takes the next batch out of a run. Raises what the run raises."""
Upload = Callable[[HostBatch, torch.device], torch.Tensor]
"""What a filler wrote -> uint8 NHWC on the device."""


class Normaliser:
    """uint8 NHWC -> (x / 255 - mean) / std in `dtype`, NCHW in channels_last, on the images' own device.

    Whole pixel rows at once: mean and scale are repeated over a row's width, because broadcasting the three channels
    alone runs unvectorised on a CPU (8 times the time, the same bits).
    """

    def __init__(self, device: torch.device, config: LoaderConfig) -> None:
        self.dtype = config.dtype
        self._device = device
        self._mean_C = torch.tensor(config.mean, device="cpu") * 255  # whatever torch's default device is
        self._scale_C = 1 / (torch.tensor(config.std, device="cpu") * 255)
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        """Computed in float32 whatever the dtype: bf16 has 8 bits, and the mean would be rounded to them."""
        count, height, width, channels = images_NHWC.shape
        if width not in self._rows:  # sent by the stream that reads them: it waits for no other
            self._rows[width] = (
                self._mean_C.repeat(width).to(self._device),
                self._scale_C.repeat(width).to(self._device),
            )
        mean_row, scale_row = self._rows[width]
        rows = images_NHWC.reshape(count * height, width * channels).to(torch.float32)
        rows = rows.sub_(mean_row).mul_(scale_row).to(self.dtype)
        return rows.view(count, height, width, channels).permute(0, 3, 1, 2)  # same bytes; already channels_last


def show_on_host(run: EpochRun) -> Batch:
    """uint8 NHWC tensors that show the slot itself; labels of their own, for the slot waits for the images alone."""
    batch = next(run)
    return torch.from_numpy(batch.images_NHWC), torch.from_numpy(batch.labels_N.copy())


def copy_pixels(batch: HostBatch, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(batch.images_NHWC).to(device, non_blocking=True)


class OnCuda:
    """Copied and normalised on a stream of its own: while the model works on a batch, the next is sent if the workers
    have it ready."""

    def __init__(self, device: torch.device, normalise: Normaliser, upload: Upload) -> None:
        self._device, self._normalise, self._upload = device, normalise, upload
        self.stream = torch.cuda.Stream(device)
        self._ahead: tuple[weakref.ref[EpochRun], Batch, Any] | None = None
        """The run it is of (which leads back to us), the batch, and the event behind its copy."""

    def __call__(self, run: EpochRun) -> Batch:
        ahead, self._ahead = self._ahead, None
        _, batch, event = ahead if ahead is not None and ahead[0]() is run else self._send(run, next(run))
        with run.waits.copying():
            if (following := run.next_if_ready()) is not None:
                self._ahead = self._send(run, following)
            # the current stream (not the host) waits for the copy, and the memory's life is tied to that stream
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in batch:
                tensor.record_stream(current)
            return batch

    def _send(self, run: EpochRun, batch: HostBatch) -> tuple[weakref.ref[EpochRun], Batch, Any]:
        """Starts copy and normalisation and returns at once."""
        with torch.cuda.stream(self.stream):
            images_NHWC = self._upload(batch, self._device)
            labels_N = torch.from_numpy(batch.labels_N).to(self._device, non_blocking=True)
            return weakref.ref(run), (self._normalise(images_NHWC), labels_N), self.stream.record_event()


def deliver_to(device: torch.device | None, config: LoaderConfig, upload: Upload) -> Deliver:
    """Raises UsageError for a device that is not there."""
    if device is None:
        return show_on_host
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={str(device)!r}: torch sees no CUDA device here; use device='cpu' or None")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={str(device)!r}: the loader delivers to cpu and cuda; move the batch yourself")
    normalise = Normaliser(device, config)
    if device.type == "cuda":
        return OnCuda(device, normalise, upload)

    def on_cpu(run: EpochRun) -> Batch:
        """Normalised by the trainer's own threads."""
        images_NHWC, labels_N = show_on_host(run)
        with run.waits.copying():
            return normalise(images_NHWC), labels_N

    return on_cpu


def fence(delivery: Deliver) -> list[Any]:
    """What must pass before a slot whose last tensor just died may be written: everything submitted so far to the
    streams that may be reading it. Of batches on CUDA that is our own; the model's queue would keep slots for steps.
    Of batches on the host it is the stream that each device in use has in the thread in which the tensor died: a
    user who copies on another one keeps the tensor until that has passed.

    Asked whenever a slot comes back, also while the interpreter ends: looks for no device itself. A stream that is
    captured into a graph copies nothing now, and an event in it could never be asked."""
    if not torch.cuda.is_initialized():
        return []
    if isinstance(delivery, OnCuda):
        return [delivery.stream.record_event()]
    if torch.cuda.is_current_stream_capturing():
        return []
    return [torch.cuda.current_stream(device).record_event() for device in devices_in_use()]


def devices_in_use() -> list[int]:
    """Those of which this process has a context: asking another one for a stream would make it one."""
    has_context = torch._C._cuda_hasPrimaryContext
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]


def locks_pages(wanted: bool | None, delivery: Deliver) -> bool:
    """Whether `page_lock` is called for; never without a GPU, as in torch's DataLoader."""
    if wanted is None:
        return isinstance(delivery, OnCuda) or torch.cuda.is_initialized()
    return wanted and torch.cuda.is_available()


def page_lock(memory: SharedMemory, device: torch.device | None) -> Callable[[], None]:
    """Registers the memory with CUDA, so that copies from it are asynchronous and need no staging; returns the undo.
    For every device; the call is made in the context of `device`, else in the current one's.

    A refusal (a limit on locked memory) costs speed and not correctness: the driver then stages the copies.
    """
    address = torch.frombuffer(memory.map, dtype=torch.uint8).data_ptr()
    runtime: Any = torch.cuda.cudart()
    with torch.cuda.device(device if device is not None and device.type == "cuda" else None):
        if int(runtime.cudaHostRegister(address, memory.size_bytes, 0)) != 0:
            with suppress(RuntimeError):  # CUDA remembers a refusal, and the next kernel would be blamed for it
                torch.ones(1, device="cuda").add_(1)
            return lambda: None

    def undo() -> None:
        with suppress(RuntimeError):  # a device that is lost reads nothing any more
            for number in devices_in_use():  # copies under way read this memory
                torch.cuda.synchronize(number)
        runtime.cudaHostUnregister(address)

    return undo
