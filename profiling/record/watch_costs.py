"""Costs per training sample, and what watching itself cost. Pure arithmetic on what was merged."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.profiling.record.journal import Journal
from feedline.profiling.record.recording import Costs, Overhead, Recording, Series, Step
from feedline.profiling.record.rows import TimeRow
from feedline.profiling.record.series import Sampled, scope_of

MAIN_PARTS = ("python", "unpickle", "logging", "pin", "other")
"""Parts of the main thread's time that no device and no worker can take over."""


def costs(recording: Recording) -> Costs:
    """Per training sample over all ranks."""
    loader = recording.train_loader
    measured = [one for one in recording.measured() if loader is None or one.loader == loader.id]
    samples = sum(step.samples for step in measured)
    if not samples:
        return Costs()
    workers = [one for one in recording.workers if loader is not None and one.loader == loader.id]
    loading_cpu_s = sum(one.cpu_s or 0.0 for one in workers if one.in_trainer)
    prepared = sum(one.samples for one in workers) or samples
    trainer_cpu_s = sum(one.cpu_s or 0.0 for one in recording.trainers) - loading_cpu_s
    main_s = sum(one.parts.get(name, 0.0) for one in recording.trainers for name in MAIN_PARTS)
    busy_s = sum(one.seconds - one.stages.get("idle", 0.0) for one in workers)
    scopes = tuple({scope_of(one.rank, None if one.in_trainer else one.worker) for one in workers})
    return Costs(
        worker_cpu_s=sum(one.cpu_s or 0.0 for one in workers) / prepared if workers else None,
        worker_wall_s=busy_s / prepared if workers else None,
        trainer_cpu_s=max(0.0, trainer_cpu_s) / samples,
        trainer_main_s=main_s / samples,
        read_bytes=_rate_per_sample(recording, "read_bytes_per_s", scopes, measured, samples),
        disk_bytes=_rate_per_sample(recording, "disk_read_bytes_per_s", scopes, measured, samples),
        batch_bytes=sum(step.bytes or 0 for step in measured) / samples,
    )


def _rate_per_sample(
    recording: Recording, name: str, scopes: Sequence[str], measured: list[Step], samples: int
) -> float | None:
    """Bytes per sample, from a rate sampled while the measured steps ran."""
    start, end = measured[0].start_s, measured[-1].start_s + measured[-1].duration_s
    rates = [
        _mean(series, start, end) for series in recording.series if series.name == name and series.scope in scopes
    ]
    known = [rate for rate in rates if rate is not None]
    seconds = sum(step.duration_s - step.pause_s for step in measured) / max(1, recording.compute.world_size)
    return sum(known) * seconds / samples if known else None


def _mean(series: Series, start: float, end: float) -> float | None:
    inside = [
        value for t, value in zip(series.t_s, series.values, strict=True) if value is not None and start <= t <= end
    ]
    return sum(inside) / len(inside) if inside else None


def overhead(journal: Journal, trainers: list[dict[str, Any]], sampler: Sampled | None, seconds: float) -> Overhead:
    """The trainers' share (hooks, stack sampler, and resource sampling of all), or the workers' if that is larger."""
    events: dict[str, int] = defaultdict(int)
    for said in trainers:
        for name, count in said.get("events", {}).items():
            events[name] += count
    price_s = _event_costs(trainers, events)
    hooks_s = sum(count * price_s.get(name, 0.0) for name, count in events.items())
    stacks_s = sum(said.get("sampler_cpu_s", 0.0) for said in trainers)
    workers = list(journal.all("worker-"))
    worker_cpu_s = sum(said.get("sampler_cpu_s", 0.0) for said in workers)
    put_s, puts = (sum(said.get(name, 0.0) for said in workers) for name in ("hook_s", "puts"))
    worker_s = _seconds(journal, "worker", workers)
    watched_s = _seconds(journal, "main", trainers)
    resources_s = sampler.cpu_s if sampler else 0.0
    shares = [(hooks_s + stacks_s) / watched_s + resources_s / seconds] if watched_s and seconds else []
    shares += [(worker_cpu_s + put_s) / worker_s] if worker_s else []
    if puts:
        events["put"], price_s["put"] = int(puts), put_s / puts
    return Overhead(
        seconds=watched_s / max(1, len(trainers)),
        events=dict(events),
        event_cost_s=price_s,
        sampler_cpu_s={"trainer": stacks_s, "workers": worker_cpu_s, "resources": resources_s},
        fraction=max(shares) if shares else None,
    )


def _seconds(journal: Journal, kind: str, processes: Sequence[dict[str, Any]]) -> float:
    """That the processes were looked at."""
    return sum(row.t1 - row.t0 for told in processes for row in journal.rows(f"{kind}-{told['pid']}", TimeRow))


def _event_costs(trainers: list[dict[str, Any]], events: Mapping[str, int]) -> dict[str, float]:
    """Of one event of each kind that happened: as it was priced (`prices`), and what timed itself beside that."""
    told = [said.get("event_cost_s", {}) for said in trainers]
    found = {name: sum(one.get(name, 0.0) for one in told) / len(told) for name, count in events.items() if count}
    for name, key in (("batch", "hook_s"), ("copy", "mark_s")):
        if events.get(name):
            found[name] += sum(said.get(key, 0.0) for said in trainers) / events[name]
    return found
