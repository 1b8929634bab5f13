"""`feedline train`: what it prints, its record and page, and settings from a file."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from feedline.cli.common import JsonFile, Record, console, stderr
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import read_bounded
from feedline.pipeline.base.text import printable
from feedline.train.config import TrainConfig

if TYPE_CHECKING:
    from feedline.train.metrics import Event

SETTINGS_BYTES = 1 << 20


def _settings(context: typer.Context, path: Path | None) -> Path | None:
    """The file's options become the defaults; what stands on the command line still wins."""
    if path is not None:
        try:
            context.default_map = dict(json.loads(read_bounded(path, SETTINGS_BYTES))["options"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"--config {path} is not a file of `feedline tune` ({error})") from error
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", is_eager=True, callback=_settings, help="Settings by `feedline tune`."),
]


class Terminal:
    """Prints events: one line that changes while a terminal is there, a line per epoch anyway, the summary."""

    def __call__(self, event: "Event") -> None:
        from feedline.train import terminal

        match event["event"]:
            case "start":
                self._print(terminal.opening(event))
            case "resume":
                self._print(f"resumed from {event['checkpoint']} at step {event['step']}")
            case "note":
                self._print(event["text"], stderr)
            case "step" if stderr.is_terminal:
                self._clear(printable(terminal.progress_line(event)))
            case "epoch":
                self._print(terminal.epoch_line(event))
            case "end":
                if classes := event.get("classes"):
                    self._print(f"\n{terminal.class_table(classes)}\n")
                self._print(terminal.summary(event))
            case _:
                pass

    def _print(self, text: str, where: Console = console) -> None:
        self._clear()
        where.print(text, markup=False, soft_wrap=True)

    def _clear(self, then: str = "") -> None:
        if stderr.is_terminal:
            sys.stderr.write(f"\r\x1b[K{then}")
            sys.stderr.flush()


def said_by_another_rank(what: str) -> bool:
    """Whether another rank of this job has said the same: ten ranks with one fault are one line."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return False
    from feedline.train.distributed import is_first_to_say

    return not is_first_to_say(what.partition(" (")[0])


OPTIONS = fields(
    "train.config.TrainConfig",
    negatable=True,
    dataset={"metavar": "OUT", "show_default": False},
    # torchrun refuses `--run` even behind the script's name: it abbreviates two options of its own
    run={"flags": ("--run", "--run-dir")},
)


@command
def train(config: Annotated[Settings, OPTIONS], json_file: JsonFile = None, config_file: ConfigFile = None) -> None:
    """Train a model from a prepared dataset.

    Examples:

      feedline train OUT --model mobilenet_v2 --epochs 30 --batch-size 64 --run runs/first

      feedline train OUT --model small_cnn --image-size 64 --target-top1 0.9

      torchrun --nproc-per-node 4 -m feedline.train.main OUT --global-batch 256 --run-dir runs/four --resume auto

      kernprof -l -v -m feedline.train.main OUT --epochs 1 --run runs/lines
    """
    from feedline.pipeline.base.process import from_environment
    from feedline.train.loop import train as run

    record = Record("train", json_file)
    result = run(TrainConfig(**config), [Terminal()])
    if "WORLD_SIZE" in os.environ and from_environment("RANK", 0):
        return
    from feedline.cli.train_page import write_page

    record.write(json_file, result)
    console.print(f"curves                {write_page(Path(result['run']))}", markup=False, soft_wrap=True)
