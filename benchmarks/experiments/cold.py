"""Data that is not in memory: feedline and its peers from a cold disk, and from storage of growing latency.

    python -m feedline.benchmarks.experiments.cold IMAGE_FOLDER --work DIR [--peers ffcv webdataset …]
        [--latencies-ms 0 2 20 --bandwidth-mb 60 --rounds 3 --seconds 10 --only "20 ms: feedline" …]

IMAGE_FOLDER: some 12,000 images (`feedline synth DIR --layout folder --images 12000`), as two hours are long enough.
Batches of 64, RandomResizedCrop 224 and flip, uint8, two workers or threads; every figure is a fresh process and at
most one epoch, so that nothing is read twice; rounds visit all cells in random order.

    disk      the work folder's own, the row's files read once and then dropped from the page cache (checked by
              mincore): a virtual disk's host may still have them, without which its rate changes by the minute
    N ms      a file system of the kernel's (tests/lab/slow_files.py) that answers each request N ms later, and gives
              so many MB/s to all of them together; needs root
    memory    the same as `disk` and not dropped

At each latency feedline also reads the same shards over HTTP, from a server on the loopback interface that is as slow
(tests/lab/slow_http.py): as it does by default, shard by shard into an empty cache, and by a request for each sample.

What each storage gives to reads alone is measured in the same rounds. Writes results/cold.json, and cold.html, the
chart of the rate over latency.
"""

import json
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.measure.reads import Piece, in_memory, measure_reads, pieces_of_split
from feedline.benchmarks.peers.environments import PEERS
from feedline.benchmarks.peers.loading import Row, make_inputs, prepared, table_rows, watched
from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_atomically
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.profiling.machine.resources import whole_disks
from feedline.profiling.record import units
from feedline.profiling.render.html import document
from feedline.profiling.render.sections import Curve, Curves, Page, Table, Verdict, section
from feedline.profiling.watch.data_files import drop
from tests.lab.slow_files import mounted, why_not
from tests.lab.slow_http import served

NAMED = ("torchvision_v2", "webdataset_simd", "ffcv", "litdata", "mosaicml")
MEMORY, DISK = "memory", "disk"
GIVES = {
    "feedline": ("reads alone", "256-jpeg"),
    "feedline planes": ("reads alone, planes", "256-planes"),
    "feedline raw 64, 2 workers": ("reads alone, raw 64", "64-raw"),
}
"""By row: what reads alone give there, and whose samples they read."""
WARM = 0.02
"""Share of the looked at pages that may be left in memory."""
LOOKED_AT, TRIES = 200, 3
WINDOW = 4
"""Shards of 16, for the row of shard windows."""
HTTP: dict[str, dict[str, int]] = {
    "feedline over HTTP": {},
    "feedline over HTTP, a request for each sample": {"cache_bytes": 0, "window_shards": 0},
}
ALL_MIXED, MIXED_IN_PART, PIXELS = "JPEG, all samples mixed", "JPEG, mixed in part", "Pixels"
MIXED = ("reads alone", "feedline", "feedline over HTTP, a request for each sample", "ffcv", "torchvision_v2")
Figures = dict[str, Any]


