"""What a recording says of measurements beside the verdict: legs, trials, lines, and resources over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from feedline.profiling.record.journal import LegName


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One differential run of the same script; several short windows, interleaved with the other legs."""

    name: LegName
    samples_per_s: list[float] = field(default_factory=list)
    """One per window."""
    window_s: list[float] = field(default_factory=list)
    num_workers: int | None = None
    """loader_only is measured at several; contention is how its rate grows with them."""
    worker_cpu_s_per_sample: float | None = None
    trainer_cpu_s_per_sample: list[float] = field(default_factory=list)
    """All threads of the training process; one per window. Not of loader_only, where it stands still."""
    note: str = ""
    """What qualifies it, e.g. whether dropping the page cache worked."""
    dropped: float | None = None
    """cold: the share of the data's files known to be out of memory when it began."""
    disturbed: int = 0
    """Windows that are left out, because other processes had a notable share of the cores meanwhile."""


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
    psnr_db: float | None = None
    smaller: bool = True
    """Some of the pictures had to be made smaller."""
    loader: str = "feedline"
    """Which loader the cost is for: the script's own transforms, or feedline's."""
    draft_left: float | None = None
    """as-is: of the time that Pillow takes to decode them, where `Image.draft` asks for twice the crop. 1 for what is
    no JPEG; None where it was not tried."""
    note: str = ""


MOSTLY_COLD = 0.9  # share of what was read that came from storage, from which a measurement is one of the storage
NEARLY = 0.95


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What reading a dataset's own files gave, by itself (benchmarks.measure.reads)."""

    piece_bytes: float
    """Of one read: the mean size of a sample."""
    at_once: list[int]
    """Reads under way at once, ascending …"""
    random_bytes_per_s: list[float]
    """… and what came meanwhile, from random places."""
    latency_s: float
    """Of one read alone, the median."""
    sequential_bytes_per_s: float | None = None
    """None where no file is long enough."""
    cold: float | None = None
    """The share that came from storage and not from this machine's memory; None where that cannot be told."""

    def __post_init__(self) -> None:
        """Raises ValueError for what nobody measured: recordings are files."""
        counts, figures = self.at_once, (self.piece_bytes, self.latency_s, *self.random_bytes_per_s)
        if not counts or counts[0] < 1 or sorted({*counts}) != counts or len(counts) != len(self.random_bytes_per_s):
            raise ValueError(f"reads at once must ascend from 1, with a rate each: {counts}")
        if min(figures) <= 0 or not (self.sequential_bytes_per_s is None or self.sequential_bytes_per_s > 0):
            raise ValueError("no read takes no time")

    @property
    def of_storage(self) -> bool:
        return self.cold is not None and self.cold >= MOSTLY_COLD

    def random_at(self, count: float) -> float:
        """Bytes/s with so many reads at once: between those measured as a power of the count, held beyond."""
        known = list(zip(map(math.log, self.at_once), map(math.log, self.random_bytes_per_s), strict=True))
        place = min(max(math.log(max(1.0, count)), known[0][0]), known[-1][0])
        left, low = max(one for one in known if one[0] <= place)
        right, high = min(one for one in known if one[0] >= place)
        return math.exp(low + (high - low) * (place - left) / (right - left) if right > left else low)

    @property
    def best_random_bytes_per_s(self) -> float:
        return max(self.random_bytes_per_s)

    @property
    def enough_at_once(self) -> int:
        """The fewest reads under way that give nearly the best."""
        rates = zip(self.at_once, self.random_bytes_per_s, strict=True)
        return min(count for count, rate in rates if rate >= NEARLY * self.best_random_bytes_per_s)

    def read_s(self, count: float) -> float:
        """What one read takes whoever asked for it, with so many at once."""
        return max(1.0, count) * self.piece_bytes / self.random_at(count)


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


def scope_of(rank: int, worker: int | None) -> str:
    """How series name a process: a rank's trainer, or one of its workers. Rank 0 is not named."""
    of_rank = f":{rank}" if rank else ""
    return f"trainer{of_rank}" if worker is None else f"worker{of_rank}:{worker}"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One number over time. `scope` says whose: host, gpu:UUID, other, or a process of the script (`scope_of`):
    trainer, trainer:RANK, worker:N, worker:RANK:N."""

    name: str
    """cpu_cores, rss_bytes, disk_read_bytes_per_s, net_receive_bytes_per_s, psi_cpu_some, shm_bytes, sm_active, …"""
    unit: str
    scope: str
    source: str
    """Where the number comes from, e.g. /proc/PID/stat, nvml utilization, nvml gpm 2."""
    t_s: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Means over the training steps; None where unknown, with the reason in `unavailable`."""

    uuid: str
    name: str | None = None
    index: int | None = None
    mig: bool = False
    source: str = "none"
    """gpm, nvml or none."""
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    utilization: float | None = None
    """NVML: share of the time in which at least one kernel ran. 1.0 does not mean busy SMs."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    throttle_reasons: list[str] = field(default_factory=list)
    process_memory_bytes: dict[str, float] = field(default_factory=dict)
    """By process id, the script's processes only."""
    sources: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)


GPU_MEANS = frozenset(one.name for one in fields(Gpu) if one.type == (float | None))
"""Fields of `Gpu` that are means of the series of that name."""


class Sampled(Protocol):
    """What a run's resource sampler has to say: `machine.resources.ResourceSampler`."""

    cpu_s: float
    """Its own CPU time."""

    @property
    def recorded(self) -> Sequence[Series]: ...
    @property
    def gpus(self) -> list[Gpu]: ...
    @property
    def gpu_note(self) -> str: ...
