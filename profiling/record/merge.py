"""The journal of a run -> a Recording: ranks merged, warm-up marked, workers and trainers summed over training time.

Workers and trainers tell what they did in rows of up to a second. A row counts by the share of its time that lies
inside measured steps of the training loader: start-up, evaluation and checkpoints are not charged to training.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from feedline.pipeline.base.settings import TORCH_PREFETCH
from feedline.pipeline.base.text import count_of
from feedline.profiling.record import diagnostic
from feedline.profiling.record.host import describe_host, package_version
from feedline.profiling.record.journal import MOST_PATHS, OWN_EPOCH, Journal, StepRow, TimeRow
from feedline.profiling.record.lockstep import hand_steps_over
from feedline.profiling.record.measurements import Sampled, scope_of
from feedline.profiling.record.recording import (
    Compute,
    LoaderPass,
    LoaderSeen,
    Phase,
    Recording,
    Script,
    Step,
    ThreadTime,
    WorkerTime,
    train_loader,
)
from feedline.profiling.record.stages import STAGES
from feedline.profiling.record.trainings import About, is_trainer, of_one_training
from feedline.profiling.record.watch_costs import costs, overhead
from feedline.profiling.record.windows import MOST_SIZES, RowSum, Windows, over_steps

ENOUGH_MARKED = 32  # steps on a device that stand for those around them
WARM_UP_RULE = (
    "the first num_workers × prefetch_factor + 3 batches of the first pass over a loader that trains, or of a loop "
    "that asks none itself, and the first batch of every other pass, at most a quarter of the pass; and the first of "
    "another size, whose kernels are chosen anew"
)
MOST_ITEM_LINES = 8
SEEN_READING = 0.01  # share of the workers' time
ALL_READ = 0.5  # of a listed file's bytes, a sample, from which on these files are what is read
Phases = dict[tuple[int, int], Phase]  # (loader, epoch) -> phase


def merge(journal: Journal, *, origin: float, script: Script, sampler: Sampled | None = None) -> Recording:
    """Everything the processes of a run wrote down. `origin` is the clock's reading at second 0."""
    found = sorted(filter(is_trainer, journal.all("trainer-")), key=lambda one: (one["rank"], one["pid"]))
    rows = {trainer["pid"]: _rows(journal, trainer) for trainer in found}
    trainers, notes = of_one_training(found, rows, journal)
    handed_over = hand_steps_over({one["pid"]: rows[one["pid"]] for one in trainers}, trainers)
    legs = diagnostic.legs(journal)
    if handed_over and legs:
        legs = []
        notes.append("the legs are left out: they took the place of a loader that is hardly waited for")
    strangers = {one["pid"] for one in found} - {one["pid"] for one in trainers}
    workers = [one for one in journal.all("worker-") if one.get("trainer") not in strangers]
    anywhere = any(row.trained for one in trainers for row in rows[one["pid"]])
    by_process = {one["pid"]: _phases(rows[one["pid"]], anywhere=anywhere) for one in trainers}
    phases = [item for of_process in by_process.values() for item in of_process.items()]
    by_trainer = {one["pid"]: _steps(one, rows[one["pid"]], by_process[one["pid"]], origin) for one in trainers}
    steps = sorted(chain(*by_trainer.values()), key=lambda step: (step.rank, step.start_s))
    first = trainers[0]["loaders"] if trainers else []  # ranks run the same script
    loaders = [_loader(one, [each for each in workers if each["loader"] == one["id"]], phases) for one in first]
    main = train_loader(loaders, steps)
    training = [step for step in steps if main is not None and step.loader == main.id]
    windows = {one["rank"]: Windows([step for step in training if step.rank == one["rank"]]) for one in trainers}
    times: list[ThreadTime] = []
    for one in trainers:
        anywhere = Windows(sorted(by_trainer[one["pid"]], key=lambda step: step.start_s), every=True)
        total = RowSum(journal.rows(f"main-{one['pid']}", TimeRow), windows[one["rank"]], origin, anywhere)
        times.append(ThreadTime(**total.thread(), rank=one["rank"], pid=one["pid"]))
    series = list(sampler.recorded) if sampler else []
    files = journal.read("files") or {"paths": [], "changing": None}
    started = datetime.now(UTC) - timedelta(seconds=time.perf_counter() - origin)
    ends_s = [step.start_s + step.duration_s for step in steps] or [one.seconds for one in times]
    failed = script.ended_by in ("error", "signal")
    recording = Recording(
        script=script,
        started=started.isoformat(timespec="seconds"),
        seconds=max(ends_s, default=0.0),
        feedline=package_version("feedline") or "",
        host=describe_host(),
        loaders=loaders,
        compute=_compute(trainers, training),
        steps=steps,
        passes=[LoaderPass(**one, rank=trainer["rank"]) for trainer in trainers for one in trainer["passes"]],
        optimizer_steps=max((one["optimizer_steps"] for one in trainers), default=0),
        warm_up=WARM_UP_RULE,
        workers=_worker_times(journal, workers, trainers, by_trainer, phases, windows, origin),
        trainers=times,
        series=series,
        gpus=over_steps(sampler.gpus, series, training) if sampler else [],
        gpu_note=sampler.gpu_note if sampler else "no GPU numbers: resources were not sampled",
        legs=legs,
        sample_paths=[*files["paths"], *chain(*(one.get("paths") or () for one in workers))][:MOST_PATHS],
        changing_files=files["changing"],
        files_bytes=_sum_of_sizes(files["paths"]) if files.get("all") else None,
        lines=diagnostic.lines(journal),
        overhead=overhead(journal, trainers, sampler, max(ends_s, default=0.0)),
        notes=notes + _notes(journal, workers, trainers, steps, loaders, failed=failed),
    )
    recording = replace(recording, costs=costs(recording))
    listed = [path for one in trainers for path in one["paths"]]
    return replace(recording, sample_paths=_with_listed(recording, listed))


