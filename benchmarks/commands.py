"""feedline's own commands, run as a user would run them, each in its own process and with its record kept.

A step whose record shows the same command on the same inputs, and whose products are still there, need not run again.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import refused_as, write_atomically

FEEDLINE = [sys.executable, "-P", "-c", "from feedline.cli.main import run; run()"]
"""The same interpreter whatever is on PATH."""
PATIENCE_S = 15.0
"""How long a command may take to clean up after Ctrl-C."""


class CommandError(FeedlineError):
    """A command that did not end with status 0; its own line says why and has been shown."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. `products` must exist for its record to count."""

    name: str
    argv: Sequence[str]
    """After `feedline`, without --json; or a whole command where it is another `program`."""
    products: Sequence[Path] = ()
    inputs: Any = None
    """What else it depends on, as JSON: another step's settings, a file's time."""
    clears: Sequence[Path] = ()
    """Folders of its own that it starts without: what an interrupted run left there would be in its way."""
    program: bool = False
    """Another program than feedline; it writes no record."""

    @property
    def shown(self) -> str:
        """The line a user would type."""
        if self.program:
            return shlex.join([Path(self.argv[0]).name, *self.argv[1:]])
        return shlex.join(["feedline", *self.argv])


@dataclass(frozen=True, kw_only=True)
class Done:
    record: dict[str, Any]
    """The command's own record; {} for other programs."""
    seconds: float
    """What the command took when it ran."""
    text: str = ""
    """Standard output, where it was kept."""
    reused: bool = False


def run(
    step: Step, folder: Path, *, reuse: bool = True, keep_text: bool = False, say: Callable[[str], object] = str
) -> Done:
    """Run it, with progress and complaints going where ours go; its record is `folder/NAME.json`. With `reuse`, what
    an earlier run of the same step left, where that is whole.

    Raises CommandError, KeyboardInterrupt; then no record says that it was done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, kept = folder / f"{step.name}.json", folder / f".{step.name}.kept"
    identity = json.dumps([step.shown, step.inputs])
    if reuse and all(path.exists() for path in step.products):
        with suppress(OSError, ValueError, LookupError, TypeError):
            before = json.loads(kept.read_text())
            if before.pop("identity") == identity:
                done = Done(record={} if step.program else json.loads(result.read_text()), **before, reused=True)
                say(f"kept: {step.shown}")
                return done
    say(f"$ {step.shown}")
    for path in (kept, result):
        path.unlink(missing_ok=True)
    for left in step.clears:
        shutil.rmtree(left, ignore_errors=True)
    verb, *rest = step.argv
    started_s = time.monotonic()
    status, text = call(step.argv if step.program else [*FEEDLINE, verb, "--json", str(result), *rest], keep_text)
    seconds = time.monotonic() - started_s
    if status:
        raise CommandError(f"`{step.shown}` ended with status {status}")
    record = {} if step.program else json.loads(result.read_text())
    write_atomically(kept, json.dumps({"identity": identity, "seconds": seconds, "text": text}).encode())
    return Done(record=record, seconds=seconds, text=text)


def call(command: Sequence[str], keep_text: bool) -> tuple[int, str]:
    """Status and standard output. After Ctrl-C, which the command got too, or SIGTERM, which is passed on, it
    is given time to clean up."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if keep_text else None,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    try:
        text, _ = process.communicate()
    except BaseException as error:
        if isinstance(error, SystemExit):  # SIGTERM, which came to us alone
            process.terminate()
        for warning in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                process.wait(timeout=PATIENCE_S)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(warning)
        process.wait()
        raise
    return process.returncode, text or ""


def stamp_of(source: Path) -> list[Any]:
    """Changes when a folder's images come, go or are replaced, as far as folders tell; and with its archives and
    manifests."""
    paths = [source, *sorted(source.glob("*")), *sorted(path for path in source.glob("*/*") if path.is_dir())]
    return stamps([*paths, *sorted(source.glob("*/manifest.json"))])


def stamps(paths: Iterable[Path]) -> list[Any]:
    """Of those that are there: name, time and, of files, size."""
    stats = [(str(path), path.stat()) for path in paths if path.exists()]
    return [[name, stat.st_mtime_ns, 0 if S_ISDIR(stat.st_mode) else stat.st_size] for name, stat in stats]


def check_work(folder: Path) -> None:
    """Raises UsageError, before anything runs, where results cannot be kept."""
    with refused_as(UsageError, f"--work {folder}: no folder can be made there"):
        folder.mkdir(parents=True, exist_ok=True)