def main() -> None:
    given = options(__doc__, "cold.json", "originals", "--work", peers=NAMED, latencies_ms=(0.0, 2.0, 20.0),
                    bandwidth_mb=60.0, rounds=3, seconds=10.0, only=("",))  # fmt: skip
    work, common = given.work.resolve(), {"batch_size": 64, "workers": 2, "seconds": given.seconds, "cold": True}
    make_inputs(given.originals, work, ["256-jpeg", "256-planes", "64-raw"])
    storages: dict[str, float | None] = {MEMORY: None, DISK: None}
    storages |= {f"{latency:g} ms": latency / 1e3 for latency in given.latencies_ms}

    def wanted(cell: str) -> bool:
        return cell.startswith(tuple(given.only))

    rows = {row.name: row for row in rows_of(given.originals, work, given.peers)}
    ours = {**rows["feedline"].spec, "cache_dir": str(cache_of(work))}
    over_http = {name: replace(rows["feedline"], spec={**ours, **more}) for name, more in HTTP.items()}
    rows = {name: row for name, row in rows.items() if any(wanted(f"{storage}: {name}") for storage in storages)}
    problems = prepared(rows.values(), common)
    cells: dict[str, Callable[[], Figures]] = {}
    for storage, latency_s in storages.items():
        if latency_s is not None:
            place = partial(served_at, work, latency_s, 1e6 * given.bandwidth_mb)
            cells |= {f"{storage}: {name}": partial(measured, place, row, work, common)
                      for name, row in over_http.items()}  # fmt: skip
            if why_not():
                continue
        place = partial(storage_at, work, storage, latency_s, 1e6 * given.bandwidth_mb)
        if storage != MEMORY:
            cells |= {f"{storage}: {name}": partial(gives, place, work, folder) for name, folder in GIVES.values()}
        for name in rows.keys() - problems.keys():
            cells[f"{storage}: {name}"] = partial(measured, place, rows[name], work, common)
    cells = {name: cell for name, cell in cells.items() if wanted(name)}
    by_round = in_rounds(cells, given.rounds, lambda one: one.get("problem") or f"{one['samples_per_s']:,.0f}")
    figures = {name: summary(column(by_round, name)) for name in cells}
    settings = {**common, "bandwidth_bytes_per_s": 1e6 * given.bandwidth_mb, "latency_s": storages,
                "not_measured_here": why_not() or None}  # fmt: skip
    write(given.out, {"settings": settings, "problems": problems, "cells": figures})
    record = json.loads(given.out.read_text())
    show(("samples/s", *storages), table_of(record))
    write_atomically(given.out.with_suffix(".html"), document(cold_page(record)).encode())


def rows_of(originals: Path, work: Path, peers: tuple[str, ...]) -> list[Row]:
    """The shuffles differ: `feedline` and FFCV's random order mix the whole set, the others as far as they say."""
    unknown = set(peers) - PEERS.keys()
    if unknown:
        raise UsageError(f"--peers {sorted(unknown)[0]}: known are {', '.join(PEERS)}")
    tables = {name: table_rows(name, originals, work, peers) for name in ("jpeg", "planes", "raw")}
    rows = [row for row in (*tables["jpeg"], *tables["planes"]) if row.script != "peer_limit.py"]
    rows += [row for row in tables["raw"] if row.name.endswith("2 workers")]
    for row in list(rows):
        if row.name == "feedline":
            rows.append(replace(row, name="feedline, shard windows", spec={**row.spec, "window_shards": WINDOW}))
        elif row.name.startswith("ffcv"):
            rows.append(replace(row, name=f"{row.name}, quasi-random", spec={**row.spec, "order": "QUASI_RANDOM"}))
    return rows


# --- storages -----------------------------------------------------------------------------------------


@contextmanager
def storage_at(
    work: Path, storage: str, latency_s: float | None, bytes_per_s: float, data: Path
) -> Generator[tuple[Path, Callable[[], int]]]:
    """Where the work folder is seen, nothing of `data` (a folder in it) being in memory, and what counts the bytes
    that were read from there."""
    files = [path for path in data.rglob("*") if path.is_file()]
    for path in files:  # nothing under a slow file system shall be slow too; a virtual disk has a cache of its own
        path.read_bytes()
    if latency_s is not None:
        with mounted(work, work.with_name(f"{work.name}-slow"), latency_s=latency_s, bytes_per_s=bytes_per_s) as slow:
            yield slow.path, lambda: slow.counts()["bytes"]
        return
    if storage == DISK:
        make_cold(data, files)
    disks = whole_disks()

    def read_bytes() -> int:
        counters = psutil.disk_io_counters(perdisk=True) or {}
        return sum(of.read_bytes for name, of in counters.items() if name in disks)

    yield work, read_bytes


