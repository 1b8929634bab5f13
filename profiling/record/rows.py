"""Rows that processes of a run write down and the merge reads: one type for each kind of file in the journal."""

from typing import NamedTuple


class StepRow(NamedTuple):
    """One batch, times as read from the clock: `steps-PID`."""

    start: float
    got: float
    end: float
    samples: int
    bytes: int
    loader: int
    epoch: int
    copy: float
    backward: float
    optimizer: float
    pause: float
    sync: float
    starved: float | None
    trained: bool
    syncs: int


class PassRow(NamedTuple):
    """One iteration over one loader: in `trainer-PID`."""

    loader: int
    epoch: int
    samples: int
    start_s: float
    end_s: float | None
    """From asking for one more batch to being told that there is none; None: it was broken off."""


class TimeRow(NamedTuple):
    """What one thread or worker did from t0 to t1: `main-PID`, `worker-PID`, `loading-PID-LOADER`, `pin-PID`."""

    t0: float
    t1: float
    stages: dict[str, float]
    stages_cpu: dict[str, float]
    transforms: dict[str, float]
    functions: dict[str, float]
    batches: int
    samples: int
    cpu_s: float
    ticks: int
    """Looks of the sampler."""


class LegRow(NamedTuple):
    """One window of one leg: `legs-PID`."""

    leg: str
    processes: int | None
    """loader_only: workers, None for the script's own loader."""
    samples: int
    seconds: float
    worker_cpu_s: float | None
    trainer_cpu_s: float
    """All threads of the process."""
    note: str
    dropped: float | None
    """cold: the share of the data's files that were out of memory when it began."""


class LineRow(NamedTuple):
    """One function: `lines-WHERE-PID`."""

    file: str
    first_line: int
    function: str
    timings: list[list[float]]
    """[line, hits, seconds] each."""
