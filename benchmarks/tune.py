"""Finds workers, prefetch and batch size for this machine, model and dataset, in a time budget.

A model proposes, windows decide. Two windows (no worker, one worker) give the costs per sample; the throughput model
predicts all counts of workers. From there on a Gaussian process (`benchmarks.surface`) says after every window what
is known of every setting: the next window goes to the one that may be the best by most, tried or not, until none may
be clearly better than the best that was tried, or the time is over. Windows in which other programs took clearly more
than in most do not count where there are others. Of what cannot be told apart the cheapest is taken.
"""

import json
import math
import shlex
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.grid import Cell, phrase
from feedline.benchmarks.measure.intervals import Estimate, estimate
from feedline.benchmarks.measure.rounds import QUIET_CORES, TRIES, Measure, MeasureError, busyness
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.surface import Known, surface
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_as_asked
from feedline.pipeline.base.settings import PREFETCH, check_limits, limited
from feedline.profiling.explain.predict import all_predictions
from feedline.profiling.record.recording import Compute, Costs, Leg, LoaderSeen, Recording, Script, Step

PROMISING = 0.93
"""Counts of workers predicted within this share of the best are worth a look."""
TIE = 0.01
"""Of settings this close to the best the cheapest is taken."""
HOPE = 1.5
"""Standard deviations by which a setting may be better than is known of it."""
ENOUGH_WINDOWS = 2
"""Of the setting that is chosen."""
WORKERS_TRIED = 9
"""Counts of workers that are looked at, at most, beside those that are predicted to be nearly the best."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    split: Path
    model: str = "mobilenet_v2"
    """The model that will be trained."""
    image_size: int = limited(224, 8)
    """Side of the training images, px."""
    batch_sizes: tuple[int, ...] = limited((32, 64, 128), 1)
    """Batch sizes allowed, the one in the middle tried first; one alone is kept."""
    most_workers: int = 8
    cores: float = 2.0
    device: str = "auto"
    """cpu, cuda or auto."""
    budget_s: float = limited(60.0, 5)
    """Seconds to spend."""
    window_s: float = limited(1.0, 0.2, 3600)
    """Seconds measured per window."""
    warm_up_s: float = 1.0
    """torch's first steps take longer: after 0.5 s loops without workers were measured 4 to 20 % too slow."""

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.batch_sizes:
            raise UsageError("--batch-size: give at least one")

    def subject(self, cell: Cell) -> Subject:
        settings = {**cell.settings, "split": str(self.split), "model": self.model, "image_size": self.image_size,
                    "device": self.device}  # fmt: skip
        depth = cell.settings["num_workers"] * cell.settings["prefetch_factor"]
        return Subject(kind="loader", settings=settings, window_s=self.window_s, warm_up_s=self.warm_up_s,
                       warm_up_batches=depth + 3, warm_up_most_s=4 * self.window_s, least_batches=3)  # fmt: skip


def cell_of(workers: int, batch_size: int, prefetch: int = PREFETCH) -> Cell:
    return Cell(settings={"num_workers": workers, "batch_size": batch_size, "prefetch_factor": prefetch})


def phrase_of(cell: Cell) -> str:
    return ", ".join(phrase(axis, value) for axis, value in cell.settings.items())


