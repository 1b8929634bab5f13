"""The journal of a run -> a Recording: ranks merged, warm-up marked, workers and trainers summed over training time.

Workers and trainers tell what they did in rows of half a second. A row counts by the share of its time that lies
inside measured training steps, so that start-up, evaluation and checkpoints are not charged to training.
"""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline.profiling.capture import STEP_COLUMNS
from feedline.profiling.host import describe_host
from feedline.profiling.journal import Journal
from feedline.profiling.recording import (
    STAGES,
    Compute,
    Costs,
    LoaderSeen,
    Overhead,
    Phase,
    Recording,
    Script,
    Series,
    Step,
    TrainerTime,
    WarmUp,
    WorkerTime,
)
from feedline.profiling.tally import COLUMNS

if TYPE_CHECKING:
    from feedline.profiling.sample import ResourceSampler

WARM_UP_RULE = (
    "the first num_workers × prefetch_factor + 3 batches of the first pass over a loader and the first batch of "
    "every later pass, at most a quarter of the pass"
)
MAIN_PARTS = ("python", "unpickle", "logging", "pin", "other")
TOP_FUNCTIONS = 12


def merge(
    journal: Journal,
    *,
    origin: float,
    argv: Sequence[str],
    sampler: "ResourceSampler | None" = None,
    script: Script | None = None,
) -> Recording:
    """Everything the processes of a run wrote down. `origin` is the clock's reading at second 0."""
    trainers = _trainers(journal)
    rows = {said["pid"]: _step_rows(journal, said["pid"]) for said in trainers}
    phases = _phases(trainers, rows)
    steps = [
        step
        for said in trainers
        for step in _steps(rows[said["pid"]], said.get("rank", 0), phases, _loaders_of(said), origin)
    ]
    steps.sort(key=lambda one: (one.rank, one.start_s))
    loaders = _loaders(trainers, phases)
    windows = {rank: Windows([s for s in steps if s.rank == rank]) for rank in {said["rank"] for said in trainers}}
    workers = _workers(journal, trainers, phases, windows, origin)
    trainer_times = [_trainer_time(journal, said, windows[said["rank"]], origin) for said in trainers]
    series = sampler.series.all() if sampler else []
    seconds = max((step.start_s + step.duration_s for step in steps), default=0.0)
    recording = Recording(
        script=script or Script(argv=list(argv), cwd=str(Path.cwd()), python=sys.executable),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        feedline=_feedline_version(),
        host=describe_host(),
        loaders=loaders,
        compute=_compute(trainers),
        steps=steps,
        optimizer_steps=max((said.get("optimizer_steps", 0) for said in trainers), default=0),
        warm_up=WarmUp(rule=WARM_UP_RULE, steps=sum(step.warm_up for step in steps)),
        workers=workers,
        trainers=trainer_times,
        series=series,
        gpus=sampler.gpus if sampler else [],
        gpu_note=sampler.gpu_note if sampler else "no GPU numbers: resources were not sampled",
        sample_paths=_paths(journal, trainers),
        overhead=_overhead(journal, trainers, sampler, seconds),
        notes=_notes(journal, trainers, steps, loaders),
    )
    return replace(recording, costs=_costs(recording))


def _feedline_version() -> str:
    try:
        return version("feedline")
    except PackageNotFoundError:
        return ""


# --- who was there ------------------------------------------------------------------------------------


def _trainers(journal: Journal) -> list[dict[str, Any]]:
    """Processes that iterated a loader or stepped an optimiser, by rank."""
    said = [one for one in journal.all("trainer-") if one.get("loaders") or one.get("optimizer_steps")]
    return sorted(said, key=lambda one: (one.get("rank", 0), one["pid"]))


def _step_rows(journal: Journal, pid: int) -> list[dict[str, Any]]:
    return [dict(zip(STEP_COLUMNS, row, strict=False)) for row in journal.rows(f"steps-{pid}")]


