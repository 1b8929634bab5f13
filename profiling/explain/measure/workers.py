"""What preparing a sample costs the workers, on what, and how well that is known. Pure.

The workers are those of the training loader, or with num_workers=0 the trainer while it prepares batches itself.
Seconds are per sample. What a worker waits for a core is no cost of a stage: the kernel counts it, and where it does
not, wall time counts.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from feedline.profiling.explain.measure.rates import ERRORS_90, ERRORS_95, Rate
from feedline.profiling.record.recording import Recording, ThreadTime, WorkerTime
from feedline.profiling.record.stages import STAGES
from feedline.profiling.record.uncertainty import UNKNOWN_ERROR, look_error

SLOW = 1.6  # a worker that takes this many times as long per sample as the others is called slow …
SURELY_SLOW = 1.3  # … where its 95 % interval lies above this
SURE_ERRORS = 3.0  # … or that of so many errors of its logarithm
OF_A_CORE = 2.5  # up to so many times as long, in all it does alike, may be its core's doing
NOTABLE = 0.1  # share of its busy time by which what a worker does differs from what the others do
BLOCKED = ("blocked", "lock")
OF_THREADS = 0.5  # of a core, beside what the main thread does, from which a worker's other threads compute
BUSY_STAGES = [name for name in STAGES if name != "idle"]
SHORT = 0.15  # share of their busy time without a core from which workers lack cores
SPARE_SURELY = 0.35  # share of their time that all workers surely idle, from which more of them would idle, too
FEW_LOOKS = 20  # fewer stack samples than this show no share


class Slow(NamedTuple):
    """One worker that needs far longer per sample than the others: how many times as long, and the standard error of
    that factor."""

    worker: WorkerTime
    factor: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Workers:
    count: int  # of each rank; 0: the trainer prepares batches itself
    stages: dict[str, float]
    """Fractions of the time of all workers, in the order of `STAGES`, sum 1; empty when no worker was seen."""
    stage_errors: dict[str, float]  # their absolute standard errors
    looks: int  # stack samples behind them
    transforms: dict[str, float]  # seconds of all workers
    functions: dict[str, float]  # seconds of their busiest places, `stage file:function`
    samples: int
    each: list[tuple[WorkerTime, dict[str, float]]]  # one per worker number, with its own fractions
    cpu_s: float | None
    stage_alone_s: dict[str, float]  # what a stage takes a worker that has a core to itself
    stage_cpu_s: dict[str, float]  # and the CPU seconds of that; empty where they were not told by stage
    alone_s: float  # all stages together; 0 where it could not be seen
    alone_error: float  # relative standard error of it
    delay: float | None  # share of the busy time without a core; None where the kernel does not tell
    slow: Slow | None

    @property
    def even_s(self) -> float:
        """What a sample takes the other workers, where one is slow."""
        return self.alone_s * len(self.each) / (len(self.each) - 1 + self.slow.factor) if self.slow else self.alone_s

    @property
    def busy(self) -> float:
        """The share of their time in which they are not waiting for work."""
        return 1.0 - self.stages.get("idle", 1.0)

    @property
    def surely_idle(self) -> bool:
        """Each of them has much time to spare."""
        seen = [(each["idle"], look_error(each["idle"], worker.ticks)) for worker, each in self.each if each]
        least = min((idle - ERRORS_90 * error for idle, error in seen), default=0.0)
        return self.count > 0 and self.looks >= FEW_LOOKS and least >= SPARE_SURELY

    @property
    def lack_cores(self) -> bool:
        return self.delay is not None and self.delay > SHORT and self.busy > 0.5 and self.looks >= FEW_LOOKS

    @property
    def top(self) -> str | None:
        """The stage that takes them longest; None where none leads, or what does is of no stage."""
        return None if self.leader == "other" else self.leader

    @property
    def leader(self) -> str | None:
        """What takes them longest; None where it does not lead by more than its and the next one's errors (90 %)."""
        if self.looks < FEW_LOOKS or not self.stages:
            return None
        first, second = sorted(BUSY_STAGES, key=lambda name: -self.stages.get(name, 0.0))[:2]
        lead = self.stages[first] - self.stages[second]
        # What one stage has too much, another may have too little: errors add up.
        unsure = ERRORS_90 * (self.stage_errors[first] + self.stage_errors[second])
        return first if lead > unsure else None


