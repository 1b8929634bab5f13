"""The probe inside a process: started by a line in `sitecustomize` when `feedline profile` launched it, or by
`profile.Profile` for a while."""

import atexit
import builtins
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from feedline.profiling.record.journal import ENVIRONMENT, Journal, StudyConfig
from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.endings import Endings
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.hooks import Hooks

_active: Capture | None = None
_profiled = False  # by `feedline profile`


def start_from_environment() -> None:
    """Called as the interpreter starts. Does nothing where no run's folder is named or exists."""
    folder = os.environ.get(ENVIRONMENT)
    if not folder or not os.path.isdir(folder):  # noqa: PTH112  cheap: this runs in every interpreter of the run
        return
    global _profiled
    _profiled = True
    journal = Journal(Path(folder))
    if not hasattr(builtins, "profile"):  # as kernprof does: @profile may be left in a script
        builtins.profile = lambda function: function  # type: ignore[attr-defined]
    config = journal.config()
    if config.parent and os.getppid() == config.parent:  # only the script itself ends with it, not what it starts
        from feedline.pipeline.base.process import die_with  # here: no other interpreter of the run needs it

        die_with(config.parent, signal.SIGTERM)
    _start(journal, config)


def _start(journal: Journal, config: StudyConfig) -> tuple[Capture, Hooks]:
    global _active
    capture = Capture(journal, config)
    hooks = Hooks(capture)
    if config.diagnostic:  # windows follow the verdict
        from feedline.profiling.watch.legs.director import Director

        hooks.feeds.director = Director(hooks.feeds)

    def at_exit() -> None:
        if os.getpid() == capture.pid:
            with suppress(KeyboardInterrupt):  # no traceback of ours: what is written will do
                try:
                    capture.leave("error" if capture.error else "itself")
                finally:
                    capture.end()

    Endings(capture, hooks.patches, at_exit)
    hooks.install()
    _active = capture
    _remember_errors(hooks)
    atexit.register(at_exit)
    hooks.patches.on_remove(lambda: atexit.unregister(at_exit))
    return capture, hooks


def words(error: BaseException) -> str:
    """Its kind and its first line, of which its `__str__` may know nothing."""
    text = (quietly(lambda: str(error)) or "").strip().splitlines()
    return type(error).__name__ + (f": {text[0]}" if text else "")


def _remember_errors(hooks: Hooks) -> None:
    capture, previous = hooks.capture, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        capture.error = words(error)
        if not capture.diagnosing:  # else it is the report's to tell: no verdict is lost
            previous(kind, error, trace)

    in_threads = threading.excepthook

    def hook_in_threads(about: Any) -> None:
        if not isinstance(about.exc_value, Finished):
            in_threads(about)

    def forget() -> None:
        if sys.excepthook is hook:  # else another one has been put around it
            sys.excepthook = previous
        if threading.excepthook is hook_in_threads:
            threading.excepthook = in_threads

    sys.excepthook = hook
    threading.excepthook = hook_in_threads
    hooks.patches.on_remove(forget)


@contextmanager
def probing(journal: Journal, config: StudyConfig) -> Generator[Capture]:
    """This process is watched while the block lasts; afterwards everything is as it was."""
    global _active
    capture, hooks = _start(journal, config)
    try:
        yield capture
    finally:
        try:
            capture.leave("itself")
            capture.end()
        finally:  # a second Ctrl-C leaves no patch behind either
            hooks.remove()
            _active = None


def watched() -> Capture | None:
    """What watches this process now; by `feedline profile` it may have ended."""
    return _active


def is_launched() -> bool:
    """Whether `feedline profile` watches, or has watched, this process."""
    return _profiled and _active is not None
