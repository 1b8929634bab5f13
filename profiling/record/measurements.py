"""What a recording says of measurements beside the verdict: legs, trials, lines."""

from dataclasses import dataclass, field
from typing import Literal

LegName = Literal["normal", "cached", "crowded", "kept", "laid_out", "loader_only", "cold"]


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One differential run of the same script; several short windows, interleaved with the other legs."""

    name: LegName
    samples_per_s: list[float] = field(default_factory=list)
    """One per window."""
    window_s: list[float] = field(default_factory=list)
    num_workers: int | None = None
    """loader_only is measured at several; contention is how its rate grows with them. crowded (in older
    recordings): processes beside the loop that only burn CPU."""
    worker_cpu_s_per_sample: float | None = None
    trainer_cpu_s_per_sample: list[float] = field(default_factory=list)
    """All threads of the training process; one per window. Not of loader_only, where it stands still."""
    note: str = ""
    """What qualifies it, e.g. whether dropping the page cache worked."""
    dropped: float | None = None
    """cold: the share of the data's files known to be out of memory when it began."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A few hundred of the user's own samples decoded, resized and re-encoded on the spot (benchmarks.what_if)."""

    codec: str
    """as-is, jpeg, planes, raw."""
    size_px: int | None = None
    samples: int = 0
    bytes_per_sample: float | None = None
    load_cpu_s_per_sample: float | None = None
    """Read, decode, crop and resize for training."""
    load_cpu_s_spread: float | None = None
    prepare_cpu_s_per_sample: float | None = None
    trainer_cpu_s_per_sample: float | None = None
    """What the trainer then does that workers did before: uint8 to float, normalise."""
    psnr_db: float | None = None
    loader: str = "feedline"
    """Which loader the cost is for: the script's own transforms, or feedline's."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    file: str
    function: str
    line: int
    hits: int
    seconds: float
    fraction: float
    """Of its function's time."""
    source: str = ""
    where: str = "trainer"
    """trainer, or workers (CPU-seconds summed over all of them)."""