def measure_workers(recording: Recording) -> Workers:
    loader, costs = recording.train_loader, recording.costs
    of_loader = [_without_own_locks(worker) for worker in recording.preparing()]
    groups: dict[tuple[int, int, bool], list[WorkerTime]] = {}
    for worker in [worker for worker in of_loader if worker.phase == "train"] or of_loader:
        groups.setdefault((worker.rank, worker.worker, worker.in_trainer), []).append(worker)
    workers = [_merged(groups[key]) for key in sorted(groups)]
    whole = _merged(workers or [WorkerTime(worker=0)])
    stages, cost = _fractions(whole), _cost(whole)
    busy_s, delays_s = _busy_s(whole), whole.stages_delay_s
    delay_s = None if delays_s is None else sum(delays_s.get(name, 0.0) for name in BUSY_STAGES)
    count = len({worker.worker for worker in workers if not worker.in_trainer})
    return Workers(
        count=loader.num_workers if loader and loader.num_workers is not None else count,
        stages=stages,
        stage_errors={name: looked_error(whole, share, name) for name, share in stages.items()},
        looks=whole.ticks,
        transforms=whole.transforms,
        functions=whole.functions,
        samples=whole.samples,
        each=[(worker, _fractions(worker)) for worker in workers],
        cpu_s=costs.worker_cpu_s,
        stage_alone_s={name: _alone_s(whole, name) / whole.samples for name in BUSY_STAGES if whole.samples},
        stage_cpu_s={name: cpu_s / whole.samples for name, cpu_s in whole.stages_cpu_s.items() if whole.samples},
        alone_s=cost.value if cost else costs.worker_wall_s or 0.0,
        alone_error=cost.error if cost else UNKNOWN_ERROR,
        delay=min(1.0, delay_s / busy_s) if delay_s is not None and busy_s else None,
        slow=_slow_worker(workers),
    )


def busiest(functions: Mapping[str, float], *stages: str) -> str:
    """Of places as `ThreadTime` has them, the file:function where these stages take longest; "" without any."""
    mine = (name for name in functions if name.partition(" ")[0] in stages)
    found = sums({function_of(name): functions[name]} for name in mine)
    return max(found, key=lambda function: found[function], default="").partition(" ")[2]


def function_of(place: str) -> str:
    """file:function:line -> file:function."""
    return re.sub(r":\d+$", "", place)


