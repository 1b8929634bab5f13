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
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from feedline.benchmarks.grid import flag, phrases
from feedline.benchmarks.measure.intervals import Estimate, estimate
from feedline.benchmarks.measure.rounds import (
    QUIET_CORES,
    TRIES,
    Bench,
    Measure,
    Tried,
    busyness,
    check_devices,
    usual_cores,
)
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.storage_advice import storage_of
from feedline.benchmarks.surface import Posterior, surface
from feedline.benchmarks.variants import find_train
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import refused_as, write_as_asked
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.settings import BATCH_SIZE, IMAGE_SIZE, PREFETCH, check_limits, limited
from feedline.pipeline.base.status_line import status_line
from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.situation import measure
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


class Setting(NamedTuple):
    """What is searched, by the names of `benchmarks.grid`. The smaller of two takes less: workers cost memory, deep
    queues too."""

    num_workers: int
    prefetch_factor: int = PREFETCH
    batch_size: int = BATCH_SIZE


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    split: Path
    model: str = "mobilenet_v2"
    """The model that will be trained."""
    image_size: int = limited(IMAGE_SIZE, 8)
    """Side of the training images, px."""
    batch_sizes: tuple[int, ...] = limited((BATCH_SIZE // 2, BATCH_SIZE, 2 * BATCH_SIZE), 1)
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

    def subject(self, setting: Setting) -> Subject:
        settings = {**setting._asdict(), "split": str(self.split), "model": self.model, "device": self.device,
                    "image_size": self.image_size}  # fmt: skip
        return Subject(kind="loader", settings=settings, window_s=self.window_s, warm_up_s=self.warm_up_s,
                       warm_up_batches=setting.num_workers * setting.prefetch_factor + 3,
                       warm_up_most_s=4 * self.window_s, least_batches=3)  # fmt: skip


def space(config: TuneConfig, workers: Iterable[int]) -> list[Setting]:
    """The whole grid, of these counts of workers."""
    return [
        Setting(num_workers=count, prefetch_factor=prefetch, batch_size=size)
        for count in workers for size in config.batch_sizes
        for prefetch in ((PREFETCH, 2 * PREFETCH) if count else (PREFETCH,))
    ]  # fmt: skip


@dataclass(kw_only=True)
class Search(Tried[Setting]):
    config: TuneConfig
    predicted: dict[int, float] = field(default_factory=dict[int, float])
    """samples/s by number of workers, of which only the ratios matter."""

    def space(self) -> list[Setting]:
        """All that may be tried."""
        settings = space(self.config, counts_of_workers(self.config.most_workers, self.predicted))
        return [setting for setting in dict.fromkeys([*settings, *self.windows]) if setting not in self.failed]

    def usual_cores(self) -> float:
        """What other programs take in the quieter quarter of all windows, and a little more."""
        return usual_cores([window for windows in self.windows.values() for window in windows]) + QUIET_CORES

    def counted(self, setting: Setting) -> list[Window]:
        """Its windows beside no more than the usual load; its quietest where there is none."""
        windows, usual = self.windows[setting], self.usual_cores()
        return [window for window in windows if busyness(window) <= usual] or [min(windows, key=busyness)]

    def rate(self, setting: Setting) -> Estimate:
        return estimate([window.samples_per_s for window in self.counted(setting)])

    def posterior(self) -> dict[Setting, Posterior]:
        """What is known of every setting."""
        settings = self.space()
        prior = [math.log(self.predicted.get(setting.num_workers, 1.0)) for setting in settings]
        seen = {
            number: (math.log(self.rate(setting).value), len(self.counted(setting)))
            for number, setting in enumerate(settings)
            if setting in self.windows
        }
        known = surface([setting._asdict() for setting in settings], prior, seen)
        return dict(zip(settings, known, strict=True))

    def next(self) -> Setting | None:
        """What deserves the next window; None when it is clear which setting is the best."""
        usual = self.usual_cores()
        for setting, windows in self.windows.items():  # of which nothing is known yet but windows beside a burst
            if len(windows) < TRIES and busyness(self.counted(setting)[0]) > usual:
                return setting
        posterior = self.posterior()
        hopes = {setting: of.mean + HOPE * of.deviation for setting, of in posterior.items()}
        best = self.best(posterior)
        hopeful = max((setting for setting in posterior if setting != best), key=hopes.__getitem__, default=best)
        if hopes[hopeful] > posterior[best].mean + TIE:
            return hopeful
        return best if len(self.counted(best)) < ENOUGH_WINDOWS else None

    def best(self, posterior: Mapping[Setting, Posterior]) -> Setting:
        """Of those that were measured."""
        return max(self.windows, key=lambda setting: posterior[setting].mean)

    def chosen(self) -> Setting:
        """The cheapest of those that tie with the best."""
        posterior = self.posterior()
        least = posterior[self.best(posterior)].mean - TIE
        return min(setting for setting in self.windows if posterior[setting].mean >= least)


def tune(
    dataset: Path | str,
    *,
    out: Path | str | None = None,
    on_progress: Callable[..., None] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """`feedline tune` as a function, and its record: `best`, `tried`, `storage`, and how each came about. The door.

    `settings`: fields of TuneConfig. `out`: a file for `feedline train --config`. Raises UsageError, DatasetError;
    MeasureError when nothing runs.
    """
    split, cores = find_train(Path(dataset)), usable_cores()
    given: dict[str, Any] = {"cores": cores, "most_workers": min(16, 2 * cores), **settings}
    given["device"] = check_devices([1], given.get("device", "auto"), [given.get("model", TuneConfig.model)])
    config = TuneConfig(split=split, **given)
    advance, done = on_progress or status_line("tune", "windows"), count(1)
    storage = storage_of(split).record()
    with Bench() as bench:

        def measure(subject: Subject) -> Window:
            window = bench.measure(subject)
            advance(next(done))
            return window

        result = {**searched(config, measure), "storage": storage}
    if out is not None:
        write_config(Path(out), result, split)
    return result


def searched(config: TuneConfig, measure: Measure, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """The record. Raises MeasureError when nothing runs."""
    search = Search(config=config, measure=lambda setting: measure(config.subject(setting)),
                    budget_s=config.budget_s, clock=clock)  # fmt: skip
    sizes = config.batch_sizes
    first = sizes[len(sizes) // 2]
    for size in [first, *sorted(size for size in sizes if size != first)]:  # smaller ones take less memory
        inline = search.run(Setting(num_workers=0, batch_size=size))
        single = None if search.out_of_time else search.run(Setting(num_workers=1, batch_size=size))
        if inline is not None and single is not None:
            search.predicted = predicted(config, inline, single)
        if search.windows or search.out_of_time:
            break
    while search.windows and not search.out_of_time and (setting := search.next()) is not None:
        search.run(setting)
    search.check()
    return record(search)


def counts_of_workers(most: int, predicted: Mapping[int, float]) -> list[int]:
    """None, all, some in between at equal ratios, and the fewest that are predicted to be nearly the best."""
    spread = {round((most + 1) ** (step / (WORKERS_TRIED - 1))) - 1 for step in range(WORKERS_TRIED)}
    return sorted({*range(min(most, 4) + 1), *spread, *promising(predicted)})


def promising(predicted: Mapping[int, float]) -> list[int]:
    """The three fewest workers that are predicted to be nearly the best, and their neighbours."""
    rates = {workers: rate for workers, rate in predicted.items() if workers}
    near = [workers for workers, rate in sorted(rates.items()) if rate >= PROMISING * max(rates.values())]
    return sorted({*near[:3], *(w for w in (near[0] - 1, near[0] + 1) if w in rates)}) if near else []


def predicted(config: TuneConfig, inline: Window, single: Window) -> dict[int, float]:
    """samples/s by number of workers, from a window without workers and one with a single worker: the latter as a
    profile of it would be; the former, less its wait, is the ceiling."""
    worker_cpu_s, step_s = single.worker_cpu_s / single.samples, (inline.seconds - inline.wait_s) / inline.samples
    # A worker that never waited shows its wall time per sample; one that did, only its CPU time.
    worked_all_along = single.worker_cpu_s > 0.9 * single.seconds or single.wait_s > 0.2 * single.seconds
    duration_s = single.samples / single.samples_per_s
    recording = Recording(
        script=Script(argv=["feedline", "tune"]),
        host={"cores": config.cores},
        loaders=[LoaderSeen(id=0, kind="feedline", num_workers=1)],
        compute=Compute(device=config.device),
        steps=[Step(start_s=0.0, wait_s=single.wait_s, duration_s=duration_s, samples=single.samples)],
        costs=Costs(
            worker_cpu_s=worker_cpu_s,
            worker_wall_s=single.seconds / single.samples if worked_all_along else worker_cpu_s,
            trainer_cpu_s=max(0.0, inline.trainer_cpu_s / inline.samples - worker_cpu_s),
        ),
        legs=[Leg(name="cached", samples_per_s=[1 / max(1e-9, step_s)])],
    )
    counts = range(2, config.most_workers + 1)
    offered = all_predictions(measure(recording), workers=counts)
    rates = {p.settings["num_workers"]: p.samples_per_s for p in offered if p.settings.keys() == {"num_workers"}}
    return {0: inline.samples_per_s, 1: single.samples_per_s, **{workers: rates[workers] for workers in counts}}


def record(search: Search) -> dict[str, Any]:
    def figures(setting: Setting) -> dict[str, Any]:
        return {**setting._asdict(), **search.rate(setting).record()}

    def name(setting: Setting) -> str:
        return phrases(setting._asdict())

    chosen = search.chosen()
    tried = sorted(search.windows, key=lambda setting: -search.rate(setting).value)
    rate, top = search.rate(chosen).value, search.rate(tried[0]).value
    more = "" if chosen == tried[0] else f" ({name(tried[0])} gave {top:,.0f}: no more to speak of)"
    ended = "the time was over" if search.out_of_time else "no other may be clearly better"
    failed = {name(setting): why for setting, why in search.failed.items()}
    missing = "".join(f" {setting} could not be measured: {why}." for setting, why in failed.items())
    of = count_of(len(tried), "setting")
    statement = f"{name(chosen)}: {rate:,.0f} samples/s{more}, of {of} tried; {ended}.{missing}"
    return {
        "best": figures(chosen),
        "tried": [figures(setting) for setting in tried],
        "predicted_by_workers": {str(workers): rate for workers, rate in search.predicted.items() if workers},
        "seconds_used": search.clock() - search.started_s,
        "failed": failed,
        "statement": statement,
        "model": search.config.model,
        "image_size": search.config.image_size,
    }


def write_config(path: Path, result: Mapping[str, Any], split: Path) -> None:
    """For `feedline train --config`: {"options": {name: value}}, and the same as a command line."""
    options = {name: result[name] for name in ("model", "image_size")}
    options |= {name: result["best"][name] for name in Setting._fields}
    dataset = str(split.parent)
    words = [word for name, value in options.items() for word in (flag(name), str(value))]
    written = {"dataset": dataset, "options": options, "command": shlex.join(["feedline", "train", dataset, *words])}
    with refused_as(UsageError, f"cannot write {path}"):
        write_as_asked(path, (json.dumps(written, indent=1) + "\n").encode())
