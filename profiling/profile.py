"""`Profile`: why is this training slow, asked inside a running process: of a block, a function, a notebook's cell.

from feedline.profiling.profile import Profile

with Profile() as profile:
    train_one_epoch()
print(profile)  # the report; a notebook draws it

It sees this process and the loader workers that it starts meanwhile, in loops that begin inside. A whole script, its
ranks and its lines are what `feedline profile` sees.
"""

import builtins
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.profiling import probe
from feedline.profiling.launch import Run
from feedline.profiling.machine.resources import ResourceSampler
from feedline.profiling.profile_run import explained
from feedline.profiling.record.diagnostic import progress
from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.record.merge import merge, scopes
from feedline.profiling.record.recording import EndedBy, Recording, Script
from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.facts import Facts
from feedline.profiling.watch.legs.ways import LEGS

if TYPE_CHECKING:
    from feedline.profiling.explain.predict import Prediction
    from feedline.profiling.explain.verdict import Diagnosis
    from feedline.profiling.render.sections import Page

P = ParamSpec("P")
R = TypeVar("R")
HEAR_S = 3.0  # the longest wait for the last words of workers that live on; they speak within a tenth of a second


class Profile:
    """A block (`with`), a decorator, `start` and `stop`, or `run`; again and again, each time anew.

    Afterwards `recording` is what was seen, `verdict` what it means, `predictions` what each remedy would give, and
    `str` the report. Under `feedline profile` these are of the script so far, as that command sees it.
    """

    def __init__(
        self,
        *,
        legs: bool = False,
        steps: int | None = None,
        seconds: float | None = None,
        resources: bool = True,
        argv: tuple[str, ...] = (),
    ) -> None:
        """`legs`: the ceiling is measured too (`run` alone). Watched are so many `steps`, or `seconds` from the end
        of the first one (what comes first of both), or all; the code then runs on unwatched, with legs into their
        windows. `resources`: CPU, memory, disk and GPU over time. `argv`: the script and its arguments that would
        run this code, for the report's commands; a script's own where it is one. Raises UsageError for numbers that
        cannot be meant."""
        self._config = StudyConfig(
            argv=argv, legs=LEGS if legs else (), steps=steps, seconds=seconds, steady=legs, inside=True
        )
        self._resources = resources
        self._block: AbstractContextManager[None] | None = None
        self._capture: Capture | None = None  # while it lasts
        self._ended: Callable[[], Recording] | None = None
        self._diagnosis: Diagnosis | None = None

    # --- what to profile --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Raises UsageError while this process is being profiled already, and for legs."""
        if self._config.legs:
            raise UsageError("legs are windows of a loop that is ended in them: Profile(legs=True).run(function)")
        block = self._profiled("")
        block.__enter__()
        self._block = block
        return self

    def stop(self) -> Self:
        self.__exit__(None, None, None)
        return self

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if block is None:
            raise UsageError("not being profiled: start() comes first")
        block.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call is profiled, and the last is what was seen."""
        later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(returns_early(function) for returns_early in later):
            raise UsageError(f"{function.__qualname__} returns before it has run: put `with Profile()` inside it")

        @functools.wraps(function)
        def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return profiled

    def run(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Self:
        """One call, profiled.

        With legs it is a trial: the loop is held until its windows are over, and left there. Behind it torch's
        modules, optimisers, schedules, scalers and the random states are put back, and no model is saved from the
        first window on; whatever else the function does is done. Raises UsageError, with everything put back, for
        loops of which that cannot be said: those of several ranks, and of frameworks that count batches themselves.
        """
        name = getattr(function, "__qualname__", "")
        with _put_back() if self._config.legs else nullcontext(), self._profiled(name):
            function(*args, **kwargs)
        return self

    # --- what was seen ----------------------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """Raises UsageError until there is one."""
        if self._ended is None:
            raise UsageError("the recording is there once the profiled code has ended")
        return self._ended()

    @property
    def verdict(self) -> "Diagnosis":
        """`bound`, `headline`, `evidence`, `samples_per_s`, `ceiling_samples_per_s` and more. Raises UsageError."""
        from feedline.profiling.explain.verdict import diagnose  # here: only reading a profile needs it

        if self._diagnosis is None:
            self._diagnosis = diagnose(self.recording)
        return self._diagnosis

    @property
    def predictions(self) -> "list[Prediction]":
        """The remedies, what gains most first. Raises UsageError."""
        return self.verdict.predictions

    def metrics(self) -> dict[str, float]:
        """While it lasts: `wait_fraction` and `samples_per_s` since the last call, for the loop's own log; {} without
        batches."""
        return self._capture.loop.take_metrics() if self._capture is not None else {}

    def __str__(self) -> str:
        """The report, or that there is none yet."""
        if self._ended is None:
            return "Profile: " + ("it goes on" if self._capture is not None else "nothing has been profiled yet")
        from feedline.profiling.render.plain_text import text

        return text(self._page())

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        """The report as a page of its own in the notebook's."""
        if self._ended is None:
            return None
        from feedline.profiling.render.html import document, framed

        return framed(document(self._page()))

    def _page(self) -> "Page":
        from feedline.profiling.render.profile_page import report

        return report(self.verdict)

    # --- how --------------------------------------------------------------------------------------------------

    @contextmanager
    def _profiled(self, name: str) -> Generator[None]:
        if probe.watched() is not None and not probe.is_launched():
            raise UsageError("already being profiled: end that Profile first (its block, or stop())")
        self._ended = self._diagnosis = None
        try:
            with self._under_launcher() if probe.is_launched() else self._watching(name):
                yield
        finally:
            self._capture = None

    @contextmanager
    def _watching(self, name: str) -> Generator[None]:
        config, origin = replace(self._config, parent=os.getpid()), time.perf_counter()
        ended_by: EndedBy = "itself"
        said: str | None = None
        with scratch_folder("watch") as folder:
            journal = Journal(folder)
            sampler = ResourceSampler(os.getpid(), origin=origin, scopes=lambda pids: scopes(journal, pids),
                                      tell_files=lambda files: journal.write("files", files))  # fmt: skip
            try:
                if self._resources:
                    sampler.start()
                with probe.probing(journal, config) as self._capture:
                    yield
            except Finished:
                pass
            except BaseException as error:
                said = probe.words(error)
                ended_by = "signal" if isinstance(error, KeyboardInterrupt) else "error"
                if ended_by == "signal" or isinstance(error, GeneratorExit) or not progress(journal).ended_by:
                    for line in journal.complaints():
                        error.add_note(f"feedline: {line}")
                    raise
            finally:
                _hear_workers(journal)
                sampler.stop()
                interrupted = ended_by == "signal"
                if (of_steps := progress(journal).ended_by) and not interrupted:
                    ended_by = of_steps  # what a window ended with is told of the legs
                script = self._script(name, ended_by, said)
                seen = sampler if self._resources else None
                recording = merge(journal, origin=origin, script=script, sampler=seen)
                recording = explained(config, Run(recording, journal, 0), interrupted=interrupted)
                self._ended = lambda: recording

    @contextmanager
    def _under_launcher(self) -> Generator[None]:
        """The watch is `feedline profile`'s, and goes on; what it has seen is read only where the script asks."""
        self._capture = capture = probe.watched()
        assert capture is not None

        @functools.cache
        def so_far() -> Recording:
            capture.tell()
            recording = merge(capture.journal, origin=capture.origin, script=self._script("", "itself", None))
            return recording.noted("seen by `feedline profile` so far; its own report has all of it")

        try:
            yield
        finally:
            self._ended = so_far

    def _script(self, name: str, ended_by: EndedBy, error: str | None) -> Script:
        notebook = hasattr(builtins, "__IPYTHON__")
        argv = list(self._config.argv) or ([] if notebook else list(sys.argv))
        name = name or ("a notebook" if notebook and not argv else "")
        return Script(
            argv=argv, name=name, cwd=str(Path.cwd()), python=sys.executable, ended_by=ended_by, error=error
        )


def _hear_workers(journal: Journal) -> None:
    """Those that live on see that the block has ended, and say what they have seen since their last row."""
    until = time.monotonic() + HEAR_S
    with suppress(KeyboardInterrupt):  # what they have said by then counts
        while time.monotonic() < until:
            if all(worker.get("left") or worker["ended"] for worker in journal.all("worker-")):
                break
            time.sleep(0.02)


@contextmanager
def _put_back() -> Generator[None]:
    """What is trained and drawn in the block is not. Raises UsageError in one of several ranks."""
    from feedline.profiling.watch.legs.snapshot import Snapshot

    seen = Facts()
    seen.look()
    if seen.world_size > 1:
        raise UsageError("no legs inside one of several ranks: feedline profile --legs torchrun … sees them all")
    snapshot = Snapshot()
    try:
        yield
    finally:
        snapshot.restore()
