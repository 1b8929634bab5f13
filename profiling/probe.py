"""The probe inside a script: started by a line in `sitecustomize` when `feedline profile` launched it, or by `watch`.

from feedline.profiling.probe import watch

with watch() as seen:
    train_one_epoch()
print(seen.recording.to_dict())
"""

import atexit
import builtins
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from feedline.profiling.record.journal import ENVIRONMENT, Journal, StudyConfig
from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.endings import Endings
from feedline.profiling.watch.facts import quietly
from feedline.profiling.watch.hooks import Hooks

if TYPE_CHECKING:
    from feedline.profiling.record.recording import Recording

HEAR_S = 3.0  # the longest wait for the last words of workers that live on; they speak within a tenth of a second
_active: Capture | None = None
_profiled = False
"""By `feedline profile`."""


def start_from_environment() -> None:
    """Called as the interpreter starts. Does nothing where no run's folder is named or exists."""
    folder = os.environ.get(ENVIRONMENT)
    if not folder or not os.path.isdir(folder):  # noqa: PTH112  cheap: this runs in every interpreter of the run
        return
    global _profiled
    _profiled = True
    journal = Journal(Path(folder))
    if not hasattr(builtins, "profile"):

        def as_it_is(function: Any) -> Any:
            return function

        builtins.profile = as_it_is  # type: ignore[attr-defined]  as kernprof does: @profile may be left in a script
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
            capture.leave("error" if capture.error else "itself")
            capture.end()

    Endings(capture, hooks.patches, at_exit)
    hooks.install()
    _active = capture
    _remember_errors(hooks)
    atexit.register(at_exit)
    hooks.patches.on_remove(lambda: atexit.unregister(at_exit))
    return capture, hooks


def _remember_errors(hooks: Hooks) -> None:
    capture, previous = hooks.capture, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = (quietly(lambda: str(error)) or "").strip().splitlines()
        capture.error = kind.__name__ + (f": {text[0]}" if text else "")
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


class Seen:
    """What `watch` saw; `recording` is there once the block has ended."""

    def __init__(self, capture: Capture, *, profiled: bool = False) -> None:
        self._capture = capture
        self._profiled = profiled
        self._recording: Recording | None = None

    def metrics(self) -> dict[str, float]:
        """`wait_fraction` and `samples_per_s` since the last call, for the loop's own log; {} without batches."""
        return self._capture.take_metrics()

    @property
    def recording(self) -> "Recording":
        if self._profiled:
            raise RuntimeError("the recording is `feedline profile`'s, which this script runs under (--json FILE)")
        if self._recording is None:
            raise RuntimeError("the recording is there once the `with watch()` block has ended")
        return self._recording


@contextmanager
def watch(*, resources: bool = True) -> Generator[Seen]:
    """Profile the training that runs in this block, in this process and the workers it starts: for notebooks, and for
    code that cannot be launched through `feedline profile`. Loaders must be iterated inside the block.

    Yields an object whose `recording` holds a `profiling.record.recording.Recording` after the block; under `feedline
    profile`, which sees more, that command alone has one.
    """
    from feedline.pipeline.base.scratch import scratch_folder
    from feedline.profiling.machine.resources import ResourceSampler
    from feedline.profiling.record.merge import merge, roles

    global _active
    if _profiled and _active is not None:
        yield Seen(_active, profiled=True)
        return
    if _active is not None and _active.active:
        raise RuntimeError("already being profiled: `watch` inside another `watch`")
    with scratch_folder("watch") as folder:
        journal = Journal(folder)
        origin = time.perf_counter()
        capture, hooks = _start(journal, StudyConfig(steady=False))
        seen = Seen(capture)
        sampler = ResourceSampler(os.getpid(), origin=origin, roles=lambda: roles(journal)) if resources else None
        if sampler:
            sampler.start()
        try:
            yield seen
        finally:
            capture.leave("itself")
            capture.end()
            hooks.remove()
            _active = None
            # Workers that live on see that the block has ended, and say what they have seen since their last row.
            deadline_s = time.monotonic() + HEAR_S
            while time.monotonic() < deadline_s:
                if all(worker.get("left") or worker["ended"] for worker in journal.all("worker-")):
                    break
                time.sleep(0.02)
            if sampler:
                sampler.stop()
            seen._recording = merge(journal, origin=origin, argv=sys.argv, sampler=sampler)
