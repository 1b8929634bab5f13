"""`feedline train`: what it prints, its record and its page of curves, and settings from a file."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import Record, console, show, stderr, write
from feedline.cli.options import Settings, command, fields
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import read_bounded
from feedline.pipeline.base.process import from_environment, signals_held
from feedline.pipeline.base.text import count_of, printable
from feedline.profiling.record import units
from feedline.profiling.render.sections import Curve, Curves, Facts, Page, Section, Table, section
from feedline.train.config import TrainConfig

SETTINGS_BYTES = 1 << 20
CLASSES_SHOWN = 20
PAGE = "curves.html"
Event = dict[str, Any]


def _settings(context: typer.Context, path: Path | None) -> Path | None:
    """The file's options become the defaults; what stands on the command line still wins."""
    if path is None:
        return None
    try:
        options = dict(json.loads(read_bounded(path, SETTINGS_BYTES))["options"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else "it holds no options"
        raise UsageError(f"--config {path} is not a file of `feedline tune`: {what}") from error
    for option in [option for option in context.command.params if option.name in options and option.name in FIELDS]:
        try:
            option.process_value(context, options[option.name])
        except typer.BadParameter as error:
            bad: Any = error  # a parser's does not know its option
            bad.param = bad.param or option
            raise UsageError(f"--config {path}: {error.format_message()}") from error
    context.default_map = options
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", is_eager=True, callback=_settings, help="Settings by `feedline tune`."),
]
OPTIONS = fields(
    "train.config.TrainConfig",
    negatable=True,
    dataset={"metavar": "OUT", "show_default": False},
    timeout_s={"flags": ("--timeout-s",)},
    # torchrun refuses `--run` even behind the script's name: it abbreviates two options of its own
    run={"flags": ("--run", "--run-dir")},
)
FIELDS = {option.field for option in OPTIONS}


@command
def train(config: Annotated[Settings, OPTIONS], record: Record, config_file: ConfigFile = None) -> None:
    """Train a model from a prepared dataset.

    Examples:

      feedline train OUT --model mobilenet_v2 --epochs 30 --batch-size 64 --run runs/first

      feedline train OUT --model small_cnn --image-size 64 --target-top1 0.9

      torchrun --nproc-per-node 4 -m feedline.train.main OUT --global-batch 256 --run-dir runs/four --resume auto

      kernprof -l -v -m feedline.train.main OUT --epochs 1 --run runs/lines
    """
    with signals_held():  # torch, while it is imported, takes a Ctrl-C for a module that is missing
        from feedline.train.loop import train as run

    is_other_rank = "WORLD_SIZE" in os.environ and bool(from_environment("RANK", 0))
    terminal = Terminal()
    if from_environment("WORLD_SIZE", 1) == 1:  # a rank that waits for another would not hear it
        signal.signal(signal.SIGTERM, terminal.terminated)
    try:
        result = run(TrainConfig(**config), [terminal])
    except KeyboardInterrupt:
        raise typer.Abort("" if is_other_rank else terminal.goes_on) from None
    if is_other_rank:
        return
    from feedline.profiling.render.html import document

    record.write(result)
    path = Path(result["run"]) / PAGE
    write(path, document(curves_page(path.parent)))
    console.print(f"\ncurves                {path}")


# --- on the terminal ----------------------------------------------------------------------------------


class Terminal:
    """Prints events: one line that changes while a terminal is there, a line per epoch anyway, the summary."""

    folder: str = ""
    newest: int | None = None
    """The step of the newest checkpoint; None: there is none yet, -1: none is written."""

    @property
    def goes_on(self) -> str:
        """How, where it is interrupted."""
        if self.newest is None:
            return " before the first checkpoint (--checkpoint-every N writes more)"
        words = f": --run-dir {shlex.quote(self.folder)} --resume auto goes on from step {self.newest}"
        return "" if self.newest < 0 else words

    def terminated(self, number: int, frame: object) -> None:
        self._clear()
        stderr.print(f"terminated{self.goes_on}")
        raise SystemExit(128 + number)

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "start":
                self._print(opening(event), f"run folder: {event['run']}")
                self.folder = event["run"]
                if not event["config"]["keep_last"]:
                    self.newest = -1
            case "checkpoint":
                self.newest = event["step"]
            case "resume":
                self.newest = event["step"] if event["own"] else None
                self._print(f"resumed from {event['checkpoint']} at step {event['step']}")
            case "note":
                self._clear()
                stderr.print(event["text"])
            case "step" if stderr.is_terminal:
                share = f"epoch {event['epoch']} {event['share_of_epoch']:4.0%}  loss {event['loss']:.4f}"
                self._clear(f"{share}  {_speed(event)}  ETA {units.seconds(event['eta_s'])}")
            case "epoch":
                accuracy = ""
                if event["top1"] is not None:
                    accuracy = f"  top-1 {event['top1']:.2%}  top-5 {event['top5']:.2%}"
                    accuracy += f"  val loss {event['val_loss']:.4f}"
                loss = f"epoch {event['epoch']}: loss {event['train_loss']:.4f}"
                self._print(f"{loss}{accuracy}  {_speed(event)}  {units.seconds(event['seconds'])}")
            case "end":
                self._clear()
                show(Page(title="", sections=ending(event)))
            case _:
                pass

    def _print(self, *lines: str) -> None:
        self._clear()
        console.print("\n".join(lines))

    def _clear(self, then: str = "") -> None:
        if stderr.is_terminal:
            sys.stderr.write(f"\r\x1b[K{printable(then)}")
            sys.stderr.flush()


def opening(event: Event) -> str:
    config, ranks = event["config"], event["world_size"]
    workers = count_of(event["num_workers"], "loader worker")
    if config.get("num_workers") == "auto":
        workers = f"{event['num_workers']} or more loader workers"
    return (
        f"{config['model']} ({event['parameters']:,} parameters, {count_of(event['classes'], 'class')}) on "
        f"{event['device']}, {count_of(ranks, 'rank')}, global batch {event['global_batch']}, {workers} "
        f"a rank, {event['train_samples']:,} training and {event['val_samples']:,} validation samples"
    )


def _speed(event: Event) -> str:
    return f"{event['samples_per_s']:,.0f} samples/s  wait {event['wait_fraction']:.1%}"


# --- as a page ----------------------------------------------------------------------------------------

CHARTS = (
    ("Learning", "Loss", "nats a sample", {"training loss": ("step", "loss"),
                                           "validation loss": ("epoch", "val_loss")}),
    ("Learning", "Validation accuracy", "%", {"top-1": ("epoch", "top1"), "top-5": ("epoch", "top5")}),
    ("Learning", "Learning rate", "", {"learning rate": ("step", "lr")}),
    ("Speed", "Throughput", "samples/s", {"samples/s": ("step", "samples_per_s")}),
    ("Speed", "Share of the time blocked on the next batch", "%", {"wait": ("step", "wait_fraction")}),
    ("Resources", "CPU", "cores in use", {"CPU": ("resources", "cpu_cores")}),
    ("Resources", "Memory", "MiB", {"memory": ("resources", "memory_bytes")}),
)  # fmt: skip
"""Section, title, unit, and the curves: each the value of a key in the events of a kind. GPUs' are added to these."""
FACTORS = {"%": 100.0, "MiB": 2**-20}


def curves_page(run: Path) -> Page:
    """The curves of one run, from the events in its metrics.jsonl; resources are of rank 0 and its workers."""
    from feedline.profiling.render.report_time import GPU_SHARES
    from feedline.train.metrics import as_trained, read_events

    of_gpus = [
        ("Resources", f"GPU: {words}", "%", {words: ("resources", f"gpu_{name}")})
        for name, words in GPU_SHARES.items()
    ]
    points = as_trained(run)
    parts: dict[str, list[Curves]] = {}
    for heading, title, unit, keys in (*CHARTS, *of_gpus):
        curves: list[Curve] = []
        for name, (kind, key) in keys.items():
            values = [(event["at_s" if kind == "resources" else "step"], event.get(key)) for event in points[kind]]
            factor = FACTORS.get(unit, 1.0)
            curves.append(Curve(name=name, points=[(x, None if y is None else y * factor) for x, y in values]))
        if any(y is not None for curve in curves for _, y in curve.points):
            x_unit, y_max = "s" if heading == "Resources" else "steps", 100.0 if unit == "%" else None
            chart = Curves(curves=curves, title=title, y_unit=unit, x_unit=x_unit, y_max=y_max)
            parts.setdefault(heading, []).append(chart)
    starts, ends = read_events(run, "start"), read_events(run, "end")
    sections = [section(heading, *charts) for heading, charts in parts.items()]
    subtitle = opening(starts[-1]) if starts else ""
    return Page(
        title=f"Training: {run.name}", subtitle=subtitle, sections=sections + (ending(ends[-1]) if ends else [])
    )


def ending(event: Event) -> list[Section | None]:
    """The classes, those that fare worst first, and what cluster users know from `seff`."""
    from feedline.profiling.render.report_time import GPU_SHARES

    rated = sorted((row for row in event.get("classes", []) if row["samples"]), key=lambda row: row["top1"])
    rows = [(row["name"][:30], row["samples"], f"{row['top1']:.1%}", f"{row['top5']:.1%}") for row in rated]
    if len(rows) > CLASSES_SHOWN:
        rows[CLASSES_SHOWN:] = [("… (all in metrics.jsonl)", sum(row[1] for row in rows[CLASSES_SHOWN:]), "", "")]
    classes = Table(headers=("class", "samples", "top-1", "top-5"), rows=rows, numeric=(1, 2, 3)) if rows else None
    facts = {
        "samples": f"{sum(epoch['samples'] for epoch in event['epochs']):,} in {count_of(event['steps'], 'step')}",
        "wall time": units.seconds(event["train_s"]),
        "without checkpoints": units.seconds(event["without_checkpoints_s"]),
        "CPU efficiency": f"{event['cpu_efficiency']:.1%} of {units.seconds(event['core_s'])} core-walltime",
        "memory, peak": units.size(event["peak_memory_bytes"]),
    }
    if event.get("gpu_memory_bytes"):
        facts["GPU memory, peak"] = units.size(event["gpu_memory_bytes"])
    for gpu in event.get("gpus", []):
        known = [(words, gpu.get(name)) for name, words in GPU_SHARES.items()]
        shares = ", ".join(f"{words} {share:.1%}" for words, share in known if share is not None)
        facts[f"GPU {gpu.get('index') or 0}"] = f"{gpu.get('name') or gpu['uuid']}: {shares or 'no figures'}"
    if event["best_top1"] is not None:
        facts["best top-1"] = f"{event['best_top1']:.2%}"
    if event["time_to_target_s"] is not None:
        facts["time to target"] = f"{event['time_to_target_s']:.1f} s"
    return [section("Classes", classes), section("Summary", Facts({**facts, "run folder": event["run"]}))]