def _rows(journal: Journal, trainer: About) -> list[StepRow]:
    """Without what was noted of passes before it was known that another thread than the training one draws them."""
    background = {one["id"] for one in trainer["loaders"] if one.get("background")}
    rows = journal.rows(f"steps-{trainer['pid']}", StepRow)
    optimized = {row.loader for row in rows if row.optimizer_s}
    for row in rows:  # a loader may have been evaluated before the first optimiser stepped
        row.trained = row.trains(optimized)
    return sorted((row for row in rows if row.trained or row.loader not in background), key=lambda row: row.start_s)


def _phases(rows: Sequence[StepRow], *, anywhere: bool) -> Phases:
    """Of one process. A pass is training when a backward pass or an optimiser step ran inside it. A run that trains
    nowhere is all training: it is the loop the user asked about."""
    trained: dict[tuple[int, int], bool] = defaultdict(bool)
    for row in rows:
        trained[row.loader, row.epoch] |= row.trained
    return {key: "train" if done or not anywhere else "eval" for key, done in trained.items()}


def _loader(about: About, workers: Iterable[About], phases: Iterable[tuple[tuple[int, int], Phase]]) -> LoaderSeen:
    keeps = Counter[str]()
    for one in (about, *workers):
        keeps.update(one.get("keeps"))
    seen: About = about | {"keeps": dict(keeps)}
    return LoaderSeen(**seen, phase=_loader_phase(phases, about["id"]))


def _loader_phase(phases: Iterable[tuple[tuple[int, int], Phase]], loader: int) -> Phase:
    mine = {phase for (number, _), phase in phases if number == loader}
    return "train" if "train" in mine else "eval" if mine else "other"


def _compute(trainers: Sequence[About], steps: Sequence[Step]) -> Compute:
    """Settings as the lowest rank saw them; ranks run the same script. `steps` are the training loader's."""
    if not trainers:
        return Compute()
    measured = [step for step in steps if step.measured]
    places: Counter[str] = Counter()
    for loader, place, count in (row for one in trainers for row in one["sync_places"]):
        places[place] += count if measured and loader == measured[0].loader else 0
    facts = trainers[0]["facts"] | {
        "world_size": len({one["rank"] for one in trainers}),
        "items": sum(step.syncs for step in measured),
        "items_s": sum(step.sync_s for step in measured),
        "item_lines": [place for place, count in places.most_common(MOST_ITEM_LINES) if count],
    }
    return Compute(**facts)