@dataclass(kw_only=True)
class Search:
    """What was tried so far."""

    config: TuneConfig
    measure: Measure
    clock: Callable[[], float] = time.monotonic
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """Those that have windows."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Settings that cannot be measured, and why."""
    space: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """All that may be tried."""
    predicted: dict[int, float] = field(default_factory=dict[int, float])
    """samples/s by number of workers, of which only the ratios matter."""
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    @property
    def out_of_time(self) -> bool:
        """One more window, as long as those so far, would go beyond the budget."""
        spent_s, count = self.clock() - self.started_s, sum(map(len, self.windows.values()))
        return spent_s + (spent_s / count if count else 0.0) > self.config.budget_s

    def run(self, cell: Cell) -> Window | None:
        """One window, unless it cannot be measured."""
        try:
            window = self.measure(self.config.subject(cell))
        except MeasureError as error:
            self.failed[phrase_of(cell)] = str(error)
            for known in (self.space, self.cells, self.windows):
                known.pop(cell.key, None)
            return None
        self.cells[cell.key] = cell
        self.windows.setdefault(cell.key, []).append(window)
        return window

    def usual_cores(self) -> float:
        """What other programs take in the quieter quarter of all windows, and a little more."""
        seen = [busyness(window) for windows in self.windows.values() for window in windows]
        return (statistics.quantiles(seen, n=4)[0] if len(seen) > 1 else seen[0]) + QUIET_CORES

    def counted(self, cell: Cell) -> list[Window]:
        """Its windows beside no more than the usual load; its quietest where there is none."""
        windows, usual = self.windows[cell.key], self.usual_cores()
        return [window for window in windows if busyness(window) <= usual] or [min(windows, key=busyness)]

    def rate(self, cell: Cell) -> Estimate:
        return estimate([window.samples_per_s for window in self.counted(cell)])

    def known(self) -> dict[str, Known]:
        """Of every setting, by its key."""
        cells = list(self.space.values())
        seen = {
            number: (math.log(self.rate(cell).value), len(self.counted(cell)))
            for number, cell in enumerate(cells)
            if cell.key in self.windows
        }
        prior = [math.log(self.predicted.get(cell.settings["num_workers"], 1.0)) for cell in cells]
        known = surface([cell.settings for cell in cells], prior, seen)
        return {cell.key: one for cell, one in zip(cells, known, strict=True)}

    def next(self) -> Cell | None:
        """What deserves the next window; None when it is clear which setting is the best."""
        usual = self.usual_cores()
        for cell in self.cells.values():  # of which nothing is known yet but windows beside a burst
            if len(self.windows[cell.key]) < TRIES and busyness(self.counted(cell)[0]) > usual:
                return cell
        known = self.known()
        hopes = {key: one.mean + HOPE * one.deviation for key, one in known.items()}
        best = max(self.cells, key=lambda key: known[key].mean)
        hopeful = max((key for key in self.space if key != best), key=lambda key: hopes[key], default=best)
        if hopes[hopeful] > known[best].mean + TIE:
            return self.space[hopeful]
        return self.cells[best] if len(self.counted(self.cells[best])) < ENOUGH_WINDOWS else None

    def chosen(self) -> Cell:
        """The cheapest of those that tie with the best."""
        known = self.known()
        best = max(self.cells, key=lambda key: known[key].mean)
        tied = [cell for key, cell in self.cells.items() if known[key].mean >= known[best].mean - TIE]
        return min([self.cells[best], *tied], key=lambda cell: cell.cost)


