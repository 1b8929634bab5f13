"""What is told while training: plain events, and the journal that writes them to a run folder.

An event is a flat dict with `event` (start, step, epoch, checkpoint, resume, note, end) and JSON values; the loop
tells them, listeners do the rest. Only the main rank tells.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import sweep

Event = dict[str, Any]
Listener = Callable[[Event], None]

SCALARS: dict[str, tuple[str, ...]] = {
    "step": ("loss", "lr", "samples_per_s", "wait_fraction", "own_fraction", "grad_norm", "gpu_memory_bytes"),
    "epoch": ("train_loss", "top1", "top5", "val_loss", "epoch_samples_per_s"),
    "resources": ("cpu_cores", "memory_bytes"),
}
_SHOWN_IMAGES = 16


class Journal:
    """metrics.jsonl and TensorBoard files of one run folder. `with` it."""

    def __init__(self, run: Path, *, tensorboard: bool, from_step: int = 0) -> None:
        """`from_step` > 0 continues a run: TensorBoard then forgets what an interrupted run logged beyond it."""
        self._path = run / "metrics.jsonl"
        try:
            run.mkdir(parents=True, exist_ok=True)
            for folder in (run, run / "checkpoints"):
                sweep(folder)
            torn = self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n")
            self._lines = self._path.open("a", buffering=1)
        except OSError as error:
            raise unwritable(self._path, error) from error
        if torn:  # the run was killed in the middle of a line
            self._line("")
        self._board = open_board(run / "tensorboard", from_step) if tensorboard else None

    def __call__(self, event: Event) -> None:
        self._line(json.dumps({"time": round(time.time(), 3), **event}))
        if self._board is None:
            return
        kind = event["event"]
        names = [*SCALARS.get(kind, ()), *(name for name in event if name.startswith("gpu_"))]
        for name in dict.fromkeys(names):
            if isinstance(value := event.get(name), int | float):
                self._board.add_scalar(f"{kind}/{name}", value, event["step"])

    def _line(self, text: str) -> None:
        try:
            self._lines.write(text + "\n")
        except OSError as error:
            raise unwritable(self._path, error) from error

    def show_model(self, model: nn.Module, images_NCHW: Tensor) -> None:
        """The model's graph and some of the images it is fed, where TensorBoard is on. Costs a trace of the model."""
        if self._board is None:
            return
        shown = images_NCHW[:_SHOWN_IMAGES].float().cpu()
        low, high = shown.amin(), shown.amax()
        self._board.add_images("samples", (shown - low) / (high - low).clamp(min=1e-6), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated in torch, and is what TensorBoard's graph needs
            mode = model.training
            try:
                self._board.add_graph(model.eval(), images_NCHW[:1].float())
            except Exception as error:  # a model that cannot be traced trains all the same
                self({"event": "note", "text": f"no model graph in TensorBoard: {str(error).splitlines()[0][:200]}"})
            finally:
                model.train(mode)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been said
            self._lines.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unwritable(path: Path, error: OSError) -> FeedlineError:
    return FeedlineError(f"{path} cannot be written: {error.strerror or error}; then go on with --resume auto")


def open_board(folder: Path, from_step: int) -> Any:
    """A SummaryWriter; None where the tensorboard package is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=from_step or None)


def silent(event: Event) -> None:
    """The listener of every rank but the main one."""


def everyone(listeners: Iterable[Listener]) -> Listener:
    """One listener that tells all of them."""
    listed = list(listeners)

    def tell(event: Event) -> None:
        for listener in listed:
            listener(event)

    return tell


def read_events(run: Path, kind: str) -> list[Event]:
    """The events of one kind in a run's metrics.jsonl, oldest first; a torn last line is left out."""
    events: list[Event] = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == kind:
            events.append(event)
    return events


def memory_in_use_bytes(device: torch.device) -> int | None:
    """Of the GPU, by this process's tensors at their peak; None on a CPU."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
