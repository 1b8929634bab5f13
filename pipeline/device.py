"""Batches on their device: copied on a side stream while the model computes, normalised there, channels_last.

uint8 crosses the bus (a quarter of float32) from page-locked slots, so no staging copy is made; NHWC bytes are
NCHW channels_last for free. A slot is filled again only when an event behind its copy has passed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.memory import SharedMemory
from feedline.pipeline.workers.dispatch import HostBatch, Run

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normaliser:
    """uint8 NHWC -> (x / 255 - mean) / std in `dtype`, NCHW in channels_last, on the images' own device.

    Whole pixel rows at once: mean and scale are repeated over a row's width, because broadcasting the three channels
    alone runs unvectorised on a CPU (8 times the time, the same bits).
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, mean: tuple[float, ...], std: tuple[float, ...]):
        self.dtype = dtype
        self._mean_C = torch.tensor(mean, device=device) * 255
        self._scale_C = 1 / (torch.tensor(std, device=device) * 255)
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        """Computed in float32 whatever the dtype: bf16 has 8 bits, and the mean would be rounded to them."""
        count, height, width, channels = images_NHWC.shape
        if width not in self._rows:
            self._rows[width] = self._mean_C.repeat(width), self._scale_C.repeat(width)
        mean_row, scale_row = self._rows[width]
        rows = images_NHWC.reshape(count * height, width * channels).to(torch.float32)
        rows = rows.sub_(mean_row).mul_(scale_row).to(self.dtype)
        return rows.view(count, height, width, channels).permute(0, 3, 1, 2)  # same bytes; already channels_last


Batch = tuple[torch.Tensor, torch.Tensor]
Delivery = Callable[[Run], tuple[int, torch.Tensor, torch.Tensor]]
"""Takes the next batch out of a run: its number, images, labels. Raises what the run raises."""


def show_on_host(run: Run) -> tuple[int, torch.Tensor, torch.Tensor]:
    """uint8 NHWC tensors that show the slot itself."""
    batch = next(run)
    return batch.number, torch.from_numpy(batch.images_NHWC), torch.from_numpy(batch.labels_N)


class OnCpu:
    """Normalised on the CPU, by the trainer's own threads."""

    def __init__(self, normalise: Normaliser) -> None:
        self._normalise = normalise

    def begin(self) -> Delivery:
        return self._deliver

    def _deliver(self, run: Run) -> tuple[int, torch.Tensor, torch.Tensor]:
        number, images_NHWC, labels_N = show_on_host(run)
        with run.waits.clock("copy_s"):
            return number, self._normalise(images_NHWC), labels_N


Upload = Callable[[HostBatch, torch.device], torch.Tensor]
"""What a filler wrote -> uint8 NHWC on the device."""


def copy_pixels(batch: HostBatch, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(batch.images_NHWC).to(device, non_blocking=True)


class OnCuda:
    """Copied and normalised on a stream of its own, one batch ahead of the model where the workers allow it."""

    def __init__(self, device: torch.device, normalise: Normaliser, upload: Upload) -> None:
        self.device = device
        self._upload = upload
        self.stream = torch.cuda.Stream(device)
        self._normalise = normalise

    def begin(self) -> Delivery:
        return _OneAhead(self)

    def send(self, batch: HostBatch) -> "Sent":
        """Starts copy and normalisation and returns at once."""
        with torch.cuda.stream(self.stream):
            images_NHWC = self._upload(batch, self.device)
            labels_N = torch.from_numpy(batch.labels_N).to(self.device, non_blocking=True)
            return Sent(batch.number, self._normalise(images_NHWC), labels_N, self.stream.record_event())

    def receive(self, sent: "Sent") -> tuple[int, torch.Tensor, torch.Tensor]:
        """Makes the current stream (not the host) wait for the copy, and ties the memory's life to that stream."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(sent.event)
        sent.images_NCHW.record_stream(current)
        sent.labels_N.record_stream(current)
        return sent.number, sent.images_NCHW, sent.labels_N


class Sent(NamedTuple):
    number: int
    images_NCHW: torch.Tensor
    labels_N: torch.Tensor
    event: Any


class _OneAhead:
    """The delivery of one epoch on CUDA: while the model works on a batch, the next is copied if it is there."""

    def __init__(self, on_cuda: OnCuda) -> None:
        self._on_cuda = on_cuda
        self._ahead: Sent | None = None

    def __call__(self, run: Run) -> tuple[int, torch.Tensor, torch.Tensor]:
        sent = self._ahead or self._on_cuda.send(next(run))
        self._ahead = None
        with run.waits.clock("copy_s"):
            if (following := run.next_if_ready()) is not None:
                self._ahead = self._on_cuda.send(following)
            return self._on_cuda.receive(sent)


OnDevice = OnCpu | OnCuda


def on_device(device: torch.device, dtype: torch.dtype, mean: tuple[float, ...], std: tuple[float, ...],
              upload: Upload = copy_pixels) -> OnDevice:  # fmt: skip
    """Raises UsageError for a device that is not there."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={str(device)!r}: torch sees no CUDA device here; use device='cpu' or None")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={str(device)!r}: the loader delivers to cpu and cuda; move the batch yourself")
    normalise = Normaliser(device, dtype, mean, std)
    return OnCuda(device, normalise, upload) if device.type == "cuda" else OnCpu(normalise)


class CudaFence:
    """Everything submitted so far to the streams that may be reading a slot."""

    def __init__(self, streams: list[torch.cuda.Stream]) -> None:
        self._events = [stream.record_event() for stream in streams]

    def query(self) -> bool:
        return all(event.query() for event in self._events)

    def synchronize(self) -> None:
        for event in self._events:
            event.synchronize()


def cuda_in_use() -> bool:
    """Asked whenever a slot comes back, also while the interpreter ends: looks for no device itself."""
    return torch.cuda.is_initialized()


def make_fence(on_cuda: OnCuda | None) -> CudaFence | None:
    """What must pass before a slot whose last tensor just died may be written; None where no GPU is in use."""
    if not cuda_in_use():
        return None
    streams = [torch.cuda.current_stream()]
    if on_cuda is not None:
        streams.append(on_cuda.stream)
    return CudaFence(streams)


def page_lock(memory: SharedMemory) -> Callable[[], None]:
    """Registers the memory with CUDA, so that copies from it are asynchronous and need no staging; returns the undo.

    A refusal (a limit on locked memory) costs speed and not correctness: the driver then stages the copies.
    """
    address = torch.frombuffer(memory.map, dtype=torch.uint8).data_ptr()
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(address, memory.size_bytes, 0)) != 0:
        return lambda: None

    def undo() -> None:
        torch.cuda.synchronize()  # copies under way read this memory
        runtime.cudaHostUnregister(address)

    return undo