def tune(config: TuneConfig, measure: Measure, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """The record of `feedline tune`: best, tried, and how each came about. Raises MeasureError when nothing runs."""
    search = Search(config=config, measure=measure, clock=clock)
    sizes = config.batch_sizes
    first = sizes[len(sizes) // 2]
    for size in [first, *sorted(size for size in sizes if size != first)]:  # smaller ones take less memory
        inline = search.run(cell_of(0, size))
        one = None if search.out_of_time else search.run(cell_of(1, size))
        if inline is not None and one is not None:
            search.predicted = predicted(config, inline, one)
        if search.cells or search.out_of_time:
            break
    if not search.cells:
        raise MeasureError(next(iter(search.failed.values())))
    tried = list(search.cells.values())
    space = [cell_of(workers, size, prefetch) for workers in counts_of_workers(config.most_workers, search.predicted)
             for size in sizes for prefetch in ((PREFETCH, 2 * PREFETCH) if workers else (PREFETCH,))]  # fmt: skip
    search.space = {cell.key: cell for cell in [*space, *tried] if phrase_of(cell) not in search.failed}
    while not search.out_of_time and (cell := search.next()) is not None:
        search.run(cell)
    return record(search)


def counts_of_workers(most: int, predicted: Mapping[int, float]) -> list[int]:
    """None, all, some in between at equal ratios, and the fewest that are predicted to be nearly the best."""
    spread = {round((most + 1) ** (step / (WORKERS_TRIED - 1))) - 1 for step in range(WORKERS_TRIED)}
    return sorted({*range(min(most, 4) + 1), *spread, *promising(predicted)})


def promising(predicted: Mapping[int, float], most: int = 3) -> list[int]:
    """The fewest workers that are predicted to be nearly the best, and their neighbours."""
    rates = {workers: rate for workers, rate in predicted.items() if workers}
    near = [workers for workers, rate in sorted(rates.items()) if rate >= PROMISING * max(rates.values())]
    return sorted({*near[:most], *(w for w in (near[0] - 1, near[0] + 1) if w in rates)}) if near else []


def predicted(config: TuneConfig, inline: Window, one: Window) -> dict[int, float]:
    """samples/s by number of workers, from a window without workers and one with one worker: that one as a profile of
    it would be; the one without, less its wait, is the ceiling."""
    worker_cpu_s, step_s = one.worker_cpu_s / one.samples, (inline.seconds - inline.wait_s) / inline.samples
    # A worker that never waited shows its wall time per sample; one that did, only its CPU time.
    worked_all_along = one.worker_cpu_s > 0.9 * one.seconds or one.wait_s > 0.2 * one.seconds
    step = Step(start_s=0.0, wait_s=one.wait_s, duration_s=one.samples / one.samples_per_s, samples=one.samples)
    recording = Recording(
        script=Script(argv=["feedline", "tune"]),
        host={"cores": config.cores},
        loaders=[LoaderSeen(id=0, kind="feedline", num_workers=1)],
        compute=Compute(device=config.device),
        steps=[step],
        costs=Costs(
            worker_cpu_s=worker_cpu_s,
            worker_wall_s=one.seconds / one.samples if worked_all_along else worker_cpu_s,
            trainer_cpu_s=max(0.0, inline.trainer_cpu_s / inline.samples - worker_cpu_s),
        ),
        legs=[Leg(name="cached", samples_per_s=[1 / max(1e-9, step_s)])],
    )
    counts = range(2, config.most_workers + 1)
    offered = all_predictions(recording, workers=counts)
    rates = {p.settings["num_workers"]: p.samples_per_s for p in offered if p.settings.keys() == {"num_workers"}}
    return {0: inline.samples_per_s, 1: one.samples_per_s, **{workers: rates[workers] for workers in counts}}


def record(search: Search) -> dict[str, Any]:
    def figures(cell: Cell) -> dict[str, Any]:
        return {**cell.settings, **search.rate(cell).record()}

    chosen = search.chosen()
    tried = sorted(search.cells.values(), key=lambda cell: -search.rate(cell).value)
    rate, top = search.rate(chosen).value, search.rate(tried[0]).value
    more = "" if chosen.key == tried[0].key else f" ({phrase_of(tried[0])} gave {top:,.0f}: no more to speak of)"
    ended = "the time was over" if search.out_of_time else "no other may be clearly better"
    failed = "".join(f" {name} could not be measured: {why}." for name, why in search.failed.items())
    statement = f"{phrase_of(chosen)}: {rate:,.0f} samples/s{more}, of {len(tried)} settings tried; {ended}.{failed}"
    return {
        "best": figures(chosen),
        "tried": [figures(cell) for cell in tried],
        "predicted_by_workers": {str(workers): rate for workers, rate in search.predicted.items() if workers},
        "seconds_used": search.clock() - search.started_s,
        "failed": search.failed,
        "statement": statement,
        "model": search.config.model,
        "image_size": search.config.image_size,
    }


def write_config(path: Path, found: dict[str, Any], split: Path) -> None:
    """For `feedline train --config`: {"options": {name: value}}, and the same as a command line."""
    options = {name: found[name] for name in ("model", "image_size")}
    options |= {name: found["best"][name] for name in ("num_workers", "prefetch_factor", "batch_size")}
    dataset = str(split.parent)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    written = {"dataset": dataset, "options": options, "command": shlex.join(["feedline", "train", dataset, *words])}
    try:
        write_as_asked(path, (json.dumps(written, indent=1) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
