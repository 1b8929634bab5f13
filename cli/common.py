"""What every verb shares: progress on long work, the JSON record, and how errors and Ctrl-C end."""

import errno
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from feedline.pipeline.base.text import printable

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the full record to FILE.")]


class PlainConsole(Console):
    """Text comes from files and names that others wrote: nothing in it may steer the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(one, "\n\t") if isinstance(one, str) else one for one in objects), **options)


console = PlainConsole(highlight=False)
"""Results go to standard output; progress and complaints to standard error."""
stderr = PlainConsole(stderr=True, highlight=False)

Advance = Callable[..., None]


class Rate:
    """Of what is done a second since the first call: what that one says was done before (a resumed job)."""

    def __init__(self) -> None:
        self._began: tuple[int, float] | None = None

    def __call__(self, done: int, now_s: float) -> float | None:
        """None while there is nothing to tell it from."""
        self._began = self._began or (done, now_s)
        before, since_s = self._began
        return (done - before) / (now_s - since_s) if done > before and now_s > since_s else None


@contextmanager
def progress(what: str, unit: str = "samples") -> Generator[Advance]:
    """Yields `advance(done, total)`. A bar when a terminal is there, silence otherwise."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    rate = Rate()
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=None, rate="")

        def advance(done: int, total: int | None = None) -> None:
            now_per_s = rate(done, time.monotonic())
            shown_rate = "" if now_per_s is None else f"{now_per_s:,.0f} {unit}/s"
            bar.update(task, completed=done, total=total, rate=shown_rate)

        yield advance


def shown(argv: Sequence[str]) -> list[str]:
    """The command line without credentials: a storage option keeps its name only."""
    from feedline.pipeline.base.errors import redacted

    said: list[str] = []
    for number, text in enumerate(argv):
        option, name = (argv[number - 1], text) if number else ("", text)
        if text.startswith("--storage-option="):
            option, name = "--storage-option", text.removeprefix("--storage-option=")
            said.append(f"--storage-option={name.partition('=')[0]}=…")
        else:
            said.append(f"{name.partition('=')[0]}=…" if option == "--storage-option" else redacted(text))
    return said


def check_writable(*outputs: Path | None) -> None:
    """Before hours of work. Raises UsageError where one of the files that were asked for cannot be written."""
    from feedline.pipeline.base.errors import UsageError
    from feedline.pipeline.base.files import try_place

    places: set[Path] = set()
    for path in outputs:
        if path is None:
            continue
        try:
            try_place(path)
        except OSError as error:
            missing = error.errno == errno.ENOENT
            why = f"there is no folder {path.resolve().parent}" if missing else error.strerror
            raise UsageError(f"cannot write {path}: {why}") from error
        if path.is_file() or not path.exists():
            if path.resolve() in places:
                raise UsageError(f"{path} is named for two outputs: give each a file of its own")
            places.add(path.resolve())


def write(path: Path, text: str | bytes) -> None:
    """To a file that was asked for. Raises UsageError when it cannot be written."""
    from feedline.pipeline.base.errors import UsageError
    from feedline.pipeline.base.files import write_as_asked

    try:
        write_as_asked(
            path, text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        )  # file names need not be UTF-8
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class Record:
    """The object that `--json FILE` writes: who ran what, where, for how long, and the verb's own keys."""

    def __init__(self, verb: str, *outputs: Path | None) -> None:
        """`outputs` are all files that the verb was asked to write. Raises UsageError where one cannot be."""
        check_writable(*outputs)
        self.verb = verb
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()

    def write(self, path: Path | None, keys: dict[str, Any]) -> None:
        """Nothing when no file was asked for. Raises UsageError when it cannot be written."""
        if path is None:
            return
        from feedline.profiling.record.host import describe_host

        whole = {
            "feedline": version("feedline"),
            "verb": self.verb,
            "argv": shown(sys.argv[1:]),
            "started": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._clock, 3),
            "host": describe_host(),
            **keys,
        }
        write(path, json.dumps(whole, indent=1, default=str) + "\n")
