"""The measuring side: a server of fresh processes, and rounds that visit every cell in random order.

Machines drift: what is measured at another minute is measured on another machine. So cells are never measured one
after the other but in rounds; figures are compared within a round only (`benchmarks.measure.intervals`).
"""

import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from feedline.benchmarks.measure.fork_server import end_group
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.base.errors import FeedlineError, UsageError

T = TypeVar("T")
Measure = Callable[[Subject], Window]
Advance = Callable[[int, int], None]
"""Windows done, of all."""
KILLED = "the measuring process was killed: is the machine out of memory?"
MOST_S = 300
"""For all that a window takes beside its own length."""
QUIET_CORES = 0.2
TRIES = 3


class MeasureError(FeedlineError):
    """A subject that could not be measured; names its last words."""


def busyness(window: Window) -> float:
    """Cores that other programs took."""
    return window.others_cores or 0.0


def usual_cores(windows: Sequence[Window]) -> float:
    """That other programs took in the quieter windows: a quarter had less."""
    cores = [busyness(window) for window in windows]
    return statistics.quantiles(cores, n=4)[0] if len(cores) > 1 else cores[0]


def quietest(attempt: Callable[[], T], busy: Callable[[T], float], usual_cores: float = 0.0) -> T:
    """The quietest of at most TRIES; the first beside which others take little more than usual ends them."""
    tries = [attempt()]
    while len(tries) < TRIES and busy(tries[-1]) > usual_cores + QUIET_CORES:
        tries.append(attempt())
    return min(tries, key=busy)


def rounds(cells: Sequence[str], count: int) -> Iterator[tuple[int, str]]:
    """(round, cell), every cell once in a round, in an order drawn anew for each round."""
    for number in range(count):
        yield from ((number, cell) for cell in shuffled(cells, 0, number))


def shuffled(cells: Sequence[str], seed: int, number: int) -> list[str]:
    """The order of round `number`: the same after a restart."""
    return random.Random(f"{seed}/{number}").sample(cells, len(cells))


@dataclass(kw_only=True)
class Tried(Generic[T]):
    """Windows of cells within a time budget. A cell that cannot be measured is left out, with the reason."""

    measure: Callable[[T], Window]
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    windows: dict[T, list[Window]] = field(default_factory=dict[T, list[Window]])
    failed: dict[T, str] = field(default_factory=dict[T, str])
    started_s: float = field(init=False)
    took_s: list[float] = field(default_factory=list[float])
    """Each window; the first with the start of the measuring processes' server in it."""

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    @property
    def out_of_time(self) -> bool:
        """One more window, as long as the longest but the first, would go beyond the budget."""
        expected_s = max(self.took_s[1:] or self.took_s, default=0.0)
        return self.clock() - self.started_s + expected_s > self.budget_s

    def run(self, cell: T) -> Window | None:
        """One window, unless it cannot be measured."""
        began_s = self.clock()
        try:
            window = self.measure(cell)
        except MeasureError as error:
            self.failed[cell] = str(error)
            self.windows.pop(cell, None)
            return None
        finally:
            self.took_s.append(self.clock() - began_s)
        self.windows.setdefault(cell, []).append(window)
        return window

    def check(self) -> None:
        """Raises MeasureError where no cell could be measured."""
        if not self.windows:
            raise MeasureError(next(iter(self.failed.values())))


def require_torch() -> None:
    """Raises ModuleNotFoundError before anything runs; the measuring process could only say that it ended."""
    for name in ("torch", "torchvision"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Bench:
    """`with Bench() as bench: bench.measure(subject)`. Leaving it, by any way, leaves no process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._log = Path(tempfile.gettempdir()) / f"feedline-bench-{os.getpid()}-{id(self):x}.log"

    def __enter__(self) -> "Bench":
        require_torch()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()  # the server ends its fork and itself
            try:
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                end_group(process.pid)
                process.wait()
            process.stdout.close()
        self._log.unlink(missing_ok=True)

    def measure(self, subject: Subject) -> Window:
        """One window of `subject` in a fresh process. Raises MeasureError."""
        server = self._process or self._start()
        assert server.stdin is not None
        self._log.write_text("")
        try:
            server.stdin.write(json.dumps({**asdict(subject), "log": str(self._log)}) + "\n")
            server.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise MeasureError(KILLED) from None
        result = self._answer(server, MOST_S + subject.warm_up_s + subject.window_s)
        if "error" not in result:
            return Window(**result)
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        told = not lines or lines[-1].endswith(result["error"])
        raise MeasureError(result["error"] + ("" if told else f" (its last line: {lines[-1][:200]})"))

    def measure_quiet(self, subject: Subject) -> Window:
        """The same, measured again while other programs take more than QUIET_CORES."""
        return quietest(lambda: self.measure(subject), busyness)

    def _start(self) -> subprocess.Popen[str]:
        try:
            terminal = os.dup(0)  # the server itself is asked through its own
        except OSError:  # it is closed
            terminal = os.open(os.devnull, os.O_RDONLY)
        module = "feedline.benchmarks.measure.fork_server"
        command = [sys.executable, "-P", "-m", module, str(os.getpid()), str(terminal)]
        self._process = server = subprocess.Popen(
            command,
            pass_fds=[terminal],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        os.close(terminal)
        self._answer(server)  # it is ready: imports are nobody's time
        return server

    def _answer(self, server: subprocess.Popen[str], most_s: float = MOST_S) -> dict[str, Any]:
        assert server.stdout is not None
        deadline = time.monotonic() + most_s
        while not select.select([server.stdout], [], [], 1.0)[0]:
            if time.monotonic() > deadline:
                self.close()
                raise MeasureError(f"no window was finished in {most_s:.0f} s: is the data endless enough?")
        line = server.stdout.readline()
        if not line:
            self.close()
            raise MeasureError(KILLED)
        return json.loads(line)


def check_devices(counts: Sequence[int], device: str, models: Sequence[str], pinned: Sequence[bool] = ()) -> str:
    """The device, cpu or cuda, asked for here: to ask torch in a process that forks would spoil the forks.

    Raises UsageError, before anything is measured, for a device or a count that cannot have an effect here.
    """
    require_torch()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device}: known are auto, cpu and cuda")
    if max(counts) > 1 and not models:
        raise UsageError("--devices changes nothing where the loader runs alone: add --model, as --model small_cnn")
    if models:
        from feedline.train.models import check_name

        for name in models:
            check_name(name)
    if device == "cpu" and not any(pinned):
        return device
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if any(pinned) and not there:
        raise UsageError("--pin-memory true: memory is pinned for a GPU, and torch sees none here")
    if device == "cuda" and not there:
        raise UsageError("--device cuda: torch sees no CUDA device here, use --device cpu")
    if there and max(counts) > there:
        raise UsageError(f"--devices {max(counts)}: there are {there} GPUs here")
    return "cuda" if there and device != "cpu" else "cpu"
