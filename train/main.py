"""`python -m feedline.train.main OUT …`: what torchrun and kernprof start, and what `feedline train` calls.

The only place in this folder that prints: results on standard output, progress and complaints on standard error.
"""

import os
import sys
from typing import Any

from feedline.pipeline.base.errors import FeedlineError
from feedline.train import terminal
from feedline.train.config import TrainConfig
from feedline.train.metrics import Event
from feedline.train.options import command


class Terminal:
    """Prints events: one line that changes while a terminal is there, a line per epoch anyway, the summary."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def __call__(self, event: Event) -> None:
        show = getattr(self, f"_{event['event']}", None)
        if show is not None:
            show(event)

    def _start(self, event: Event) -> None:
        self._print(terminal.opening(event))

    def _resume(self, event: Event) -> None:
        self._print(f"resumed from {event['checkpoint']} at step {event['step']}")

    def _note(self, event: Event) -> None:
        self._clear()
        print(event["text"], file=sys.stderr, flush=True)

    def _step(self, event: Event) -> None:
        if self._live:
            print(f"\r\x1b[K{terminal.progress_line(event)}", end="", file=sys.stderr, flush=True)

    def _epoch(self, event: Event) -> None:
        self._print(terminal.epoch_line(event))

    def _end(self, event: Event) -> None:
        if classes := event.get("classes"):
            self._print("\n" + terminal.class_table(classes) + "\n")
        self._print(terminal.summary(event))

    def _print(self, text: str) -> None:
        self._clear()
        print(text, flush=True)

    def _clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run_and_show(config: TrainConfig) -> dict[str, Any]:
    """Trains with the terminal listening; returns the record."""
    from feedline.train.loop import train

    return train(config, [Terminal()])


def _run(config: TrainConfig) -> None:
    run_and_show(config)


def complain(error: FeedlineError) -> None:
    """One line, from the first rank that has this to say."""
    from feedline.train.distributed import is_first_to_say

    if is_first_to_say(str(error).partition(" (")[0]):
        print(f"feedline: {error}", file=sys.stderr, flush=True)


def main() -> None:
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command(_run))
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        print("interrupted: --resume auto goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except FeedlineError as error:
        if os.environ.get("FEEDLINE_DEBUG"):
            raise
        complain(error)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
