"""Where a loader's worker spends more than its kernel: each thing that is added, and the trainer's own part.

    python -m feedline.benchmarks.experiments.worker_costs SPLIT [--rounds 7] [--batches 8] [--alone]

SPLIT: a prepared split of some 2,000 samples that the page cache holds. CPU µs per sample of one thread, filling 224
px places by RandomResizedCrop and flip, rounds visiting all cells in an order drawn anew; meanwhile a twin in another
process does the same, as a second worker would (`--alone`: none). Cells: the kernel on bytes in memory into one place
again and again, into one slot, into as many slots as a loader of two workers has; runs of samples in one call there;
reading, without and with checksums; a worker's whole batch, sample by sample and in runs; the trainer's thread
beside two workers; and a whole loader without workers, as it is and without reading ahead (nothing announced, no read
looked at), compared by rounds. Writes results/worker-costs.json.
"""

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import numpy.typing as npt

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.measure.intervals import compare
from feedline.pipeline.base.process import keep_freed_memory
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader import Loader
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.split import PreparedSplit
from feedline.pipeline.workers import ahead, fill
from feedline.pipeline.workers.counters import ROW_BYTES, Clock
from feedline.pipeline.workers.fill import FillSpec, PixelFiller
from feedline.pipeline.workers.memory import shared_columns

PX, BATCH, SLOTS = 224, 64, 11
"""Slots: two workers times a prefetch of four, and three to spare."""
PLACE_BYTES = PX * PX * 3
WHOLE, SILENT = "whole loader, no workers", "whole loader that never reads ahead"
Cell = Callable[[], float]
"""Works through some batches: CPU µs per sample."""


def main() -> None:
    given = options(__doc__, "worker-costs.json", "split", rounds=7, batches=8, alone=False)
    keep_freed_memory()  # as workers do
    cv2.setNumThreads(1)
    made = cells(PreparedSplit(given.split, LoaderConfig()), given.batches)
    measured = {name: cell if given.alone else twin(cell)(cell) for name, cell in made.items()}
    measured["trainer"] = taken(loader(given.split, 2), 2 * given.batches)
    whole, silent = (taken(loader(given.split, 0), given.batches) for _ in range(2))
    measured |= {WHOLE: whole, SILENT: without_ahead()(silent)}
    in_rounds(measured, 1)  # warm-up
    by_round = in_rounds(measured, given.rounds)
    times = {name: spread(column(by_round, name), 2) for name in measured}
    ratio = compare(column(by_round, WHOLE), column(by_round, SILENT)).ratio if given.rounds > 1 else None
    write(given.out, {"alone": given.alone, "n": given.batches * BATCH, "rounds": given.rounds, "px": PX,
                      "load_average": os.getloadavg()[0], "microseconds": times,
                      "reading_ahead": ratio and ratio.record("cpu_ratio")})  # fmt: skip
    show(("CPU µs per sample", "median", "low", "high"), [(name, *one.values()) for name, one in times.items()])
    if ratio is not None:
        words = "CPU time of a sample, with reading ahead by without: {value:.3f} ({low:.3f} to {high:.3f})"
        print(words.format(**vars(ratio)))


def cells(split: PreparedSplit, batches: int) -> dict[str, Cell]:
    slots = np.zeros((SLOTS, BATCH * PLACE_BYTES), np.uint8)
    places = slots.reshape(SLOTS * BATCH, PX, PX, 3)
    labels_N = np.zeros(BATCH, np.int64)
    order = np.random.default_rng(0).permutation(split.manifest.samples)
    fillers = {checks: filler(split, checks) for checks in (False, True)}
    kernel, clock = SampleKernel(split.manifest.codec, Augment(), 0), fillers[False].clock
    data = [fillers[False].read(sample) for sample in order.tolist()]

    def each(work: Callable[[int], object], times: int = batches * BATCH) -> Cell:
        """`work` is given the numbers of samples, or of batches, on and on."""
        numbers = count()
        return timed(lambda: [work(next(numbers)) for _ in range(times)], batches)

    def into(among: int) -> Callable[[int], None]:
        return lambda number: kernel(data[number % len(data)], places[number % among], number, 0, clock)

    def in_runs(number: int, samples: int = 8) -> None:
        for at in range(number * BATCH, (number + 1) * BATCH, samples):
            jobs = [kernel.job(data[one % len(data)], PX, one, 0) for one in range(at, at + samples)]
            place = at % len(places)
            kernel.together([job for job in jobs if job is not None], places[place : place + samples], clock)

    def read(checks: bool) -> Callable[[int], None]:
        def one(number: int) -> None:
            sample = int(order[number % len(order)])
            fillers[checks]._checked[sample] = not checks
            fillers[checks].read(sample)

        return one

    def samples_of(number: int) -> npt.NDArray[np.int64]:
        return np.take(order, range(number * BATCH, (number + 1) * BATCH), mode="wrap")

    def alone(number: int) -> None:
        batch = slots[number % SLOTS].reshape(BATCH, PX, PX, 3)
        fillers[False].one_by_one(
            samples_of(number), labels_N, lambda sample, place: fillers[False]._decode(sample, 0, batch[place]), []
        )

    def together(number: int) -> None:
        fillers[False].fill(samples_of(number), 0, PX, slots[number % SLOTS], labels_N)

    return {
        "kernel into one place": each(into(1)),
        "kernel into one slot": each(into(BATCH)),
        "kernel into all slots": each(into(len(places))),
        "kernel into all slots, runs of 8": each(in_runs, batches),
        "reading": each(read(False)),
        "reading with checksums": each(read(True)),
        "worker, sample by sample": each(alone, batches),
        "worker, in runs": each(together, batches),
    }


def filler(split: PreparedSplit, checksums: bool) -> PixelFiller:
    spec = FillSpec(folder=str(split.folder), shards=split.manifest.shard_names, codec=split.manifest.codec, seed=0,
                    augment=asdict(Augment()), on_bad="raise", checksums=checksums)  # fmt: skip
    clock = Clock(np.zeros(ROW_BYTES // 8, np.int64))
    return PixelFiller(spec, shared_columns(split.memory.view, split.layout), clock)


def timed(work: Callable[[], object], batches: int) -> Cell:
    def cell() -> float:
        started_s = time.thread_time()
        work()
        return round(1e6 * (time.thread_time() - started_s) / (batches * BATCH), 2)

    return cell


@contextmanager
def twin(cell: Cell) -> Generator[None]:
    """Another process does the same meanwhile."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            cell()  # its own copies of the slots: page faults are over now
            os.write(writer, b".")
            while True:
                cell()
        finally:
            os._exit(1)
    os.close(writer)
    os.read(reader, 1)
    try:
        yield
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def loader(split: Path, workers: int) -> Loader:
    return Loader(split, batch_size=BATCH, image_size=PX, num_workers=workers, rank=0, world_size=1)


@contextmanager
def without_ahead() -> Generator[None]:
    """A loader is as one was that knew of no reading ahead."""
    with (
        patch.object(fill, "LOOK_EVERY", 1 << 60),
        patch.object(ahead.Ahead, "hints", lambda *_: []),
        patch.object(ahead.Reach, "told", lambda *_: None),
    ):
        yield


def taken(loader: Loader, batches: int) -> Cell:
    """The thread that takes batches, whether it has workers beside it or makes them itself."""
    state: dict[str, Any] = {"iterator": iter(loader)}

    def take() -> None:
        for _ in range(batches):
            try:
                next(state["iterator"])
            except StopIteration:
                state["iterator"] = iter(loader)

    return timed(take, batches)


if __name__ == "__main__":
    end_with(main)