def _loaders_of(said: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {one["id"]: one for one in said.get("loaders", [])}


Phases = dict[tuple[int, int, int], Phase]
"""(pid, loader, epoch) -> phase."""


def _phases(trainers: list[dict[str, Any]], rows: dict[int, list[dict[str, Any]]]) -> Phases:
    """A pass is training when a backward pass or an optimiser step ran inside it. A run that trains nowhere is all
    training: it is the loop the user asked about."""
    trained: dict[tuple[int, int, int], bool] = defaultdict(bool)
    for pid, found in rows.items():
        for row in found:
            trained[pid, row["loader"], row["epoch"]] |= bool(row["trained"])
    anywhere = any(trained.values())
    return {key: "train" if done or not anywhere else "eval" for key, done in trained.items()}


def _loaders(trainers: list[dict[str, Any]], phases: Phases) -> list[LoaderSeen]:
    """As the lowest rank saw them; ranks run the same script."""
    if not trainers:
        return []
    first = trainers[0]
    known = {one.name for one in fields(LoaderSeen)}
    found: list[LoaderSeen] = []
    for about in first.get("loaders", []):
        mine = {phase for (pid, loader, _), phase in phases.items() if (pid, loader) == (first["pid"], about["id"])}
        phase = "train" if "train" in mine else "eval" if mine else "other"
        found.append(LoaderSeen(**{key: value for key, value in about.items() if key in known}, phase=phase))
    return found


def _compute(trainers: list[dict[str, Any]]) -> Compute:
    if not trainers:
        return Compute()
    facts = trainers[0].get("facts", {})
    known = {one.name for one in fields(Compute)}
    world_size = max((one.get("facts", {}).get("world_size", 1) for one in trainers), default=1)
    syncs = sum(one.get("events", {}).get("sync", 0) for one in trainers)
    seen: dict[str, Any] = {key: value for key, value in facts.items() if key in known}
    seen |= {"world_size": max(world_size, len(trainers)), "items": syncs}
    return Compute(**seen)


# --- steps --------------------------------------------------------------------------------------------


def _steps(
    rows: list[dict[str, Any]], rank: int, phases: Phases, loaders: dict[int, dict[str, Any]], origin: float
) -> list[Step]:
    by_pass: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_pass[row["loader"], row["epoch"]].append(row)
    by_key: dict[tuple[int, int], Phase] = {(loader, epoch): phase for (_, loader, epoch), phase in phases.items()}
    found: list[Step] = []
    for (loader, epoch), members in by_pass.items():
        warm = warm_up_steps(loaders.get(loader, {}), epoch, len(members))
        for position, row in enumerate(members):
            step = _step(row, rank, by_key.get((loader, epoch), "other"), origin)
            found.append(replace(step, warm_up=position < warm))
    return found


def _step(row: dict[str, Any], rank: int, phase: Phase, origin: float) -> Step:
    return Step(
        start_s=row["start"] - origin,
        wait_s=row["got"] - row["start"],
        duration_s=row["end"] - row["start"],
        samples=row["samples"],
        phase=phase,
        loader=row["loader"],
        epoch=row["epoch"],
        rank=rank,
        copy_s=row["copy"],
        backward_s=row["backward"],
        optimizer_s=row["optimizer"],
        pause_s=row["pause"],
        sync_s=row["sync"],
        starved_s=row["starved"],
        bytes=row["bytes"],
    )


def warm_up_steps(loader: dict[str, Any], epoch: int, batches: int) -> int:
    """`WARM_UP_RULE`: what workers prepared while the model warmed up is handed out faster than they can go on."""
    queued = (loader.get("num_workers") or 0) * (loader.get("prefetch_factor") or 2)
    wanted = queued + 3 if epoch == 0 else 1
    return min(wanted, max(1, batches // 4))


class Windows:
    """The measured training time of one rank: where workers' and trainers' rows count."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._spans: list[tuple[float, float]] = []
        for step in steps:
            paused = step.pause_s > 0.1 * step.duration_s
            if step.phase != "train" or step.warm_up or paused:
                continue
            start, end = step.start_s, step.start_s + step.duration_s
            if self._spans and start - self._spans[-1][1] < 1e-3:
                self._spans[-1] = (self._spans[-1][0], end)
            else:
                self._spans.append((start, end))
        self._starts = [start for start, _ in self._spans]

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self._spans)

    def share(self, start: float, end: float) -> float:
        """Of [start, end]; 1 when nothing was measured, so that a very short run still says something."""
        if not self._spans:
            return 1.0
        covered = 0.0
        for first, last in self._spans[max(0, bisect_right(self._starts, start) - 1) :]:
            if first >= end:
                break
            covered += max(0.0, min(end, last) - max(start, first))
        return covered / (end - start) if end > start else 0.0


# --- workers and trainers -----------------------------------------------------------------------------


class _Sum:
    """Rows of `tally.COLUMNS`, weighted."""

    def __init__(self, rows: list[list[Any]], windows: Windows, origin: float) -> None:
        self.sums: dict[str, dict[str, float]] = {
            name: defaultdict(float) for name in ("stages", "stages_cpu", "transforms", "functions")
        }
        self.numbers: dict[str, float] = defaultdict(float)
        for values in rows:
            row: dict[str, Any] = dict(zip(COLUMNS, values, strict=False))
            share = windows.share(row["t0"] - origin, row["t1"] - origin)
            if share <= 0:
                continue
            for name, into in self.sums.items():
                for key, value in row[name].items():
                    into[key] += share * value
            for name in ("batches", "samples", "cpu_s", "ticks"):
                self.numbers[name] += share * row[name]

    @property
    def seconds(self) -> float:
        return sum(self.sums["stages"].values())

    def top_functions(self) -> dict[str, float]:
        ranked = sorted(self.sums["functions"].items(), key=lambda item: -item[1])
        return dict(ranked[:TOP_FUNCTIONS])


def _workers(
    journal: Journal, trainers: list[dict[str, Any]], phases: Phases, windows: dict[int, Windows], origin: float
) -> list[WorkerTime]:
    found = [_worker(journal, said, phases, windows, origin) for said in journal.all("worker-")]
    for said in trainers:
        found += _in_trainer(journal, said, phases, windows[said["rank"]], origin)
    seen = [one for one in found if one.seconds > 0]
    return sorted(seen, key=lambda one: (one.rank, one.loader, one.worker, one.pid or 0))


def _loader_phase(phases: Phases, loader: int) -> Phase:
    mine = {phase for (_, number, _), phase in phases.items() if number == loader}
    return "train" if "train" in mine else "eval" if mine else "other"


def _worker(
    journal: Journal, said: dict[str, Any], phases: Phases, windows: dict[int, Windows], origin: float
) -> WorkerTime:
    rank = said.get("rank", 0)
    total = _Sum(journal.rows(f"worker-{said['pid']}"), windows.get(rank, Windows(())), origin)
    return replace(
        _worker_time(total, phase=_loader_phase(phases, said["loader"])),
        worker=said["worker"],
        rank=rank,
        loader=said["loader"],
        pid=said["pid"],
        ended="normally" if said.get("ended") else "killed",
    )


def _in_trainer(
    journal: Journal, said: dict[str, Any], phases: Phases, windows: Windows, origin: float
) -> list[WorkerTime]:
    found: list[WorkerTime] = []
    for about in said.get("loaders", []):
        rows = journal.rows(f"loading-{said['pid']}-{about['id']}")
        if not rows:
            continue
        total = _Sum(rows, windows, origin)
        total.numbers["cpu_s"] = sum(total.sums["stages_cpu"].values())  # the process's other time is not loading
        one = _worker_time(total, phase=_loader_phase(phases, about["id"]))
        found.append(replace(one, rank=said["rank"], loader=about["id"], pid=said["pid"], in_trainer=True))
    return found


def _worker_time(total: _Sum, *, phase: Phase) -> WorkerTime:
    stages = dict.fromkeys(map(str, STAGES), 0.0) | total.sums["stages"]
    return WorkerTime(
        worker=0,
        phase=phase,
        seconds=total.seconds,
        cpu_s=total.numbers["cpu_s"],
        stages=dict(stages),
        stages_cpu_s=dict(total.sums["stages_cpu"]),
        transforms=dict(total.sums["transforms"]),
        functions=total.top_functions(),
        batches=round(total.numbers["batches"]),
        samples=round(total.numbers["samples"]),
        ticks=round(total.numbers["ticks"]),
    )


def _trainer_time(journal: Journal, said: dict[str, Any], windows: Windows, origin: float) -> TrainerTime:
    total = _Sum(journal.rows(f"main-{said['pid']}"), windows, origin)
    return TrainerTime(
        rank=said["rank"],
        pid=said["pid"],
        seconds=total.seconds,
        parts=dict(total.sums["stages"]),
        functions=total.top_functions(),
        cpu_s=total.numbers["cpu_s"],
        main_cpu_s=sum(total.sums["stages_cpu"].values()),
        ticks=round(total.numbers["ticks"]),
    )


# --- costs, overhead, notes ---------------------------------------------------------------------------


def _costs(recording: Recording) -> Costs:
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
    scopes = tuple({f"worker:{one.worker}" if not one.in_trainer else "trainer" for one in workers})
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


def _overhead(
    journal: Journal, trainers: list[dict[str, Any]], sampler: "ResourceSampler | None", seconds: float
) -> Overhead:
    events: dict[str, int] = defaultdict(int)
    for said in trainers:
        for name, count in said.get("events", {}).items():
            events[name] += count
    hook_s = sum(said.get("hook_s", 0.0) for said in trainers)
    stacks_s = sum(said.get("sampler_cpu_s", 0.0) for said in trainers)
    workers = list(journal.all("worker-"))
    worker_cpu_s = sum(said.get("sampler_cpu_s", 0.0) for said in workers)
    worker_s = sum(row[1] - row[0] for said in workers for row in journal.rows(f"worker-{said['pid']}"))
    resources_s = sampler.cpu_s if sampler else 0.0
    shares = [(hook_s + stacks_s + resources_s) / (seconds * max(1, len(trainers)))] if seconds else []
    shares += [worker_cpu_s / worker_s] if worker_s else []
    return Overhead(
        seconds=seconds,
        events=dict(events),
        event_cost_s={"batch": hook_s / events["batch"]} if events.get("batch") else {},
        sampler_cpu_s={"trainer": stacks_s, "workers": worker_cpu_s, "resources": resources_s},
        fraction=max(shares) if shares else None,
    )


def _paths(journal: Journal, trainers: list[dict[str, Any]]) -> list[str]:
    """Round robin over the processes, so that one worker's folder does not fill the list."""
    lists = [list(said.get("paths", [])) for said in (*journal.all("worker-"), *trainers)]
    mixed = [path for group in _round_robin(lists) for path in group]
    return list(dict.fromkeys(mixed))[:512]


def _round_robin(lists: list[list[str]]) -> Iterable[list[str]]:
    for position in range(max((len(one) for one in lists), default=0)):
        yield [one[position] for one in lists if position < len(one)]


def _notes(
    journal: Journal, trainers: list[dict[str, Any]], steps: list[Step], loaders: list[LoaderSeen]
) -> list[str]:
    notes: list[str] = []
    if not loaders:
        notes.append(
            "no DataLoader was iterated: the wait for data, workers and stages cannot be told; "
            "use torch's DataLoader, webdataset or feedline's Loader, or `profiling.probe.watch` around your loop"
        )
    elif not any(step.phase == "train" and not step.warm_up for step in steps):
        notes.append("too few batches to leave a warm-up out: run longer (no --steps, or a larger one)")
    killed = [said for said in journal.all("worker-") if not said.get("ended")]
    if killed:
        notes.append(
            f"{len(killed)} worker(s) ended without saying so (killed?): counted up to their last half second"
        )
    for path in sorted(journal.folder.glob("complaints-*.txt")):
        notes += path.read_text().splitlines()
    return list(dict.fromkeys(notes))
