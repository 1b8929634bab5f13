"""What a loader costs beside its rate: memory, the time to the first batch, and what a larger dataset costs.

    python -m feedline.benchmarks.experiments.footprint SPLIT --work DIR  SPLIT: a prepared jpeg split of some 2,000
        samples

    plan      seconds for an epoch's order of 1,281,167 samples
    first     seconds from `Loader(...)` to the first batch, two workers, in fresh processes, torch's import apart
    flat      resident memory of trainer and workers at the end of each of 20 epochs
    pss       proportional memory of eight workers with an index of 1,281,167 samples, after 30 batches
    sizes     CPU and wall µs per sample from 2,000 and 50,000 samples (shards copied), rounds interleaved

Every figure but the plan's is taken in processes of its own. Writes benchmarks/results/footprint.json and prints it.
"""

import argparse
import dataclasses
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.format.manifest import (
    INDEX,
    INDEX_SCHEMA,
    MANIFEST,
    Manifest,
    index_table_bytes,
    read_manifest,
)
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "footprint.json"
IMAGENET = 1_281_167
MEBIBYTE = 1 << 20
EPOCHS = 20


# --- larger datasets from a small one -----------------------------------------------------------------


def enlarge(split: Path, out: Path, samples: int, *, copies: bool) -> Path:
    """A split of `samples` rows made of `split`'s, again and again. With `copies` each repetition has shard files of
    its own, so that its bytes are its own in the page cache; without, all rows point to the same few files."""
    if (out / MANIFEST).exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(split)
    times = math.ceil(samples / manifest.samples)
    infos = [
        dataclasses.replace(shard, name=f"{turn:03d}-{shard.name}")
        for turn in range(times if copies else 1)
        for shard in manifest.shards
    ]
    for info in infos:
        shutil.copy(split / info.name.partition("-")[2], out / info.name)
    (out / INDEX).write_bytes(index_table_bytes(_repeat(split, manifest, times, samples, copies)))
    larger = dataclasses.replace(manifest, samples=samples, shards=infos)
    (out / MANIFEST).write_text(larger.to_json())
    return out


def _repeat(split: Path, manifest: Manifest, times: int, samples: int, copies: bool) -> pa.Table:
    rows = pq.ParquetFile(split / INDEX).read()
    parts: list[pa.Table] = []
    for turn in range(times):
        keys = pa.array([f"{turn:03d}-{key}" for key in rows["key"].to_pylist()])
        shards = [shard + turn * len(manifest.shards) * copies for shard in rows["shard"].to_pylist()]
        part = rows.set_column(rows.schema.get_field_index("key"), "key", keys)
        parts.append(part.set_column(rows.schema.get_field_index("shard"), "shard", pa.array(shards, pa.int32())))
    return pa.concat_tables(parts).slice(0, samples).cast(INDEX_SCHEMA)


# --- probes: each runs in a process of its own --------------------------------------------------------


def first(split: Path, _spec: dict[str, Any]) -> dict[str, Any]:
    from feedline.pipeline.loader import Loader  # with torch: not what is measured

    began_s = time.perf_counter()
    loader = Loader(split, batch_size=64, image_size=224, num_workers=2, rank=0, world_size=1)
    opened_s = time.perf_counter()
    next(iter(loader))
    return {"open_s": opened_s - began_s, "first_batch_s": time.perf_counter() - began_s}


def flat(split: Path, _spec: dict[str, Any]) -> dict[str, Any]:
    from feedline.pipeline.loader import Loader

    loader = Loader(split, batch_size=64, image_size=64, num_workers=2, rank=0, world_size=1)
    trainer, epochs = psutil.Process(), list[list[float]]()
    for _ in range(EPOCHS):
        for _batch in loader:
            pass
        everybody = [trainer, *map(psutil.Process, loader.worker_pids)]
        epochs.append([round(one.memory_info().rss / MEBIBYTE, 1) for one in everybody])
    return {"rss_mib_of_trainer_and_workers_by_epoch": epochs}


def pss(split: Path, _spec: dict[str, Any]) -> dict[str, Any]:
    from feedline.pipeline.loader import Loader

    loader = Loader(split, batch_size=64, image_size=224, num_workers=8, rank=0, world_size=1)
    batches = iter(loader)
    for _ in range(30):
        next(batches)
    each = [_pss_mib(pid) for pid in loader.worker_pids]
    return {"samples": read_manifest(split).samples, "workers_mib": each, "together_mib": round(sum(each), 1)}