def sums(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for table in tables:
        for name, value in table.items():
            total[name] = total.get(name, 0.0) + value
    return total


def together(threads: Sequence[ThreadTime]) -> dict[str, Any]:
    """Fields of `ThreadTime`: their sums. The delay is known where all tell it."""
    delays = [thread.stages_delay_s for thread in threads if thread.stages_delay_s is not None]
    errors_s = sums({name: error_s**2 for name, error_s in thread.stages_error_s.items()} for thread in threads)
    return {
        "seconds": sum(thread.seconds for thread in threads),
        "ticks": sum(thread.ticks for thread in threads),
        "stages": sums(thread.stages for thread in threads),
        "stages_cpu_s": sums(thread.stages_cpu_s for thread in threads),
        "stages_delay_s": sums(delays) if len(delays) == len(threads) else None,
        "stages_error_s": {name: math.sqrt(square) for name, square in errors_s.items()},
        "functions": sums(thread.functions for thread in threads),
        "beside_cpu_s": sums(thread.beside_cpu_s for thread in threads),
    }


def looked_error(thread: ThreadTime, share: float, *stages: str) -> float:
    """Absolute standard error of these stages' share of its time: over blocks, and no less than so many looks can
    tell."""
    of_blocks_s = math.hypot(*(thread.stages_error_s.get(stage, 0.0) for stage in stages))
    return max(of_blocks_s / thread.seconds if thread.seconds else 0.0, look_error(share, thread.ticks))


def _without_own_locks(worker: WorkerTime) -> WorkerTime:
    """Where its process computes while its main thread waits, that waits for threads of the worker's own, of which
    nothing is seen: it is no lock that others hold."""
    locked_s = worker.stages.get("lock", 0.0)
    own_s = sum(seconds for name, seconds in worker.stages.items() if name not in ("idle", *BLOCKED))
    if worker.in_trainer or (worker.cpu_s or 0.0) - own_s <= OF_THREADS * locked_s:
        return worker

    def told(table: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in table.items() if name != "lock"} | {
            "other": table.get("other", 0.0) + table.get("lock", 0.0)
        }

    functions = {re.sub(r"^lock ", "other ", name): seconds for name, seconds in worker.functions.items()}
    return replace(
        worker,
        stages=told(worker.stages),
        stages_cpu_s=told(worker.stages_cpu_s),
        stages_error_s=told(worker.stages_error_s),
        stages_delay_s=worker.stages_delay_s and told(worker.stages_delay_s),
        functions=functions,
    )


def kept(recording: Recording) -> list[str]:
    """Where the training loader's dataset keeps samples as it makes them: half of those that were given, or more."""
    loader = recording.train_loader
    if loader is None:
        return []
    given = sum(step.samples for step in recording.steps if step.loader == loader.id)
    enough = 0.5 * min(given, loader.dataset_samples or given)
    return [name for name, count in loader.keeps.items() if count >= max(1.0, enough)]


def _merged(group: Sequence[WorkerTime]) -> WorkerTime:
    """One worker number over its processes (without persistent_workers every epoch starts new ones), or all."""
    samples = sum(worker.samples for worker in group)
    known = all(worker.sample_error_s is not None for worker in group if worker.samples)
    of_samples_s = math.hypot(*(worker.samples * (worker.sample_error_s or 0.0) for worker in group))
    return replace(
        group[-1],
        **together(group),
        samples=samples,
        sample_error_s=of_samples_s / samples if known and samples else None,
        transforms=sums(worker.transforms for worker in group),
        ended="killed" if any(worker.ended == "killed" for worker in group) else group[-1].ended,
    )


def _busy_s(worker: WorkerTime) -> float:
    return sum(worker.stages.get(name, 0.0) for name in BUSY_STAGES)


def _alone_s(worker: WorkerTime, stage: str) -> float:
    """Without its delay. What is blocked wants no core: the delay that a look found there is that of what came
    before."""
    delay_s = 0.0 if stage in BLOCKED else (worker.stages_delay_s or {}).get(stage, 0.0)
    return max(0.0, worker.stages.get(stage, 0.0) - delay_s)


def _fractions(worker: WorkerTime) -> dict[str, float]:
    """Shares of its wall time by stage; what is not accounted for is `other`; they sum to 1."""
    seconds = {name: worker.stages.get(name, 0.0) for name in STAGES}
    total = max(worker.seconds, sum(seconds.values()))
    seconds["other"] += total - sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def _cost(worker: WorkerTime) -> Rate | None:
    """Seconds of a sample with a core to itself; its error over blocks, and no less than its busy looks can tell."""
    busy_s = _busy_s(worker)
    if not worker.samples or busy_s <= 0:
        return None
    of_blocks = (worker.sample_error_s or 0.0) * worker.samples / busy_s
    alone_s = sum(_alone_s(worker, name) for name in BUSY_STAGES)
    return Rate(value=alone_s / worker.samples, error=max(of_blocks, 1.0 / math.sqrt(max(1.0, _looks(worker)))))


def _does_else(one: WorkerTime, others: WorkerTime) -> bool:
    """Whether something takes surely more of a worker's busy time than of the others'."""
    mine, theirs = ({**of.stages, **of.functions} for of in (one, others))
    mine_s, theirs_s = max(_busy_s(one), 1e-9), max(_busy_s(others), 1e-9)
    for name, seconds in mine.items():
        share, usual = min(1.0, seconds / mine_s), min(1.0, theirs.get(name, 0.0) / theirs_s)
        spread = (of * (1.0 - of) / max(1.0, looks) for of, looks in ((share, _looks(one)), (usual, _looks(others))))
        if name != "idle" and share - usual > max(NOTABLE, ERRORS_90 * math.sqrt(sum(spread))):
            return True
    return False


def _looks(worker: WorkerTime) -> float:
    """At its work."""
    busy_s = _busy_s(worker)
    return worker.ticks * busy_s / max(worker.seconds, busy_s, 1e-9)


def _slow_worker(workers: Sequence[WorkerTime]) -> Slow | None:
    """The slowest, if it is surely slow and hardly ever idle, so that the others wait for it."""
    known = [(cost, worker) for worker in workers if not worker.in_trainer and (cost := _cost(worker))]
    if len(known) < 2:
        return None
    *others, (cost, slowest) = sorted(known, key=lambda one: one[0].value)
    usual = others[len(others) // 2][0]
    if usual.value <= 0 or _busy_s(slowest) <= 0.5 * slowest.seconds:
        return None
    factor = cost.value / usual.value
    error = factor * math.hypot(cost.error, usual.error)
    if factor < OF_A_CORE and not _does_else(slowest, _merged([worker for _, worker in others])):
        return None  # its core may be slower, or shared with a neighbour of this machine
    # Of few batches the error may be as large as the ratio, which is no less surely large: its errors are factors.
    least = max(factor - ERRORS_95 * error, factor * math.exp(-SURE_ERRORS * error / factor))
    return Slow(slowest, factor, error) if factor >= SLOW and least > SURELY_SLOW else None
