"""Costs per training sample, and what watching itself cost. Pure arithmetic on what was merged."""

from collections.abc import Sequence
from typing import Any

from feedline.profiling.record.journal import Journal, TimeRow
from feedline.profiling.record.measurements import Sampled, scope_of
from feedline.profiling.record.recording import Costs, Overhead, Recording
from feedline.profiling.record.windows import mean_over, of_lowest_rank, without_pause


def costs(recording: Recording) -> Costs:
    """Per training sample over all ranks."""
    loader = recording.train_loader
    measured = list(filter(without_pause, recording.measured()))
    samples = sum(step.samples for step in measured)
    if not samples:
        return Costs()
    workers = recording.preparing() if loader is not None else []
    workers_cpu_s = [one.cpu_s for one in workers if one.cpu_s is not None]
    if not workers and loader is not None and loader.background:  # made in other threads, where it has no workers
        workers_cpu_s = [sum(one.beside_cpu_s.values()) for one in recording.trainers
                         if one.beside_cpu_s and not loader.num_workers]  # fmt: skip
    elif not workers:  # what the training thread made itself, of a loop that asks no watched loader
        workers_cpu_s = [one.stages_cpu_s["load"] for one in recording.trainers if "load" in one.stages_cpu_s]
    loading_cpu_s = sum(one.cpu_s or 0.0 for one in workers if one.in_trainer) if workers else sum(workers_cpu_s)
    prepared = sum(one.samples for one in workers) or samples
    trainer_cpu_s = sum(one.cpu_s or 0.0 for one in recording.trainers) - loading_cpu_s
    busy_s = sum(one.seconds - one.stages.get("idle", 0.0) for one in workers)
    scopes = {scope_of(one.rank, None if one.in_trainer else one.worker) for one in workers}
    windows = of_lowest_rank(measured)
    seconds = sum(step.duration_s - step.pause_s for step in measured) / max(1, recording.compute.world_size)

    def per_sample(name: str) -> float | None:
        """From a rate sampled while the measured steps ran."""
        series = (one for one in recording.series if one.name == name and one.scope in scopes)
        means = [mean for one in series if (mean := mean_over(one, windows)) is not None]
        return sum(means) * seconds / samples if means else None

    return Costs(
        worker_cpu_s=sum(workers_cpu_s) / prepared if workers_cpu_s else None,
        worker_wall_s=busy_s / prepared if workers else None,
        trainer_cpu_s=max(0.0, trainer_cpu_s) / samples,
        read_bytes=per_sample("read_bytes_per_s"),
        device_bytes=per_sample("disk_read_bytes_per_s"),
        read_calls=per_sample("read_calls_per_s"),
    )


def overhead(journal: Journal, trainers: list[dict[str, Any]], sampler: Sampled | None, seconds: float) -> Overhead:
    """The trainers' share (hooks, stack sampler, and resource sampling of all), or the workers' if that is larger."""
    workers = list(journal.all("worker-"))
    # Loaders' own workers do not write all.
    hooks_s, stacks_s = (sum(one[key] for one in trainers) for key in ("hook_s", "sampler_cpu_s"))
    workers_s = sum(one.get("sampler_cpu_s", 0.0) + one.get("hook_s", 0.0) for one in workers)
    resources_s = sampler.cpu_s if sampler else 0.0
    watched_s, worker_s = _watched_s(journal, "main", trainers), _watched_s(journal, "worker", workers)
    shares = [(hooks_s + stacks_s) / watched_s + resources_s / seconds] if watched_s and seconds else []
    shares += [workers_s / worker_s] if worker_s else []
    return Overhead(
        seconds=watched_s / max(1, len(trainers)),
        hooks_s=hooks_s,
        sampler_cpu_s={"trainer": stacks_s, "workers": workers_s, "resources": resources_s},
        fraction=max(shares, default=None),
    )


def _watched_s(journal: Journal, kind: str, processes: Sequence[dict[str, Any]]) -> float:
    rows = [row for process in processes for row in journal.rows(f"{kind}-{process['pid']}", TimeRow)]
    return sum(row.t1 - row.t0 for row in rows)
