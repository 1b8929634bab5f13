"""What every verb shares: where its words go, progress on long work, files that were asked for, the JSON record."""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import progress as bars
from rich.console import Console
from rich.text import Text

from feedline.pipeline.base.errors import FeedlineError, UsageError, redacted
from feedline.pipeline.base.files import refused_as, try_place, write_as_asked
from feedline.pipeline.base.text import printable
from feedline.profiling.record.host import describe_host
from feedline.profiling.record.plain import to_plain
from feedline.profiling.render.plain_text import text
from feedline.profiling.render.sections import Page

OUTPUT = object()
"""Marks a parameter that names a file to write: `options.command` tries its place before the work begins."""
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the full record to FILE."), OUTPUT
]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write it as a page."), OUTPUT]
TraceFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a timeline for Perfetto."), OUTPUT]
FailIf = Annotated[
    list[str] | None, typer.Option(metavar="EXPR", help='Exit 1 if it holds: "wait>10%"; may be given several times.')
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source-option", metavar="KEY=VALUE", help="image_column=jpg, label_column=cls, labels=words"),
]
StorageOption = Annotated[list[str] | None, typer.Option("--storage-option", metavar="KEY=VALUE", help="For fsspec.")]
LONG_LINES = 110


class PlainConsole(Console):
    """Text comes from files and names that others wrote: nothing in it may steer the terminal. Lines stay whole."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(item, "\n\t") if isinstance(item, str) else item for item in objects), **options)


console = PlainConsole()
"""Results go to standard output; progress and complaints to standard error."""
stderr = PlainConsole(stderr=True)


def say(line: str) -> None:
    """A remark beside the result."""
    stderr.print(f"feedline: {line}")


def said_by_another_rank(what: str) -> bool:
    """Whether another rank of this job has said the same: ten ranks with one fault are one line."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False
    from feedline.train.distributed import is_first_to_say

    return not is_first_to_say(what.partition(" (")[0])


def show(page: Page, html: Path | None = None) -> None:
    """On the terminal, and in a file of its own where one was asked for."""
    console.print(text(page, width=min(console.width, LONG_LINES)), end="")
    if html is not None:
        from feedline.profiling.render.html import document

        write(html, document(page))
        say(f"wrote {html}")


class RateColumn(bars.ProgressColumn):
    """Of what is done a second since the first word of it: what that says was done before (a resumed job)."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: bars.Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self.unit}/s")


@contextmanager
def progress(what: str, unit: str = "samples") -> Generator[Callable[..., None]]:
    """Yields `advance(done, total)`. A bar when a terminal is there, silence otherwise."""
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
               bars.TextColumn(unit), RateColumn(unit), bars.TimeRemainingColumn())  # fmt: skip
    with bars.Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def write(path: Path, content: str | bytes) -> None:
    """To a file that was asked for. Raises FeedlineError when it cannot be written: the verb's work is done."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")  # names need not be UTF-8
    with refused_as(FeedlineError, f"cannot write {path}"):
        write_as_asked(path, data)


def check_writable(*outputs: Path | None) -> None:
    """Before hours of work. Raises UsageError where one of the files that were asked for cannot be written."""
    places: set[Path] = set()
    for path in filter(None, outputs):
        try:
            try_place(path)
        except OSError as error:
            missing = error.errno == errno.ENOENT and not path.resolve().parent.is_dir()
            why = f"there is no folder {path.resolve().parent}" if missing else error.strerror
            raise UsageError(f"cannot write {path}: {why}") from error
        if path.is_file() or not path.exists():
            if path.resolve() in places:
                raise UsageError(f"{path} is named for two outputs: give each a file of its own")
            places.add(path.resolve())


def shown(argv: Sequence[str]) -> list[str]:
    """The command line without credentials: a storage option keeps its name only."""
    words: list[str] = []
    for before, word in zip(["", *argv], argv, strict=False):
        option, equals, setting = word.partition("=")
        if option == "--storage-option" and equals:
            words.append(f"{option}={setting.partition('=')[0]}=…")
        else:
            words.append(f"{option}=…" if before == "--storage-option" else redacted(word))
    return words


class Record:
    """The object that `--json FILE` writes: who ran what, where, for how long, and the verb's own keys."""

    def __init__(self, verb: str, path: Path | None) -> None:
        self.verb, self.path = verb, path
        self._started, self._clock = datetime.now(UTC), time.monotonic()

    def write(self, keys: dict[str, Any]) -> None:
        """Nothing when no file was asked for. Raises FeedlineError when it cannot be written."""
        if self.path is None:
            return
        whole = {
            "feedline": version("feedline"),
            "verb": self.verb,
            "argv": shown(sys.argv[1:]),
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._clock, 3),
            "host": describe_host(),
            **keys,
        }
        write(self.path, json.dumps(to_plain(whole), indent=1, default=str) + "\n")
