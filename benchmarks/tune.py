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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.grid import Cell, cheaper, phrase
from feedline.benchmarks.measure.intervals import Estimate, estimate
from feedline.benchmarks.measure.rounds import QUIET_CORES, TRIES, MeasureError, busyness
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.surface import Known, surface
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_as_asked
from feedline.profiling.explain.predict import all_predictions
from feedline.profiling.record.recording import Compute, Costs, Leg, LoaderSeen, Recording, Script, Step

PROMISING = 0.93
"""Counts of workers foretold within this share of the best are worth a look."""
TIE = 0.01
"""Of settings this close to the best the cheapest is taken."""
HOPE = 1.5
"""Standard deviations by which a setting may be better than is known of it."""
ENOUGH_WINDOWS = 2
"""Of the setting that is chosen."""
WORKERS_TRIED = 9
"""Counts of workers that are looked at, at most, beside those that are foretold to be nearly the best."""

Measure = Callable[[Subject], Window]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    split: Path
    model: str = "mobilenet_v2"
    """The model that will be trained."""
    image_size: int = 224
    """Side of the training images, px."""
    batch_sizes: tuple[int, ...] = (32, 64, 128)
    """Batch sizes allowed, the one in the middle tried first; one alone is kept."""
    most_workers: int = 8
    cores: float = 2.0
    device: str = "auto"
    """cpu, cuda or auto."""
    budget_s: float = 60.0
    """Seconds to spend."""
    window_s: float = 1.0
    """Seconds measured per window."""
    warm_up_s: float = 1.0
    """torch's first steps take longer: after 0.5 s loops without workers were measured 4 to 20 % too slow."""

    def __post_init__(self) -> None:
        if self.budget_s < 5:
            raise UsageError(f"--budget {self.budget_s:g}: at least 5 s, a window takes about 2")
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise UsageError("--batch-size: give at least one, each at least 1")


@dataclass(kw_only=True)
class Search:
    """What was tried so far."""

    config: TuneConfig
    measure: Measure
    clock: Clock = time.monotonic
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """Those that have windows."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Settings that cannot be measured, and why."""
    space: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """All that may be tried."""
    foretold: dict[int, float] = field(default_factory=dict[int, float])
    """samples/s by number of workers, of which only the ratios matter."""
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def ended(self) -> str:
        """Why the search ended."""
        return "the time was over" if self.out_of_time else "no other may be clearly better"

    @property
    def out_of_time(self) -> bool:
        """One more window, as long as those so far, would go beyond the budget."""
        spent, count = self.clock() - self.started, sum(map(len, self.windows.values()))
        return spent + (spent / count if count else 0.0) > self.config.budget_s

    def rate(self, cell: Cell) -> Estimate:
        return estimate([window.samples_per_s for window in self.counted(cell)])

    def counted(self, cell: Cell) -> list[Window]:
        """Its windows beside no more than the usual load; its quietest where there is none."""
        windows = self.windows[cell.key]
        return [one for one in windows if busyness(one) <= self.usual_cores] or [min(windows, key=busyness)]

    @property
    def usual_cores(self) -> float:
        """What other programs take in the quieter quarter of all windows, and a little more."""
        seen = sorted(busyness(one) for windows in self.windows.values() for one in windows)
        return (statistics.quantiles(seen, n=4)[0] if len(seen) > 1 else seen[0]) + QUIET_CORES

    def disturbed(self) -> list[Cell]:
        """Cells of which nothing is known yet but windows beside a burst."""
        cells = self.cells.values()
        return [one for one in cells if len(self.windows[one.key]) < TRIES and not self.is_known(one)]

    def is_known(self, cell: Cell) -> bool:
        return busyness(self.counted(cell)[0]) <= self.usual_cores

    def known(self) -> dict[str, Known]:
        """Of every setting, by its key."""
        cells = list(self.space.values())
        seen = {
            number: (math.log(self.rate(cell).value), len(self.counted(cell)))
            for number, cell in enumerate(cells)
            if cell.key in self.windows
        }
        prior = [math.log(self.foretold.get(cell.settings["num_workers"], 1.0)) for cell in cells]
        found = surface([cell.settings for cell in cells], prior, seen)
        return {cell.key: one for cell, one in zip(cells, found, strict=True)}

    def best(self, known: Mapping[str, Known]) -> Cell:
        return max(self.cells.values(), key=lambda cell: known[cell.key].mean)

    def next(self) -> Cell | None:
        """What deserves the next window; None when it is clear which setting is the best."""
        if again := self.disturbed():
            return again[0]
        known = self.known()
        best = self.best(known)
        hopeful = max(
            (cell for cell in self.space.values() if cell.key != best.key),
            key=lambda cell: known[cell.key].mean + HOPE * known[cell.key].deviation,
            default=best,
        )
        hope = known[hopeful.key].mean + HOPE * known[hopeful.key].deviation
        if hope > known[best.key].mean + TIE:
            return hopeful
        return best if len(self.counted(best)) < ENOUGH_WINDOWS else None

    def chosen(self) -> Cell:
        """The cheapest of those that tie with the best."""
        known = self.known()
        found = self.best(known)
        least = known[found.key].mean - TIE
        for cell in self.cells.values():
            if known[cell.key].mean >= least and cheaper(cell, found):
                found = cell
        return found

    def run(self, workers: int, batch_size: int, prefetch: int = 2, *, again: bool = False) -> Window | None:
        """One window, unless the time is over, it was measured already, or it cannot be measured."""
        cell = Cell(settings={"num_workers": workers, "batch_size": batch_size, "prefetch_factor": prefetch})
        if self.out_of_time or (cell.key in self.cells and not again):
            return None
        try:
            window = self.measure(self._subject(cell))
        except MeasureError as error:
            self.failed[phrase_of(cell)] = str(error)
            for known in (self.space, self.cells, self.windows):
                known.pop(cell.key, None)
            return None
        self.cells[cell.key] = cell
        self.windows.setdefault(cell.key, []).append(window)
        return window

    def _subject(self, cell: Cell) -> Subject:
        config = self.config
        settings = {
            **cell.settings, "split": str(config.split), "model": config.model, "image_size": config.image_size,
            "device": config.device,
        }  # fmt: skip
        depth = int(cell.settings["num_workers"]) * int(cell.settings["prefetch_factor"])
        return Subject(
            kind="loader", settings=settings, window_s=config.window_s, warm_up_s=config.warm_up_s,
            warm_up_batches=depth + 3, warm_up_most_s=4 * config.window_s, least_batches=3,
        )  # fmt: skip