def _pss_mib(pid: int) -> float:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def rate(split: Path, spec: dict[str, Any]) -> dict[str, Any]:
    from feedline.pipeline.loader import Loader

    loader = Loader(split, batch_size=64, image_size=224, num_workers=2, rank=0, world_size=1, seed=spec["seed"])
    warm_until_s, taken_s, samples = time.perf_counter() + 1.5, 0.0, 0
    started_s = started_cpu_s = math.inf
    while taken_s < spec["seconds"]:
        for images_NHWC, _labels_N in loader:
            now_s = time.perf_counter()
            if now_s < warm_until_s:
                continue
            if started_s == math.inf:
                started_s, started_cpu_s = now_s, _cpu_s(loader.worker_pids)
                continue
            samples, taken_s = samples + len(images_NHWC), now_s - started_s
            if taken_s >= spec["seconds"]:
                break
    cpu_s = _cpu_s(loader.worker_pids) - started_cpu_s
    return {"samples_per_s": samples / taken_s, "cpu_us_per_sample": 1e6 * cpu_s / samples}


def _cpu_s(workers: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in workers]
    return sum(one.user + one.system for one in times)


PROBES: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {
    "first": first,
    "flat": flat,
    "pss": pss,
    "rate": rate,
}


def apart(probe: str, split: Path, **spec: Any) -> dict[str, Any]:
    """The probe's answer. Raises FeedlineError with its last words."""
    command = [sys.executable, "-m", "feedline.benchmarks.experiments.footprint", str(split), "--probe", probe]
    done = subprocess.run([*command, "--spec", json.dumps(spec)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FeedlineError(f"the probe {probe!r} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# --- the whole ----------------------------------------------------------------------------------------


def plan_s() -> float:
    """The least of five: how long an epoch's order takes."""
    taken: list[float] = []
    for epoch in range(5):
        started_s = time.perf_counter()
        plan = EpochPlan(samples=IMAGENET, seed=0, epoch=epoch, batch_size=256, world_size=4, rank=0,
                         policy="drop", shuffle=True)  # fmt: skip
        plan.batch(0)
        taken.append(time.perf_counter() - started_s)
    return min(taken)


def sizes(small: Path, large: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    found: dict[Path, list[dict[str, Any]]] = {small: [], large: []}
    for number in range(rounds):
        for split in (small, large) if number % 2 else (large, small):
            found[split].append(apart("rate", split, seed=number, seconds=seconds))
    return [{"samples": read_manifest(split).samples, "n": rounds}
            | {f"{name}_{what}": round(take([one[name] for one in figures]), 1)
               for name in ("samples_per_s", "cpu_us_per_sample")
               for what, take in (("median", statistics.median), ("low", min), ("high", max))}
            for split, figures in found.items()]  # fmt: skip


def measure(split: Path, work: Path, rounds: int, seconds: float) -> dict[str, Any]:
    firsts = [apart("first", split)["first_batch_s"] for _ in range(5)]
    huge = enlarge(split, work / "imagenet-rows", IMAGENET, copies=False)
    large = enlarge(split, work / "50000", 50_000, copies=True)
    return {
        "plan_s": round(plan_s(), 3),
        "first_batch_s": {"median": round(statistics.median(firsts), 3), "low": round(min(firsts), 3),
                          "high": round(max(firsts), 3), "n": len(firsts)},
        "flat": apart("flat", split),
        "pss": apart("pss", huge),
        "sizes": sizes(split, large, rounds, seconds),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--probe", choices=PROBES, help=argparse.SUPPRESS)
    parser.add_argument("--spec", type=json.loads, default={}, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, default=RESULT)
    said = parser.parse_args()
    if said.probe:
        print(json.dumps(PROBES[said.probe](said.split, said.spec)))
        return
    if said.work is None:
        parser.error("--work DIR is needed: the larger datasets go there (2 GB)")
    command = "python -m feedline.benchmarks.experiments.footprint SPLIT --work DIR"
    figures = {"command": command, "host": describe_host()} | measure(
        said.split, said.work, said.rounds, said.seconds
    )
    said.result.parent.mkdir(exist_ok=True)
    said.result.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps({name: value for name, value in figures.items() if name != "host"}, indent=1))


if __name__ == "__main__":
    main()
