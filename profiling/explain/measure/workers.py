"""What preparing a sample costs the workers, and on what. Pure.

The workers are those of the training loader, or with num_workers=0 the trainer while it prepares batches itself.
Seconds are per sample.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from feedline.profiling.record.recording import Recording, WorkerTime
from feedline.profiling.record.stages import STAGES

CPU_STAGES = [name for name, stage in STAGES.items() if stage.needs_core]
SLOW = 1.6  # a worker that takes this many times as long per sample as the others is called slow


@dataclass(frozen=True, kw_only=True)
class Workers:
    count: int  # of each rank; 0: the trainer prepares batches itself
    stages: dict[str, float]
    """Fractions of the time of all workers, in the order of `STAGES`, sum 1; empty when no worker was seen."""
    transforms: dict[str, float]  # seconds of all workers
    samples: int
    each: list[tuple[WorkerTime, dict[str, float]]]  # one per worker number, with its own fractions
    cpu_s: float | None
    stage_alone_s: dict[str, float]
    """What a stage takes a worker that has a core to itself: CPU time plus time blocked on storage and pipes."""
    alone_s: float  # all stages together; 0 where it could not be seen
    slowdown: float  # wall over CPU time of the CPU-only stages: 1 when nobody fights for cores
    slow: tuple[WorkerTime, float] | None
    """One worker that needs far longer per sample than the others, and how many times as long."""

    @property
    def even_s(self) -> float:
        """What a sample takes the other workers, where one is slow."""
        return self.alone_s * len(self.each) / (len(self.each) - 1 + self.slow[1]) if self.slow else self.alone_s


def measure_workers(recording: Recording, cores: float) -> Workers:
    loader, costs = recording.train_loader, recording.costs
    of_loader = [worker for worker in recording.workers if loader is None or worker.loader == loader.id]
    groups: dict[tuple[int, int, bool], list[WorkerTime]] = {}
    for worker in [worker for worker in of_loader if worker.phase == "train"] or of_loader:
        groups.setdefault((worker.rank, worker.worker, worker.in_trainer), []).append(worker)
    workers = [_merged(groups[key]) for key in sorted(groups)]
    whole = _merged(workers or [WorkerTime(worker=0)])
    # Every worker and every thread of the trainer may want a core at once; more than that is sleep, not contention.
    stage_alone_s, slowdown = _alone(whole, most=1.0 + (len(workers) + cores) / cores)
    count = len({worker.worker for worker in workers if not worker.in_trainer})
    return Workers(
        count=loader.num_workers if loader and loader.num_workers is not None else count,
        stages=_fractions(whole),
        transforms=whole.transforms,
        samples=whole.samples,
        each=[(worker, _fractions(worker)) for worker in workers],
        cpu_s=costs.worker_cpu_s,
        stage_alone_s=stage_alone_s,
        alone_s=sum(stage_alone_s.values()) or costs.worker_wall_s or 0.0,
        slowdown=slowdown,
        slow=_slow_worker(workers),
    )


def _merged(group: Sequence[WorkerTime]) -> WorkerTime:
    """One worker number over its processes (without persistent_workers every epoch starts new ones), or all."""
    return replace(
        group[-1],
        seconds=sum(worker.seconds for worker in group),
        samples=sum(worker.samples for worker in group),
        stages=sums(worker.stages for worker in group),
        stages_cpu_s=sums(worker.stages_cpu_s for worker in group),
        transforms=sums(worker.transforms for worker in group),
        ended="killed" if any(worker.ended == "killed" for worker in group) else group[-1].ended,
    )


def sums(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for table in tables:
        for name, value in table.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _fractions(worker: WorkerTime) -> dict[str, float]:
    """Shares of its wall time by stage; what is not accounted for is `other`; they sum to 1."""
    seconds = {name: worker.stages.get(name, 0.0) for name in STAGES}
    total = max(worker.seconds, sum(seconds.values()))
    seconds["other"] += total - sum(seconds.values())
    return {name: value / total for name, value in seconds.items()} if total > 0 else {}


def _alone(whole: WorkerTime, most: float) -> tuple[dict[str, float], float]:
    """Seconds per sample by stage of a worker with a core to itself, and how far the recorded ones were from that.

    A stage that only computes takes `slowdown` times its CPU time when cores are fought for: the least of these
    stages' ratios, those too short to tell left out. One stage alone may sleep on purpose, so it is believed up to
    `most` only; when several agree, cores are short, however much. What a stage took beyond that, it was blocked: on
    storage, a pipe, a sleep.
    """
    wall_s = {n: whole.stages.get(n, 0.0) / whole.samples for n in STAGES if n != "idle"} if whole.samples else {}
    if not wall_s or not whole.stages_cpu_s:
        return wall_s, 1.0
    cpu_s = {n: min(wall_s[n], whole.stages_cpu_s.get(n, 0.0) / whole.samples) for n in wall_s}
    notable_s = 0.05 * sum(wall_s.values())
    ratios = [wall_s[name] / cpu_s[name] for name in CPU_STAGES if wall_s[name] > notable_s and cpu_s[name] > 0]
    slowdown = max(1.0, min(ratios, default=1.0))
    slowdown = slowdown if len(ratios) > 1 else min(slowdown, most)
    return {n: cpu_s[n] + max(0.0, wall_s[n] - slowdown * cpu_s[n]) for n in wall_s}, slowdown


def _slow_worker(workers: Sequence[WorkerTime]) -> tuple[WorkerTime, float] | None:
    costs = [
        (w, (w.seconds - w.stages.get("idle", 0.0)) / w.samples) for w in workers if w.samples and not w.in_trainer
    ]
    if len(costs) < 2:
        return None
    slowest, cost_s = max(costs, key=lambda pair: pair[1])
    usual_s = statistics.median(other_s for worker, other_s in costs if worker is not slowest)
    busy = 1.0 - slowest.stages.get("idle", 0.0) / slowest.seconds if slowest.seconds else 0.0
    return (slowest, cost_s / usual_s) if usual_s > 0 and cost_s >= SLOW * usual_s and busy > 0.5 else None