def _steps(trainer: About, rows: Sequence[StepRow], phases: Phases, origin: float) -> list[Step]:
    """With `WARM_UP_RULE`: what workers prepared while the model warmed up is handed out faster than they can go
    on."""
    by_pass: dict[tuple[int, int], list[StepRow]] = defaultdict(list)
    for row in rows:
        by_pass[row.loader, row.epoch].append(row)
    queued = {
        one["id"]: (one["num_workers"] or 0) * (one["prefetch_factor"] or TORCH_PREFETCH)
        for one in trainer["loaders"]
    }
    steps: list[Step] = []
    sizes: dict[int, dict[int, StepRow]] = defaultdict(dict)  # by loader, the first of each size
    for row in rows:
        sizes[row.loader].setdefault(row.samples, row)
    count = Counter(row.loader for row in rows)
    first: dict[int, int] = {}  # not that of a batch which is looked at before the loop
    for loader, epoch in sorted(by_pass, key=lambda key: (phases[key] != "train", key[1])):
        first.setdefault(loader, epoch)
    for (loader, epoch), members in by_pass.items():
        # A killed process may not have told of its last loader; `next(iter(loader))` makes passes of one batch.
        begins = epoch in (first[loader], OWN_EPOCH)
        wanted = queued.get(loader, 0) + 3 if begins else 1 if len(members) > 1 else 0
        warm = min(wanted, max(1, len(members) // 4))
        new = list(sizes[loader].values())[1:] if len(sizes[loader]) <= MOST_SIZES < count[loader] - warm else []
        for position, row in enumerate(members):
            cold = position < warm or any(row is one for one in new)
            row.start_s -= origin
            seen = {name: value for name, value in vars(row).items() if name not in ("trained", "own_wait_s")}
            seen["epoch"] = max(0, epoch)  # rows of its own have no pass
            step = Step(**seen, phase=phases[loader, epoch], rank=trainer["rank"], warm_up=cold)
            steps.append(step)
    return _with_marks(steps)


def _with_marks(steps: Sequence[Step]) -> list[Step]:
    """Of short steps only some, chosen by lot, were marked on the device (`watch.cuda`). The others get what those of
    their kind have on average, about as many before them as behind: starvation for each second that the loop waits,
    all else for each step."""
    kinds: dict[tuple[int, Phase, bool], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        kinds[step.loader, step.phase, step.warm_up].append(number)
    filled = list(steps)
    for stretch in (each for members in kinds.values() for each in _stretches(steps, members)):
        marked = [steps[number] for number in stretch if steps[number].starved_s is not None]
        if not marked:
            continue
        waited_s = sum(step.wait_s for step in marked)
        starving = sum(min(step.starved_s or 0.0, step.wait_s) for step in marked) / waited_s if waited_s else 0.0
        copy_s, idle_s = _mean([step.copy_s for step in marked]), _mean([step.idle_s for step in marked])
        for number in stretch:
            step = steps[number]
            if step.starved_s is None:
                filled[number] = replace(step, starved_s=step.wait_s * starving, copy_s=copy_s, idle_s=idle_s)
    return filled


def _stretches(steps: Sequence[Step], members: Sequence[int]) -> list[list[int]]:
    """Of these, neighbours, ENOUGH_MARKED of them marked or, where they are fewer, all."""
    stretches, marked = [list[int]()], 0
    for number in members:
        stretches[-1].append(number)
        marked += steps[number].starved_s is not None
        if marked == ENOUGH_MARKED:
            stretches.append([])
            marked = 0
    left = stretches.pop() if len(stretches) > 1 else []  # behind the last that has enough
    stretches[-1] += left
    return stretches


def _mean(seconds: Sequence[float | None]) -> float | None:
    """None where none is known; else one that is not is 0."""
    return sum(one or 0.0 for one in seconds) / len(seconds) if any(one is not None for one in seconds) else None


# --- workers and trainers -----------------------------------------------------------------------------


def _worker_times(
    journal: Journal,
    workers: Sequence[About],
    trainers: Sequence[About],
    steps: Mapping[int, Sequence[Step]],
    phases: Sequence[tuple[tuple[int, int], Phase]],
    windows: Mapping[int, Windows],
    origin: float,
) -> list[WorkerTime]:
    """Of worker processes, and of trainers that prepare their data themselves: these make what their own `steps`
    (by process) were given."""
    sources = [(f"worker-{one['pid']}", one, one["loader"], False) for one in workers]
    for one in trainers:
        numbers = range(len(one["loaders"]))
        sources += [(f"loading-{one['pid']}-{loader}", one, loader, True) for loader in numbers]
    times: list[WorkerTime] = []
    for name, about, loader, in_trainer in sources:
        window = windows.get(about["rank"], Windows(()))
        total = RowSum(journal.rows(name, TimeRow), window, origin)
        given = [one for one in steps.get(about["pid"], ()) if one.loader == loader and window.counts(one)]
        seen = total.thread()
        seen["stages"] = dict.fromkeys(STAGES, 0.0) | total.stages
        if in_trainer:  # of its CPU time only that of its looks at loading is loading
            seen["cpu_s"] = sum(total.stages_cpu.values()) or None
        time = WorkerTime(
            **seen,
            worker=0 if in_trainer else about["worker"],
            rank=about["rank"],
            loader=loader,
            pid=about["pid"],
            phase=_loader_phase(phases, loader),
            in_trainer=in_trainer,
            sample_error_s=total.sample_error_s(),
            transforms=dict(total.transforms),
            batches=len(given) if in_trainer else round(total.batches),
            samples=sum(one.samples for one in given) if in_trainer else round(total.samples),
            ended="normally" if in_trainer or about["ended"] else "killed" if killed(journal, about) else "running",
        )
        times += [time] if time.seconds > 0 else []
    return sorted(times, key=lambda time: (time.rank, time.loader, time.worker, time.pid or 0))


def killed(journal: Journal, worker: About) -> bool:
    """By a signal that the script has not sent itself."""
    return journal.has(f"killed-{worker['pid']}")


def scopes(journal: Journal, pids: Iterable[int]) -> dict[int, str]:
    """Of those of the processes that have introduced themselves. Only theirs is read: dead workers may be many."""
    found: dict[int, str] = {}
    for pid in pids:
        if (about := journal.read(f"worker-{pid}") or journal.read(f"trainer-{pid}")) is not None:
            found[pid] = scope_of(about["rank"], about.get("worker"))
    return found


def _with_listed(recording: Recording, listed: Sequence[str]) -> list[str]:
    """The files that were seen open, and those that datasets list, where so much is read that it is these, or the
    workers are seen reading: what maps files reads no bytes."""
    sizes = _sizes(listed[:: max(1, len(listed) // 16)])
    much = bool(sizes) and (recording.costs.read_bytes or 0.0) > ALL_READ * sum(sizes) / len(sizes)
    reading_s = sum(one.stages.get("read", 0.0) for one in recording.workers)
    read = much or reading_s > SEEN_READING * sum(one.seconds for one in recording.workers)
    return list(dict.fromkeys([*recording.sample_paths, *(listed if read else ())]))[:MOST_PATHS]


def _sizes(paths: Iterable[str]) -> list[int]:
    sizes: list[int] = []
    for path in paths:
        with suppress(OSError):  # they may be gone, and their file system with them
            sizes.append(Path(path).stat().st_size)
    return sizes


def _sum_of_sizes(paths: Sequence[str]) -> float | None:
    sizes = _sizes(paths)
    return sum(sizes) if sizes and len(sizes) == len(paths) else None


def _notes(
    journal: Journal,
    workers: Sequence[About],
    trainers: Sequence[About],
    steps: Sequence[Step],
    loaders: Sequence[LoaderSeen],
    *,
    failed: bool,
) -> list[str]:
    notes: list[str] = []
    if not loaders and failed:
        notes.append("the script ended before a DataLoader was iterated")
    elif not loaders:
        notes.append(
            "no DataLoader was iterated: the wait for data, workers and stages cannot be told; "
            "draw from torch's DataLoader, or another that is known here"
        )
    elif not any(step.measured for step in steps):
        notes.append("too few batches to leave a warm-up out: run longer (no --steps, or a larger one)")
    if any(one["ended_by"] == "running" for one in trainers):
        notes.append("enough was seen before the script ended: it ran on unwatched")
    seen = len({one["rank"] for one in trainers})
    ranks = max((one["facts"]["world_size"] for one in trainers), default=1)
    if 0 < seen < ranks:
        these = "it" if seen == 1 else "these"
        notes.append(f"{seen} of {ranks} ranks were seen: rates and predictions are of {these}")
    if count := sum(killed(journal, worker) for worker in workers):
        notes.append(f"{count_of(count, 'worker')} killed by a signal: counted up to their last second")
    told, used = {worker["loader"] for worker in workers}, {step.loader for step in steps}
    if any(one.num_workers and one.kind == "torch" and one.id in used - told for one in loaders):
        notes.append(
            "a loader's workers told nothing, they were there before: make it anew to see them (persistent_workers)"
        )
    notes += journal.complaints()
    return list(dict.fromkeys(notes))
