"""Events of a training run, and the journal that writes them to the run's folder.

An event is a flat dict with `event` (start, step, epoch, checkpoint, resume, note, resources, end) and JSON values.
Only the main rank emits them; the journal, the terminal and whoever else is interested are listeners.
"""

import json
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor, nn

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import sole_use, sweep
from feedline.profiling.record.plain import to_plain
from feedline.train.distributed import short_line

Event = dict[str, Any]
Listener = Callable[[Event], None]

BOARD = ("step", "epoch", "resources")
"""Events whose numbers TensorBoard shows, all of them …"""
PLACES = ("step", "epoch", "at_s")
"""… but those that say where the run was."""


class Journal:
    """metrics.jsonl and TensorBoard files of one run folder. `with` it.

    Nothing is written before the first event: a run that cannot begin leaves no folder.
    """

    def __init__(self, run: Path, *, tensorboard: bool) -> None:
        self._run, self._tensorboard = run, tensorboard
        self._path, self._board_folder = run / "metrics.jsonl", run / "tensorboard"
        self._lines: TextIO | None = None
        self._ends = ExitStack()
        self._board: Any = None
        self._hook = threading.excepthook

    def _open(self, from_step: int | None) -> TextIO:
        """TensorBoard forgets what an interrupted run logged beyond `from_step`, where this one goes on; None: it
        begins."""
        try:
            self._run.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"there can be no folder {self._run} ({error.strerror}): choose another --run"
            raise UsageError(what) from error
        with writing(self._path):
            busy = f"another training is running in {self._run}: wait for it, or choose another --run"
            self._ends.enter_context(sole_use(self._run, busy))
            sweep(self._run)
            torn = self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n")
            lines = self._path.open("a", buffering=1)
            if torn:  # the run was killed in the middle of a line
                lines.write("\n")
        if self._tensorboard:
            with suppress(ImportError), warnings.catch_warnings(), writing(self._board_folder):
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter

                beyond = None if from_step is None else from_step + 1  # it hides that step, too
                self._board = SummaryWriter(str(self._board_folder), purge_step=beyond)
        return lines

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        self._lines = self._lines or self._open(event["step"] if kind == "resume" else None)
        with writing(self._path):
            self._lines.write(json.dumps(to_plain({"time": round(time.time(), 3), **event})) + "\n")
        if self._board is None or kind not in BOARD:
            return
        with writing(self._board_folder):
            for name in event.keys() - PLACES:
                if isinstance(value := event[name], int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, event["step"])

    def show_model(self, model: nn.Module, images_NCHW: Tensor) -> None:
        """The model's graph and the images, where TensorBoard is on. Costs a trace of the model."""
        if self._board is None:
            return
        shown = images_NCHW.float().cpu()
        low, high = shown.amin(), shown.amax()
        with writing(self._board_folder):
            self._board.add_images("samples", (shown - low) / (high - low).clamp(min=1e-6), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated in torch, and is what TensorBoard's graph needs
            mode = model.training
            try:
                self._board.add_graph(model.eval(), images_NCHW[:1].float())
            except Exception as error:  # a model that cannot be traced trains all the same
                self({"event": "note", "text": f"no model graph in TensorBoard: {short_line(error)}"})
            finally:
                model.train(mode)

    def _thread_failed(self, failed: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread leaves its error to the next event too, which says it in one line."""
        if type(failed.thread).__name__ != "_AsyncWriterThread":
            self._hook(failed)

    def __enter__(self) -> "Journal":
        threading.excepthook = self._thread_failed
        return self

    def __exit__(self, *_: object) -> None:
        with self._ends, suppress(OSError):  # what could not be written has been said
            if self._lines is not None:
                self._lines.close()
        try:
            if self._board is not None:
                with writing(self._board_folder):
                    self._board.close()
        finally:
            threading.excepthook = self._hook


@contextmanager
def writing(path: Path) -> Generator[None]:
    """What the file system refuses inside, as one line."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written ({error.strerror or error}): mend that, then go on with --resume auto"
        raise FeedlineError(what) from error


def read_events(run: Path, *kinds: str) -> list[Event]:
    """The events of these kinds in a run's metrics.jsonl, oldest first; a torn last line is left out."""
    events: list[Event] = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") in kinds:
                events.append(event)
    return events


def as_trained(run: Path) -> dict[str, list[Event]]:
    """The step and epoch events that lead to where the run is, and the resources of all its processes, `at_s` going
    on from one to the next. What was done again after a restart counts once, what it went back behind, or began anew
    in the place of, not at all."""
    by_step: dict[str, dict[int, Event]] = {"step": {}, "epoch": {}}
    resources, begun_s, goes_on = list[Event](), 0.0, False
    for event in read_events(run, "start", "resume", "resources", *by_step):
        kind = event["event"]
        if kind == "start":
            begun_s = resources[-1]["at_s"] if resources else 0.0
            by_step = by_step if goes_on else {name: {} for name in by_step}
            goes_on = False
        elif kind == "resources":
            resources.append({**event, "at_s": begun_s + event["at_s"]})
        elif kind != "resume":
            by_step[kind][event["step"]] = event
        elif event.get("own", True):  # older runs do not say
            goes_on = True
            by_step = {
                name: {step: one for step, one in each.items() if step <= event["step"]}
                for name, each in by_step.items()
            }
    lines = {kind: [event for _, event in sorted(each.items())] for kind, each in by_step.items()}
    return {**lines, "resources": resources}
