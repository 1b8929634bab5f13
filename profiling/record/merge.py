"""The journal of a run -> a Recording: ranks merged, warm-up marked, workers and trainers summed over training time.

Workers and trainers tell what they did in rows of half a second. A row counts by the share of its time that lies
inside measured training steps, so that start-up, evaluation and checkpoints are not charged to training.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from feedline.profiling.record import diagnostic
from feedline.profiling.record.gpu_means import over_steps
from feedline.profiling.record.host import describe_host
from feedline.profiling.record.journal import Journal
from feedline.profiling.record.recording import (
    STAGES,
    Compute,
    LoaderPass,
    LoaderSeen,
    Phase,
    Recording,
    Script,
    Step,
    TrainerTime,
    WarmUp,
    WorkerTime,
)
from feedline.profiling.record.rows import PassRow, StepRow, TimeRow
from feedline.profiling.record.series import Sampled
from feedline.profiling.record.watch_costs import costs, overhead
from feedline.profiling.record.windows import RowSum, Windows

WARM_UP_RULE = (
    "the first num_workers × prefetch_factor + 3 batches of the first pass over a loader and the first batch of "
    "every later pass, at most a quarter of the pass"
)

MOST_ITEM_LINES = 8


def merge(
    journal: Journal,
    *,
    origin: float,
    argv: Sequence[str],
    sampler: Sampled | None = None,
    script: Script | None = None,
) -> Recording:
    """Everything the processes of a run wrote down. `origin` is the clock's reading at second 0."""
    trainers = _trainers(journal)
    rows = {said["pid"]: _step_rows(journal, said["pid"]) for said in trainers}
    phases = _phases(trainers, rows)
    steps = _all_steps(trainers, rows, phases, origin)
    loaders = _loaders(trainers, phases)
    windows = {rank: Windows([s for s in steps if s.rank == rank]) for rank in {said["rank"] for said in trainers}}
    workers = _workers(journal, trainers, phases, windows, origin)
    trainer_times = [_trainer_time(journal, said, windows[said["rank"]], origin) for said in trainers]
    series = list(sampler.recorded) if sampler else []
    seconds = _length_s(steps, trainer_times)
    recording = Recording(
        script=script or Script(argv=list(argv), cwd=str(Path.cwd()), python=sys.executable),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        feedline=_feedline_version(),
        host=describe_host(),
        loaders=loaders,
        compute=_compute(trainers, steps, phases),
        steps=steps,
        passes=[one for said in trainers for one in _passes(said)],
        optimizer_steps=max((said.get("optimizer_steps", 0) for said in trainers), default=0),
        warm_up=WarmUp(rule=WARM_UP_RULE, steps=sum(step.warm_up for step in steps)),
        workers=workers,
        trainers=trainer_times,
        series=series,
        gpus=over_steps(sampler.gpus, series, steps) if sampler else [],
        gpu_note=sampler.gpu_note if sampler else "no GPU numbers: resources were not sampled",
        legs=diagnostic.legs(journal),
        sample_paths=_paths(journal, trainers),
        lines=diagnostic.lines(journal),
        overhead=overhead(journal, trainers, sampler, seconds),
        notes=_notes(journal, trainers, steps, loaders),
    )
    return replace(recording, costs=costs(recording))


def _all_steps(
    trainers: list[dict[str, Any]], rows: dict[int, list[StepRow]], phases: "Phases", origin: float
) -> list[Step]:
    steps = [
        step
        for said in trainers
        for step in _steps(rows[said["pid"]], said.get("rank", 0), phases, _loaders_of(said), origin)
    ]
    return sorted(steps, key=lambda one: (one.rank, one.start_s))


def _length_s(steps: list[Step], trainers: list[TrainerTime]) -> float:
    ends_s = [step.start_s + step.duration_s for step in steps] or [one.seconds for one in trainers]
    return max(ends_s, default=0.0)


def _feedline_version() -> str:
    try:
        return version("feedline")
    except PackageNotFoundError:
        return ""


# --- who was there ------------------------------------------------------------------------------------


def is_trainer(said: dict[str, Any]) -> bool:
    """Whether a process iterated a loader or stepped an optimiser."""
    return bool(said.get("loaders") or said.get("optimizer_steps"))


def _trainers(journal: Journal) -> list[dict[str, Any]]:
    """By rank."""
    said = [one for one in journal.all("trainer-") if is_trainer(one)]
    return sorted(said, key=lambda one: (one.get("rank", 0), one["pid"]))


def _step_rows(journal: Journal, pid: int) -> list[StepRow]:
    return journal.rows(f"steps-{pid}", StepRow)


