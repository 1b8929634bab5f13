"""The throughput model: how fast a training loop runs with given costs per sample. Pure arithmetic.

    rate = min(compute, workers × k(workers) / worker seconds, storage,
               cores / (worker CPU seconds + trainer CPU seconds + lost))

A model on the CPU whose threads fill all cores waits at every operation for the thread that a worker has pushed
aside, the others spinning meanwhile: `stall` is the CPU time it loses to one second of a worker's. It loses no more
than it computes: lost = min(stall(workers) × worker CPU seconds, trainer CPU seconds). Beside other programs a fair
scheduler gives cores by the number of busy processes: max(cores − others, cores × own / (own + others)).

The limits of one rank, times the ranks. With `num_workers=0` the trainer prepares each batch itself and nothing
overlaps: 1 / (worker seconds + step seconds). Two limits that nearly tie cost each other a little (queues run empty
by chance), so the minimum is a soft one: the p-norm with p = 12 takes 5.6 % off at an exact tie, and is never above
the hard minimum.

That is the rate between the first and the last batch of an epoch. Over whole epochs, each of which begins and ends
with something that no step overlaps (workers start, the first batch is prepared, workers end):

    1 / (1 / rate + epoch seconds / epoch samples)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

SHARPNESS = 12.0
TENSOR_S = 4e-4  # that a tensor's way from a worker takes of the training thread (NOTES: 0.28 to 0.63 ms) …
SHARED_S = 1.7e-10  # … and each of its bytes, in fresh pages of shared memory (NOTES: 0.17 to 0.31 ms a MB)
NEARLY = 0.98  # share of the model's limit from which nothing but the model is


@dataclass(frozen=True, kw_only=True)
class Throughput:
    workers: int  # of each rank; 0: the trainer prepares the batches itself
    step_s: float  # main-thread seconds per sample when data is free: copies, compute, the script's Python
    worker_s: float  # seconds one worker with a core to itself takes per sample, blocked time included
    worker_cpu_s: float = 0.0  # CPU seconds of that
    trainer_cpu_s: float = 0.0  # CPU seconds of the trainer per sample, all its threads
    handover_s: float = 0.0  # main-thread seconds per sample to unpickle or pin what a worker sent
    own_part_s: float = 0.0  # … and for which it waits where it is slow to choose it, or to change it
    restart_s: float = 0.0  # … and where each step begins its loader anew
    cores: float = 1.0  # of the whole machine
    others: float = 0.0  # processes of other programs that want one, as much as one of its own does
    ranks: int = 1
    storage_samples_per_s: float | None = None  # what the storage delivers to all ranks together
    contention: Mapping[int, float] = field(default_factory=dict)
    """k by number of workers, measured: 1 where workers do not slow each other down."""
    epoch_start_s: float = 0.0  # seconds of each epoch beside its steps
    epoch_samples: float | None = None  # of all ranks; None: epochs are taken to be endless
    stall: Mapping[int, float] = field(default_factory=dict)
    """CPU seconds the trainer's threads lose per CPU second of the workers, by number of workers; else 0."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.ranks < 1 or min(self.step_s, self.worker_s) < 0 or self.cores <= 0:
            raise ValueError(f"costs, workers and cores must not be negative: {self}")

    @property
    def busy_s(self) -> float:
        """Main-thread seconds per sample beside what it prepares."""
        return self.step_s + self.handover_s + self.own_part_s + self.restart_s

    def first_batch_s(self, batch_samples: float) -> float:
        """Seconds of an epoch beside its steps where workers live on: one of them makes the first batch. Where data
        sets the pace, what the others make meanwhile makes up for it: n batches, each made in b seconds and ready
        every p, and their steps of s take max(b + n s, n p + s)."""
        made_s, step_s = self.worker_s * batch_samples, self.busy_s * batch_samples
        of_data = min(limit for name, limit in self.limits().items() if name != "compute")
        batches = (self.epoch_samples or math.inf) / (self.ranks * batch_samples)
        behind_s = max(0.0, self.ranks * batch_samples / of_data - step_s)
        return max(made_s - batches * behind_s if behind_s else made_s, min(made_s, step_s))

    def sent(self, tensors: int, size_bytes: int, samples: float, *, pinned: bool = False) -> "Throughput":
        """With what it costs to take from workers what the trainer made itself: each batch of so many samples, tensor
        by tensor and page by page, and an epoch's first, for which it waits behind what began one before. `pinned`:
        a thread of its own takes them."""
        sent_s = (tensors * TENSOR_S + size_bytes * SHARED_S) / samples
        handover_s = self.handover_s + (0.0 if pinned else sent_s)
        then = replace(self, handover_s=handover_s, trainer_cpu_s=self.trainer_cpu_s + sent_s)
        return replace(then, epoch_start_s=then.epoch_start_s + then.first_batch_s(samples))

    def limits(self, data_factor: float = 1.0) -> dict[str, float]:
        """samples/s of all ranks that each resource allows, all but the model so many times as much; what costs
        nothing sets no limit."""
        lost_s = 0.0
        limits = {"compute": _per_second(self.ranks, self.busy_s)}
        if self.workers == 0:
            limits["trainer prepares"] = _per_second(self.ranks, self.busy_s + self.worker_s)
        else:
            k = _interpolated(self.contention, self.workers, 1.0)
            limits["workers"] = _per_second(self.ranks * self.workers * k, self.worker_s)
            lost_s = min(_interpolated(self.stall, self.workers, 0.0) * self.worker_cpu_s, self.trainer_cpu_s)
        own = self.ranks * (self.workers + 1)
        cores = max(self.cores - self.others, self.cores * own / (own + self.others))
        limits["cores"] = _per_second(cores, self.worker_cpu_s + self.trainer_cpu_s + lost_s)
        if self.storage_samples_per_s is not None:
            limits["storage"] = self.storage_samples_per_s
        return {name: of * (data_factor if name != "compute" else 1.0) for name, of in limits.items()}

    def rate(self, data_factor: float = 1.0) -> float:
        """samples/s of all ranks; infinite when nothing costs anything."""
        limits = self.limits(data_factor)
        if self.workers == 0:  # preparing and computing follow each other: their sum is the limit
            del limits["compute"]
        return soft_minimum(list(limits.values()))

    def data_factor(self, rate: float) -> float:
        """With it `rate(data_factor)` is that rate: the soft minimum solved for all limits but the model's. Where the
        rate is the model's own, they are a ninth above it or more."""
        limits = self.limits()
        top = limits.pop("compute")
        data, below = soft_minimum(list(limits.values())), min(rate / top, NEARLY)
        needed = top * (below**-SHARPNESS - 1.0) ** (-1.0 / SHARPNESS)
        return (needed if rate < NEARLY * top else max(needed, data)) / data if 0 < data < math.inf else 1.0

    def over_epochs(self, rate: float) -> float:
        """A rate between two batches -> the rate over whole epochs."""
        return over_epochs(rate, self.epoch_start_s, self.epoch_samples)

    def binding(self, data_factor: float = 1.0) -> str:
        """The name of the lowest limit."""
        limits = self.limits(data_factor)
        return min(limits, key=lambda name: limits[name])


def over_epochs(rate: float, start_s: float, samples: float | None) -> float:
    """The rate over whole epochs of so many samples; unchanged where epochs are taken to be endless."""
    return 1.0 / (1.0 / rate + start_s / samples) if samples and 0 < rate < math.inf else rate


def soft_minimum(values: Sequence[float]) -> float:
    """(sum of v^-p)^(-1/p): at most the minimum, and close to it unless others are near."""
    finite = [value for value in values if math.isfinite(value)]
    least = min(finite, default=math.inf)
    if not 0 < least < math.inf:
        return max(0.0, least)
    return least * sum((least / value) ** SHARPNESS for value in finite) ** (-1.0 / SHARPNESS)


def _interpolated(known: Mapping[int, float], workers: int, default: float) -> float:
    """Between the measured counts on either side, held beyond them; `default` where nothing was measured."""
    above = min((count for count in known if count >= workers), default=max(known, default=0))
    below = max((count for count in known if count <= workers), default=min(known, default=0))
    if above == below:
        return known.get(above, default)
    return known[below] + (workers - below) / (above - below) * (known[above] - known[below])


def _per_second(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else math.inf