def tune(config: TuneConfig, measure: Measure, clock: Clock = time.monotonic) -> dict[str, Any]:
    """The record of `feedline tune`: best, tried, and how each came about. Raises MeasureError when nothing runs."""
    search = Search(config=config, measure=measure, clock=clock)
    inline, one = None, None
    for batch in in_turn(config.batch_sizes):
        inline, one = search.run(0, batch), search.run(1, batch)
        if search.cells:
            break
    else:
        raise MeasureError(next(iter(search.failed.values())))
    search.foretold = predicted(config, inline, one)
    space = {cell.key: cell for cell in settings_of(config, search.foretold)} | search.cells
    search.space = {key: cell for key, cell in space.items() if phrase_of(cell) not in search.failed}
    while not search.out_of_time and (cell := search.next()) is not None:
        settings = cell.settings
        search.run(settings["num_workers"], settings["batch_size"], settings["prefetch_factor"], again=True)
    return record(search)


def in_turn(batch_sizes: Sequence[int]) -> list[int]:
    """The one in the middle first, then the smaller ones, which take less memory."""
    middle = batch_sizes[len(batch_sizes) // 2]
    return [middle, *sorted(size for size in batch_sizes if size != middle)]


def settings_of(config: TuneConfig, foretold: Mapping[int, float]) -> list[Cell]:
    """What may be tried: a few counts of workers, every batch size, shallow and deep queues."""
    return [
        Cell(settings={"num_workers": workers, "batch_size": batch, "prefetch_factor": prefetch})
        for workers in counts_of_workers(config.most_workers, foretold)
        for batch in config.batch_sizes
        for prefetch in ((2, 4) if workers else (2,))
    ]


def counts_of_workers(most: int, foretold: Mapping[int, float]) -> list[int]:
    """None, all, some in between at equal ratios, and the fewest that are foretold to be nearly the best."""
    spread = {round((most + 1) ** (step / (WORKERS_TRIED - 1))) - 1 for step in range(WORKERS_TRIED)}
    near = promising(foretold)
    return sorted({*range(min(most, 4) + 1), *spread, *near})


def predicted(config: TuneConfig, inline: Window | None, one: Window | None) -> dict[int, float]:
    """samples/s by number of workers, from a window without workers and one with one worker."""
    if inline is None or one is None:
        return {}
    others = all_predictions(as_recording(config, inline, one), workers=range(2, config.most_workers + 1))
    rates = {p.settings["num_workers"]: p.samples_per_s for p in others if p.settings.keys() == {"num_workers"}}
    asked = {workers: rates[workers] for workers in range(2, config.most_workers + 1)}
    return {0: inline.samples_per_s, 1: one.samples_per_s} | asked


def as_recording(config: TuneConfig, inline: Window, one: Window) -> Recording:
    """The window with one worker, as a profile of it would be; the one without, less its wait, is the ceiling."""
    worker_cpu_s, step_s = one.worker_cpu_s / one.samples, (inline.seconds - inline.wait_s) / inline.samples
    # A worker that never waited shows its wall time per sample; one that did, only its CPU time.
    worked_all_along = one.worker_cpu_s > 0.9 * one.seconds or one.wait_s > 0.2 * one.seconds
    trainer_cpu_s = max(0.0, inline.trainer_cpu_s / inline.samples - worker_cpu_s)
    step = Step(start_s=0.0, wait_s=one.wait_s, duration_s=one.samples / one.samples_per_s, samples=one.samples)
    return Recording(
        script=Script(argv=["feedline", "tune"]),
        host={"cores": config.cores},
        loaders=[LoaderSeen(id=0, kind="feedline", num_workers=1)],
        compute=Compute(device=config.device),
        steps=[step],
        costs=Costs(
            worker_cpu_s=worker_cpu_s,
            worker_wall_s=one.seconds / one.samples if worked_all_along else worker_cpu_s,
            trainer_cpu_s=trainer_cpu_s,
        ),
        legs=[Leg(name="cached", samples_per_s=[1 / max(1e-9, step_s)])],
    )


def promising(foretold: Mapping[int, float], most: int = 3) -> list[int]:
    """The fewest workers that are predicted to be nearly the best, and their neighbours upwards."""
    some = {workers: rate for workers, rate in foretold.items() if workers}
    if not some:
        return []
    top = max(some.values())
    near = [workers for workers, rate in sorted(some.items()) if rate >= PROMISING * top]
    return sorted({*near[:most], *[w for w in (near[0] - 1, near[0] + 1) if w in some]})


def record(search: Search) -> dict[str, Any]:
    chosen = search.chosen()
    tried = sorted(search.cells.values(), key=lambda cell: -search.rate(cell).value)
    return {
        "best": {**chosen.settings, **_figures(search.rate(chosen))},
        "tried": [{**cell.settings, **_figures(search.rate(cell))} for cell in tried],
        "predicted_by_workers": {str(workers): rate for workers, rate in search.foretold.items() if workers},
        "seconds_used": search.clock() - search.started,
        "failed": search.failed,
        "statement": statement(search, chosen, tried),
        "model": search.config.model,
        "image_size": search.config.image_size,
    }


def _figures(rate: Estimate) -> dict[str, Any]:
    return {"samples_per_s": rate.value, "low": rate.low, "high": rate.high, "n": rate.n}


def statement(search: Search, chosen: Cell, tried: Sequence[Cell]) -> str:
    words = phrase_of(chosen)
    rate, top = search.rate(chosen), search.rate(tried[0])
    more = (
        "" if chosen.key == tried[0].key else f" ({phrase_of(tried[0])} gave {top.value:,.0f}: no more to speak of)"
    )
    failed = "".join(f" {name} could not be measured: {why}." for name, why in search.failed.items())
    return f"{words}: {rate.value:,.0f} samples/s{more}, of {len(tried)} settings tried; {search.ended}.{failed}"


def phrase_of(cell: Cell) -> str:
    return ", ".join(phrase(axis, value) for axis, value in cell.settings.items())


def write_config(path: Path, found: dict[str, Any], split: Path) -> None:
    """For `feedline train --config`: {"options": {name: value}}, and the same as a command line."""
    best = found["best"]
    options = {
        "model": found["model"], "image_size": found["image_size"], "num_workers": best["num_workers"],
        "prefetch_factor": best["prefetch_factor"], "batch_size": best["batch_size"],
    }  # fmt: skip
    dataset = split.parent
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = shlex.join(["feedline", "train", str(dataset), *words])
    said = {"dataset": str(dataset), "options": options, "command": command}
    try:
        write_as_asked(path, (json.dumps(said, indent=1) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
