"""How processes of a profiled run tell what they saw: small JSON files in the run's folder, and their rows' types.

Every process writes only its own files, whole and by rename, so a process that is killed leaves its last complete
word. Rows are appended, each time as one line with a JSON list of them: a torn last line is dropped. `trains-on` is
told of a script that goes on behind its end. Four more files go the other way: `stop`, the step at which every rank
leaves, `windows`, the steps of a leg's window, `interrupted`, and `files`, what they are seen to read (`paths`), and
of the looks that found a file open the share behind one that did not, of that process, in the median over the files
(`changing`): 0 of an archive that is kept open, 1 of a file a sample, None where none was seen; `all`: hardly a look
found a file that no other did.
"""

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

from feedline.pipeline.base.settings import check_limits, limited

T = TypeVar("T")
LegName = Literal["normal", "cached", "kept", "laid_out", "loader_only", "cold"]

ENVIRONMENT = "FEEDLINE_PROFILE"  # set in the profiled script's environment: the run's folder
MOST_PATHS = 512  # data files of which one run tells
SWITCH_INTERVAL_S = 2e-4
"""After which a watched thread that runs Python gives the interpreter's lock up: as far a look may fall behind it."""
A_FILE_EACH = 0.5  # of `changing`: from here on a sample has a file of its own; small shards come to 0.1 and more
OWN_EPOCH = -1  # of rows that an optimiser's steps delimit: their loop asks no watched loader
NOTABLE = 0.2  # share of the cores that neighbours may have while a leg's window lasts
OF_STEP = ("backward_s", "optimizer_s", "pause_s", "sync_s", "syncs")
"""Fields of a `StepRow` that say what its step did, and go over to the row whose step it is part of."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """What a profile is asked for; the processes that are profiled read it too."""

    argv: Sequence[str] = ()
    """The script and its own arguments."""
    module: bool = False
    """SCRIPT is a module's name."""
    steps: int | None = limited(None, 1)
    """Stop the script (or the verdict) after so many steps."""
    seconds: float | None = limited(None, 0)
    """Stop it after so long in training, counted from the end of the first step; or after the steps, if these are
    over first."""
    legs: tuple[LegName, ...] = ()
    """Measure the ceiling (cached batches), the loader alone, a cold page cache."""
    window_s: float = 1.2
    """Length of one leg's window."""
    rounds: int = 5
    """How often every leg is measured."""
    lines: bool = False
    """Time lines, in the trainer and in every worker."""
    functions: tuple[str, ...] = ()
    """--lines of name, Class.name, module:name too."""
    line_steps: int = 30
    """Steps whose lines are timed."""
    steady: bool = True
    """Without steps and seconds: stop watching once the rate is known, and let the script run on (into its windows
    where there are some)."""
    parent: int = 0
    """The process that started the script; it shall not outlive that one. 0: it may."""
    inside: bool = False
    """The process lives on: it runs on unwatched, and is left as it was, as far as legs can."""

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def diagnostic(self) -> bool:
        """Whether windows follow the verdict's steps; the script is ended after them."""
        return bool(self.legs or self.lines)


@dataclass(kw_only=True)
class Compute:
    """What was seen of the training step's settings, for remedies where compute is the bound."""

    device: str = "cpu"
    autocast: bool | None = None
    channels_last: bool | None = None
    parameters: int | None = None
    optimizer: str | None = None
    world_size: int = 1
    threads: int | None = None
    """That torch computes an operation with on the CPU."""
    items: int = 0
    """Hidden synchronisations in measured training steps: `.item()`, `.cpu()`, `.tolist()` and the like."""
    items_s: float = 0.0
    """Time the main threads of all ranks spent inside them."""
    item_lines: list[str] = field(default_factory=list)
    """`file:line` of the most frequent ones."""
    user_cpu_s: float = 0.0
    """Of the trainer's whole process during training steps, waits for batches and warm-up left out."""
    kernel_cpu_s: float = 0.0
    """The same, spent in the kernel."""
    page_faults: int = 0
    """Minor ones, in the same time: memory that was given back to the kernel and is taken again."""
    faulty_steps: int = 0
    """Training steps these three are of."""
    unused_gradients: int = 0
    """Weights that get gradients although no optimiser steps on them."""
    unused_in: list[str] = field(default_factory=list)
    """Where the most of these are: a model's class and the names of its part, as `Net.backbone`."""


