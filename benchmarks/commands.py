"""feedline's own commands, run as a user would run them, each in its own process and with its record kept.

A step whose record shows the same command on the same inputs, and whose products are still there, is not run again.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_atomically

FEEDLINE = [sys.executable, "-c", "from feedline.cli.main import run; run()"]
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
    """After `feedline`, without --json; or a whole command when `program` is set."""
    products: Sequence[Path] = ()
    inputs: Mapping[str, Any] | None = None
    """What else it depends on, as JSON: another step's identity, a file's time."""
    clears: Sequence[Path] = ()
    """Folders of its own that it starts without: what an interrupted run left there would be in its way."""
    program: Sequence[str] | None = None
    """Another program than feedline; it writes no record of its own."""

    @property
    def shown(self) -> str:
        """The line a user would type."""
        if self.program is not None:
            return shlex.join([Path(self.program[0]).name, *self.program[1:], *self.argv])
        return shlex.join(["feedline", *self.argv])


@dataclass(frozen=True, kw_only=True)
class Done:
    record: dict[str, Any]
    """The command's own record; {} for other programs."""
    seconds: float
    """What the command took when it ran."""
    reused: bool
    text: str = ""
    """Standard output, where it was kept."""


def reusable(step: Step, folder: Path) -> Done | None:
    """What an earlier run of the same step left; None when it must run."""
    try:
        kept = json.loads(kept_file(step, folder).read_text())
        record = json.loads(record_file(step, folder).read_text()) if kept["record"] else {}
    except (OSError, ValueError, KeyError):
        return None
    if kept.get("identity") != identity(step) or not all(path.exists() for path in step.products):
        return None
    return Done(record=record, seconds=kept["seconds"], reused=True, text=kept["text"])


def run(step: Step, folder: Path, *, keep_text: bool = False) -> Done:
    """Run it, with progress and complaints going where ours go; its record is `folder/NAME.json`.

    Raises CommandError, KeyboardInterrupt; then no record says that it was done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result = record_file(step, folder)
    kept_file(step, folder).unlink(missing_ok=True)
    result.unlink(missing_ok=True)
    for left in step.clears:
        shutil.rmtree(left, ignore_errors=True)
    started = time.monotonic()
    status, text = call(command_line(step, result), keep_text=keep_text)
    seconds = time.monotonic() - started
    if status:
        raise CommandError(f"`{step.shown}` ended with status {status}")
    kept = {"identity": identity(step), "seconds": seconds, "record": result.exists(), "text": text}
    write_atomically(kept_file(step, folder), json.dumps(kept).encode())
    record = json.loads(result.read_text()) if result.exists() else {}
    return Done(record=record, seconds=seconds, reused=False, text=text)


def stamp_of(source: Path) -> list[Any]:
    """Changes when a folder's images come, go or are replaced, as far as folders tell; and with its archives and
    manifests."""
    names = [source, *sorted(source.glob("*")), *sorted(one for one in source.glob("*/*") if one.is_dir())]
    names += sorted(source.glob("*/manifest.json"))
    stats = [(str(one.relative_to(source)), one.stat()) for one in names if one.exists()]
    return [[name, found.st_mtime_ns, 0 if S_ISDIR(found.st_mode) else found.st_size] for name, found in stats]


def record_file(step: Step, folder: Path) -> Path:
    return folder / f"{step.name}.json"


def kept_file(step: Step, folder: Path) -> Path:
    """Says that the record is whole and what it is of."""
    return folder / f".{step.name}.kept"


def command_line(step: Step, result: Path) -> list[str]:
    if step.program is not None:
        return [*step.program, *step.argv]
    verb, *rest = step.argv
    return [*FEEDLINE, verb, "--json", str(result), *rest]


def identity(step: Step) -> dict[str, Any]:
    return json.loads(json.dumps({"command": step.shown, "inputs": step.inputs or {}}))


def call(command: Sequence[str], *, keep_text: bool) -> tuple[int, str]:
    """Status and standard output. On Ctrl-C the command, which got it too, is given time to clean up."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if keep_text else None, text=True, env=environment()
    )
    try:
        text, _ = process.communicate()
    except BaseException:
        end(process)
        raise
    return process.returncode, text or ""


def end(process: "subprocess.Popen[str]") -> None:
    for warning in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(timeout=PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(warning)
    process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def this_command() -> str:
    """The benchmark that runs, as the line a user would type."""
    module = getattr(sys.modules["__main__"].__spec__, "name", Path(sys.argv[0]).stem)
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def check_work(folder: Path) -> None:
    """Raises UsageError, before anything runs, where results cannot be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--work {folder}: no folder can be made there ({error.strerror})") from error