@contextmanager
def served_at(
    work: Path, latency_s: float, bytes_per_s: float, data: Path
) -> Generator[tuple[str, Callable[[], int]]]:
    """As `storage_at`: the address of the work folder, `data` being in memory here and not in the loader's cache."""
    shutil.rmtree(cache_of(work), ignore_errors=True)
    for path in data.glob("*"):
        path.read_bytes()
    with served(work, latency_s=latency_s, bytes_per_s=bytes_per_s) as slow:
        yield slow.address, lambda: slow.sent_bytes
    shutil.rmtree(cache_of(work), ignore_errors=True)


def cache_of(work: Path) -> Path:
    """Of remote shards."""
    return work.parent / f"cache-of-{work.name}"


def make_cold(data: Path, files: Sequence[Path]) -> None:
    """Raises FeedlineError where the kernel keeps more than a little of it."""
    pieces = [Piece(path, 0, path.stat().st_size) for path in files[:: max(1, len(files) // LOOKED_AT)]]
    note, left = "", None
    for _ in range(TRIES):
        note = drop([str(path) for path in files]).note
        left = in_memory(pieces)
        if left is not None and left <= WARM:
            return
        time.sleep(0.5)  # pages that are on their way somewhere cannot be dropped
    raise FeedlineError(f"{data} is not cold: {note}; {units.percent(left)} of it is in memory")


def data_of(row: Row) -> Path:
    """The folder that the row reads."""
    spec, name = row.spec, row.peer.name if row.peer else ""
    if "split" in spec:
        return Path(spec["split"])
    if name.startswith("webdataset"):
        return Path(spec["shards"][0]).parent
    return Path(spec["folder"] if name.startswith("torchvision") else spec["work"])


def measured(place: Callable[..., Any], row: Row, work: Path, common: Figures) -> Figures:
    """One cell: the row's answer, and the bytes that were read for each of its samples."""
    try:
        with place(data_of(row)) as (seen, read_bytes):
            spec = json.loads(json.dumps(row.spec).replace(str(work), str(seen)))
            before = read_bytes()
            answer = watched(replace(row, spec=spec), common)
            return {**answer, "read_bytes": read_bytes() - before}
    except (FeedlineError, OSError) as error:
        return {"problem": str(error)}


def gives(place: Callable[..., Any], work: Path, folder: str) -> Figures:
    """To reads of the split's samples, and to nothing else."""
    split = work / folder / "train"
    try:
        with place(split) as (seen, _):
            there = seen / split.relative_to(work)
            reads = measure_reads(pieces_of_split(there, read_index(there), read_manifest(there).shard_names))
    except (FeedlineError, OSError) as error:
        return {"problem": str(error)}
    assert reads is not None
    return {"samples_per_s": reads.best_random_bytes_per_s / reads.piece_bytes, "reads": asdict(reads)}


# --- what came of it ----------------------------------------------------------------------------------


def summary(answers: list[Figures]) -> Figures:
    good = [one for one in answers if "problem" not in one]
    if not good:
        return {"problem": answers[0]["problem"]}
    found: Figures = {**spread([one["samples_per_s"] for one in good]), "n": len(good), "answers": good}
    if "first_batch_s" in good[0]:
        found["first_batch_s"] = statistics.median(one["first_batch_s"] for one in good)
        found["read_bytes"] = statistics.median(one["read_bytes"] for one in good)
    return found


def table_of(record: Figures) -> list[tuple[str, ...]]:
    """A row each, with its rate from every storage."""
    storages, cells = record["settings"]["latency_s"], record["cells"]
    reads = [name for name, _ in GIVES.values()]
    names = dict.fromkeys(name.partition(": ")[2] for name in cells)
    ordered = sorted(names, key=lambda name: (name not in reads, not name.startswith("feedline"), name))
    return [(name, *(shown(cells.get(f"{storage}: {name}", {})) for storage in storages)) for name in ordered]


def shown(cell: Figures) -> str:
    return f"{cell['median']:,.0f}" if "median" in cell else "–"


def cold_page(record: Figures) -> Page:
    """The rate over latency, and all figures."""
    storages, table = record["settings"]["latency_s"], table_of(record)
    names: dict[str, list[str]] = {title: [] for title in (PIXELS, ALL_MIXED, MIXED_IN_PART)}
    for name, *_ in table:
        title = PIXELS if "planes" in name or "raw" in name else ALL_MIXED if name in MIXED else MIXED_IN_PART
        names[title].append(name)
    charts = [rates_over_latency(record, title, names[title]) for title in (ALL_MIXED, MIXED_IN_PART, PIXELS)]
    headers = ("samples/s", *storages)
    return Page(
        title="Data that is not in memory",
        verdict=Verdict(
            words=headline(record["cells"], [name for name, latency_s in storages.items() if latency_s is not None]),
            evidence=[reached(record["cells"], storages), f"{record['host']['cpu']}. {record['command']}"],
        ),
        sections=[
            section("The rate over latency", *charts),
            section("Every storage", Table(headers=headers, rows=table, numeric=range(1, len(headers)))),
        ],
        kicker="feedline benchmarks",
    )


def rates_over_latency(record: Figures, title: str, names: Sequence[str]) -> Curves | None:
    latencies_ms = {name: 1e3 * at for name, at in record["settings"]["latency_s"].items() if at is not None}
    curves: list[Curve] = []
    for name in names:
        there = [(at_ms, record["cells"].get(f"{storage}: {name}", {})) for storage, at_ms in latencies_ms.items()]
        known = [(at_ms, cell) for at_ms, cell in there if "median" in cell]
        points = [(at_ms, cell["median"]) for at_ms, cell in known]
        curves += [Curve(name=name, points=points, intervals=[(c["low"], c["high"]) for _, c in known])] * bool(known)
    title = f"{title}, storage of {units.size(record['settings']['bandwidth_bytes_per_s'])}/s"
    spread_over = "range of the rounds"
    whole = Curves(curves=curves, title=title, x_unit="ms a request", y_unit="samples/s", interval=spread_over)
    return whole if curves else None


def headline(cells: Mapping[str, Figures], storages: Sequence[str]) -> str:
    """feedline and the best peer that mixes all samples, on the slowest storage."""
    for storage in reversed(storages):
        rates = {name: cell["median"] for name in MIXED if "median" in (cell := cells.get(f"{storage}: {name}", {}))}
        ours, peers = rates.get("feedline"), {name: rates[name] for name in rates.keys() & PEERS.keys()}
        if ours and peers:
            best = max(peers, key=peers.__getitem__)
            return (
                f"{storage} a request, all samples mixed: feedline {ours:,.0f} samples/s, {best} {peers[best]:,.0f}."
            )
    return "No storage with latency was measured."


def reached(cells: Mapping[str, Figures], storages: Iterable[str]) -> str:
    """What feedline reaches of what can be reached, the slower of its warm rate and the reads alone, by storage."""
    shares: list[str] = []
    for row, (reads, _) in GIVES.items():
        there: list[str] = []
        warm = cells.get(f"{MEMORY}: {row}", {}).get("median")
        for storage in storages:
            rate, most = (cells.get(f"{storage}: {name}", {}).get("median") for name in (row, reads))
            if rate and most and warm and storage != MEMORY:
                there.append(f"{units.percent(rate / min(warm, most))} from {storage}")
        if there:
            shares.append(f"{row} {', '.join(there)}")
    return f"Of what can be reached: {'; '.join(shares)}." if shares else ""


if __name__ == "__main__":
    end_with(main)