@dataclass(eq=False)
class StepRow:
    """One batch, in `steps-PID`: fields of `recording.Step`, with `start_s` as read from the clock."""

    start_s: float
    wait_s: float
    samples: int
    bytes: int
    loader: int
    epoch: int
    duration_s: float = 0.0
    copy_s: float | None = None
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    pause_s: float = 0.0
    sync_s: float = 0.0
    syncs: int = 0
    starved_s: float | None = None
    idle_s: float | None = None
    trained: bool = False
    own_wait_s: float = 0.0  # what of `wait_s` was for this batch, and not for those of loaders beside it

    def trains(self, optimized: Container[int]) -> bool:
        """Not where a backward pass alone says so, and only batches of other loaders are followed by an optimiser's
        step (`optimized`): then it is an evaluation that asks for gradients."""
        return self.trained and (not optimized or self.loader in optimized)


class TimeRow(NamedTuple):
    """What one thread or worker did from t0 to t1: `main-PID`, `worker-PID`, `loading-PID-LOADER`."""

    t0: float
    t1: float
    stages: dict[str, float]
    stages_cpu: dict[str, float]
    transforms: dict[str, float]  # seconds by name
    functions: dict[str, float]
    batches: int
    samples: int
    cpu_s: float
    ticks: int  # looks of the sampler
    stages_delay: dict[str, float] | None = None
    """Seconds in which the thread could have run and had no core; None where the kernel does not tell."""
    beside_cpu: dict[str, float] | None = None
    """CPU seconds of the process's other Python threads, by the function of the script's own; "": they wait there."""


class LegRow(NamedTuple):
    """One window of one leg: in `legs-PID`."""

    leg: str
    processes: int | None  # loader_only: workers, None for the script's own loader
    samples: int
    seconds: float
    worker_cpu_s: float | None
    trainer_cpu_s: float  # all threads of the process
    note: str
    dropped: float | None  # cold: the share of the data's files that were out of memory when it began
    others: float | None = None
    """Share of the cores that processes beside the run had; None where that cannot be told."""
    idle: float | None = None  # share of the cores that nobody had

    @property
    def disturbed(self) -> bool:
        """Others had a notable share of the cores, and hardly any was left."""
        return self.others is not None and self.others >= NOTABLE and (self.idle or 0.0) < NOTABLE


class LineRow(NamedTuple):
    """One function: in `lines-WHERE-PID`."""

    file: str
    first_line: int
    function: str
    timings: list[list[float]]  # [line, hits, seconds] each


class Journal:
    """Writing does nothing when the folder is gone: the parent has left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self) -> StudyConfig:
        data = self.read("config") or {}
        values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
        return StudyConfig(**values)

    def write(self, name: str, data: dict[str, Any]) -> None:
        part = self.folder / f".{name}.{os.getpid()}.part"
        with suppress(OSError):
            part.write_text(json.dumps(data))
            part.replace(self.folder / f"{name}.json")

    def append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of one of the types above."""
        with suppress(OSError), (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(list(rows)) + "\n")

    def complain(self, line: str) -> None:
        """What could not be watched: a note of the recording."""
        self.append(f"complaints-{os.getpid()}", [[line]])

    def has(self, name: str) -> bool:
        """Whether that was written: `left-PID`, `interrupted`. Asked at every look: cheap."""
        return os.path.exists(f"{self.folder}/{name}.json")  # noqa: PTH110

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            data = json.loads((self.folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", data) if isinstance(data, dict) else None

    def all(self, prefix: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob(f"{prefix}*.json")):
            if (data := self.read(path.stem)) is not None:
                yield data

    def rows(self, name: str, kind: Callable[..., T]) -> list[T]:
        """As `append` was given them; `kind` is their type."""
        rows: list[T] = []
        with suppress(OSError, ValueError):  # there is none, or its last line is torn
            for line in (self.folder / f"{name}.jsonl").read_text().splitlines():
                rows += [kind(*row) for row in json.loads(line)]
        return rows

    def complaints(self) -> list[str]:
        names = sorted(path.stem for path in self.folder.glob("complaints-*.jsonl"))
        return [line for name in names for line in self.rows(name, str)]
