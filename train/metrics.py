"""What is told while training: plain events, and the journal that writes them to a run folder.

An event is a flat dict with `event` (start, step, epoch, checkpoint, resume, note, end) and JSON values; the loop
tells them, listeners do the rest. Only the main rank tells.
"""

import json
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import sweep
from feedline.train.distributed import first_line

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
        """`from_step` > 0 continues a run: TensorBoard then forgets what an interrupted run logged beyond it. Nothing
        is written before the first event: a run that cannot begin leaves no folder."""
        self._run, self._tensorboard, self._from_step = run, tensorboard, from_step
        self._path, self._board_folder = run / "metrics.jsonl", run / "tensorboard"
        self._lines: TextIO | None = None
        self._board: Any = None
        self._hook = threading.excepthook

    def _open(self) -> TextIO:
        with writing(self._path):
            self._run.mkdir(parents=True, exist_ok=True)
            for folder in (self._run, self._run / "checkpoints"):
                sweep(folder)
            torn = self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n")
            lines = self._path.open("a", buffering=1)
            if torn:  # the run was killed in the middle of a line
                lines.write("\n")
        with writing(self._board_folder):
            self._board = open_board(self._board_folder, self._from_step) if self._tensorboard else None
        return lines

    def __call__(self, event: Event) -> None:
        self._lines = self._lines or self._open()
        with writing(self._path):
            self._lines.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")
        if self._board is None:
            return
        kind = event["event"]
        names = [*SCALARS.get(kind, ()), *(name for name in event if name.startswith("gpu_"))]
        with writing(self._board_folder):
            for name in dict.fromkeys(names):
                if isinstance(value := event.get(name), int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, event["step"])

    def show_model(self, model: nn.Module, images_NCHW: Tensor) -> None:
        """The model's graph and some of the images it is fed, where TensorBoard is on. Costs a trace of the model."""
        if self._board is None:
            return
        shown = images_NCHW[:_SHOWN_IMAGES].float().cpu()
        low, high = shown.amin(), shown.amax()
        with writing(self._board_folder):
            self._board.add_images("samples", (shown - low) / (high - low).clamp(min=1e-6), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated in torch, and is what TensorBoard's graph needs
            mode = model.training
            try:
                self._board.add_graph(model.eval(), images_NCHW[:1].float())
            except Exception as error:  # a model that cannot be traced trains all the same
                self({"event": "note", "text": f"no model graph in TensorBoard: {first_line(error)}"})
            finally:
                model.train(mode)

    def _thread_failed(self, failed: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread leaves its error to the next event too, which says it in one line."""
        if type(failed.thread).__name__ != "_AsyncWriterThread":
            self._hook(failed)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been said
            if self._lines is not None:
                self._lines.close()
        try:
            if self._board is not None:
                with writing(self._board_folder):
                    self._board.close()
        finally:
            threading.excepthook = self._hook

    def __enter__(self) -> "Journal":
        threading.excepthook = self._thread_failed
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def writing(path: Path) -> Generator[None]:
    """What the file system refuses inside, as one line."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror or error}; then go on with --resume auto"
        raise FeedlineError(what) from error


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
        if isinstance(event, dict) and event.get("event") == kind:
            events.append(event)
    return events


def memory_in_use_bytes(device: torch.device) -> int | None:
    """Of the GPU, by this process's tensors at their peak; None on a CPU."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