def _loaders_of(said: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {one["id"]: one for one in said.get("loaders", [])}


Phases = dict[tuple[int, int, int], Phase]
"""(pid, loader, epoch) -> phase."""


def _phases(trainers: list[dict[str, Any]], rows: dict[int, list[StepRow]]) -> Phases:
    """A pass is training when a backward pass or an optimiser step ran inside it. A run that trains nowhere is all
    training: it is the loop the user asked about."""
    trained: dict[tuple[int, int, int], bool] = defaultdict(bool)
    for pid, found in rows.items():
        for row in found:
            trained[pid, row.loader, row.epoch] |= row.trained
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


def _compute(trainers: list[dict[str, Any]], steps: list[Step], phases: Phases) -> Compute:
    if not trainers:
        return Compute()
    facts = trainers[0].get("facts", {})
    known = {one.name for one in fields(Compute)}
    world_size = max((one.get("facts", {}).get("world_size", 1) for one in trainers), default=1)
    measured = [step for step in steps if step.phase == "train" and not step.warm_up]
    seen: dict[str, Any] = {key: value for key, value in facts.items() if key in known}
    seen |= {
        "world_size": max(world_size, len(trainers)),
        "items": sum(step.syncs for step in measured),
        "items_s": sum(step.sync_s for step in measured),
        "item_lines": _item_lines(trainers, phases),
    }
    return Compute(**seen)


def _item_lines(trainers: list[dict[str, Any]], phases: Phases) -> list[str]:
    """Where the training loops synchronise, the most frequent place first."""
    training = {(pid, loader) for (pid, loader, _), phase in phases.items() if phase == "train"}
    counts: Counter[str] = Counter()
    for said in trainers:
        for loader, place, count in said.get("sync_places", []):
            counts[place] += count if (said["pid"], loader) in training else 0
    return [place for place, count in counts.most_common(MOST_ITEM_LINES) if count]


# --- steps --------------------------------------------------------------------------------------------


def _steps(
    rows: list[StepRow], rank: int, phases: Phases, loaders: dict[int, dict[str, Any]], origin: float
) -> list[Step]:
    by_pass: dict[tuple[int, int], list[StepRow]] = defaultdict(list)
    for row in rows:
        by_pass[row.loader, row.epoch].append(row)
    by_key: dict[tuple[int, int], Phase] = {(loader, epoch): phase for (_, loader, epoch), phase in phases.items()}
    found: list[Step] = []
    for (loader, epoch), members in by_pass.items():
        warm = warm_up_steps(loaders.get(loader, {}), epoch, len(members))
        for position, row in enumerate(members):
            step = _step(row, rank, by_key.get((loader, epoch), "other"), origin)
            found.append(replace(step, warm_up=position < warm))
    return found


def _step(row: StepRow, rank: int, phase: Phase, origin: float) -> Step:
    return Step(
        start_s=row.start - origin,
        wait_s=row.got - row.start,
        duration_s=row.end - row.start,
        samples=row.samples,
        phase=phase,
        loader=row.loader,
        epoch=row.epoch,
        rank=rank,
        copy_s=row.copy,
        backward_s=row.backward,
        optimizer_s=row.optimizer,
        pause_s=row.pause,
        sync_s=row.sync,
        syncs=row.syncs,
        starved_s=row.starved,
        bytes=row.bytes,
    )


def _passes(said: dict[str, Any]) -> list[LoaderPass]:
    rows = [PassRow(*values) for values in said.get("passes", [])]
    return [LoaderPass(**row._asdict(), rank=said.get("rank", 0)) for row in rows]


def warm_up_steps(loader: dict[str, Any], epoch: int, batches: int) -> int:
    """`WARM_UP_RULE`: what workers prepared while the model warmed up is handed out faster than they can go on."""
    queued = (loader.get("num_workers") or 0) * (loader.get("prefetch_factor") or 2)
    wanted = queued + 3 if epoch == 0 else 1
    return min(wanted, max(1, batches // 4))


# --- workers and trainers -----------------------------------------------------------------------------


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
    total = RowSum(journal.rows(f"worker-{said['pid']}", TimeRow), windows.get(rank, Windows(())), origin)
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
        rows = journal.rows(f"loading-{said['pid']}-{about['id']}", TimeRow)
        if not rows:
            continue
        total = RowSum(rows, windows, origin)
        total.numbers["cpu_s"] = sum(total.sums["stages_cpu"].values())  # the process's other time is not loading
        one = _worker_time(total, phase=_loader_phase(phases, about["id"]))
        found.append(replace(one, rank=said["rank"], loader=about["id"], pid=said["pid"], in_trainer=True))
    return found


def _worker_time(total: RowSum, *, phase: Phase) -> WorkerTime:
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
    total = RowSum(journal.rows(f"main-{said['pid']}", TimeRow), windows, origin)
    pinning = journal.rows(f"pin-{said['pid']}", TimeRow)
    worked = RowSum(pinning, windows, origin).sums["stages"]
    return TrainerTime(
        rank=said["rank"],
        pid=said["pid"],
        seconds=total.seconds,
        parts=dict(total.sums["stages"]),
        parts_cpu_s=dict(total.sums["stages_cpu"]),
        functions=total.top_functions(),
        cpu_s=total.numbers["cpu_s"],
        main_cpu_s=sum(total.sums["stages_cpu"].values()),
        pin_thread_s=worked["unpickle"] + worked["pin"] if pinning else None,
        ticks=round(total.numbers["ticks"]),
    )


# --- paths and notes ------------------------------------------------------------------------------------


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
    if any(said.get("ended_by") == "running" for said in trainers):
        notes.append("the rate was known well enough before the script ended: it ran on unwatched")
    killed = [said for said in journal.all("worker-") if not said.get("ended")]
    if killed:
        notes.append(
            f"{len(killed)} worker(s) ended without saying so (killed?): counted up to their last half second"
        )
    notes += journal.complaints()
    return list(dict.fromkeys(notes))
