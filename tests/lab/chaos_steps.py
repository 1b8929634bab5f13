"""Faults at named steps of a file's life, put in from outside: the product has no hook for them.

`Steps` counts what a process does to files (a write, a flush to disk, a rename, a removal, a new folder) by replacing
the functions of `os` and `io` that everybody goes through, and at one of these steps it strikes: the process is
killed, stopped, or the step fails as on a full or broken disk. `in_child` runs a function in a forked child under it.
"""

import builtins
import errno
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KILL, STOP, FULL, BROKEN, TORN = "kill", "stop", "disk full", "disk broken", "kill inside"
ERRORS = {FULL: errno.ENOSPC, BROKEN: errno.EIO}
REFUSED, CRASHED = 1, 3
STUCK_S = 60.0
PATCHED = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "truncate")


@dataclass(frozen=True, order=True)
class Blow:
    """`what` happens right before or behind the `number`-th step."""

    number: int
    what: str
    behind: bool = False


@dataclass
class Steps:
    under: Path
    """Only what happens to files in here counts."""
    blow: Blow | None = None
    seen: list[str] = field(default_factory=list[str])
    """Names of the steps so far, e.g. `replace manifest.json`."""

    @contextmanager
    def watching(self) -> Generator["Steps"]:
        originals = {name: getattr(os, name) for name in PATCHED}
        opened = io.open
        for name, original in originals.items():
            setattr(os, name, self._step(name, original))
        io.open = builtins.open = self._opener(opened)  # type: ignore[assignment]
        try:
            yield self
        finally:
            for name, original in originals.items():
                setattr(os, name, original)
            io.open = builtins.open = opened  # type: ignore[assignment]

    def at(self, name: str, target: Any, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Does the step `act`, or what is to happen there. `half` does a part of it."""
        where = self._place(target)
        if where is None:
            return act()
        number, blow = len(self.seen), self.blow
        self.seen.append(f"{name} {kind_of(where)}")
        hit = blow is not None and blow.number == number
        if hit and blow is not None and not blow.behind:
            if blow.what == TORN and half is not None:
                half()
            strike(blow.what)
        result = act()
        if hit and blow is not None and blow.behind:
            strike(blow.what)
        return result

    def _place(self, target: Any) -> Path | None:
        with suppress(OSError, TypeError, ValueError):
            path = (
                Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(os.fsdecode(target))
            )
            if path.is_absolute() and path.is_relative_to(self.under):
                return path
        return None

    def _step(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(target: Any, *rest: Any, **named: Any) -> Any:
            return self.at(name, rest[0] if name in ("replace", "rename") else target,
                           lambda: original(target, *rest, **named))  # fmt: skip

        return step

    def _opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opener(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if set(mode).isdisjoint("wxa+") or self._place(file) is None:
                return original(file, mode, *rest, **named)
            made = self.at("create", file, lambda: original(file, mode, *rest, **named))
            return _Written(made, self, file)

        return opener


class _Written:
    """A file whose writes are steps."""

    def __init__(self, file: Any, steps: Steps, path: Any) -> None:
        self._file, self._steps, self._path = file, steps, path

    def write(self, data: Any) -> Any:
        return self._steps.at("write", self._path, lambda: self._file.write(data), lambda: self._tear(data))

    def _tear(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Written":
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)


def kind_of(path: Path) -> str:
    """A step's place by kind: numbers and attempts' names differ from run to run."""
    return re.sub(r"[0-9a-f]{12,}|\d+", "N", path.name)


def strike(what: str) -> None:
    if what in (KILL, TORN):
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise OSError(ERRORS[what], os.strerror(ERRORS[what]))


@dataclass
class Ended:
    """How a child ended."""

    status: int
    """0 done, REFUSED an error of feedline's own, CRASHED another one, negative a signal."""
    said: Any = None
    stuck: bool = False


def in_child(act: Callable[[], Any], *, stopped_s: float = 0.05, stuck_s: float = STUCK_S) -> Ended:
    """Runs `act` in a fork; its result comes back as JSON. A child that stops itself is let go on after a while."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _live(act, writing)
    os.close(writing)
    return _wait(pid, reading, stopped_s, stuck_s)


def _live(act: Callable[[], Any], writing: int) -> None:
    from feedline.pipeline.base.errors import FeedlineError, RecordingError

    status, said = CRASHED, None
    try:
        said, status = act(), 0
    except (FeedlineError, RecordingError) as error:
        status, said = REFUSED, str(error)
    except BaseException as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    finally:
        with suppress(OSError):
            os.write(writing, json.dumps(said).encode()[:60_000])
        sys.stdout.flush()
        os._exit(status)


def _wait(pid: int, reading: int, stopped_s: float, stuck_s: float) -> Ended:
    ended = Ended(0)
    until_s = time.monotonic() + stuck_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
        elif found:
            break
        elif time.monotonic() > until_s:
            ended.stuck = True
            os.kill(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
            _, status = os.waitpid(pid, 0)
            break
        else:
            time.sleep(0.002)
    os.set_blocking(reading, False)
    with suppress(BlockingIOError, ValueError), os.fdopen(reading, "rb") as pipe:
        ended.said = json.loads(pipe.read() or b"null")
    ended.status = os.waitstatus_to_exitcode(status)
    return ended
