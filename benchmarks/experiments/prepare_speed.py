"""How fast `prepare` is, against the sum of its parts, a bare process pool, and itself at other sizes.

    python -m feedline.benchmarks.experiments.prepare_speed kernel  the pure kernel against its parts, one core
    python -m feedline.benchmarks.experiments.prepare_speed job SOURCE  the Spark job against a bare two-process pool
    python -m feedline.benchmarks.experiments.prepare_speed engines SOURCE  Spark, processes, a bare pool: whole jobs
    python -m feedline.benchmarks.experiments.prepare_speed plan  1,281,167 descriptors: seconds and memory

`--rounds 9`; `--classes N` takes only so many classes of SOURCE (raw images, as for feedline prepare). Everything
that is compared is measured in the same run, in rounds, in an order drawn anew for each round; the figure is the
median over rounds of the ratio within a round. Results go to benchmarks/results/prepare-*.json.
"""

import io
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from feedline.benchmarks.experiments.harness import apart, column, end_with, in_rounds, options, spread, write
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import sync_folder
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.format.shard_tar import ShardWriter
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import BadImage, Output, Preparer, geometry
from feedline.preprocess.plan import make_plan
from feedline.preprocess.sources.base import Columns
from feedline.preprocess.sources.reading import Where, read_all

SIZE_PX = (500, 375)
FORM = Output()
WORDS = f"short side {FORM.size_px}, {FORM.filter}, q{FORM.quality}"
IMAGES = 48
IMAGENET = 1_281_167


def main() -> None:
    given = options(__doc__, "", "what", "source?", classes=int, rounds=9)
    what = str(given.what)
    if what in ("job", "engines") and given.source is None:
        raise UsageError(f"{what} needs a SOURCE: feedline synth makes one")
    cells: dict[str, Callable[[], dict[str, Any]]] = {
        "kernel": lambda: kernel(given.rounds),
        "job": lambda: job(str(given.source), given.classes, given.rounds),
        "engines": lambda: engines(str(given.source), given.classes, given.rounds),
        "plan": plan,
    }
    if what not in cells:
        raise UsageError(f"{what!r} is none of {', '.join(cells)}")
    figures = cells[what]()
    name = f"prepare-{what}-{figures['n']}.json" if given.source else f"prepare-{what}.json"
    write(given.out / name, figures)
    print(json.dumps({key: value for key, value in figures.items() if key != "by_round"}, indent=1))


def low_and_high(key: str, ratios: Sequence[float]) -> dict[str, float]:
    found = spread(ratios, 4)
    return {key: found["median"], "low": found["low"], "high": found["high"]}


# --- the kernel ---------------------------------------------------------------------------------------


def kernel(count: int) -> dict[str, Any]:
    """Seconds per image of the kernel and of decode, resize and encode alone, on one core."""
    originals = photographs(IMAGES)
    cells = parts(originals)
    in_rounds(cells, 1)  # warm-up
    by_round = in_rounds(cells, count)
    micro = {name: round(1e6 * spread(column(by_round, name))["median"], 1) for name in cells}
    together = micro["decode"] + micro["resize"] + micro["encode"]
    ratios = [(one["decode"] + one["resize"] + one["encode"]) / one["kernel"] for one in by_round]
    return {
        "what": f"{SIZE_PX[0]}x{SIZE_PX[1]} q95 -> {WORDS} {FORM.subsampling} with restart markers; one core",
        "mean_bytes_in": round(float(np.mean([len(data) for data in originals]))),
        "n": len(originals),
        "rounds": count,
        "warm_up_rounds": 1,
        "microseconds": micro,
        "samples_per_s": {"kernel": round(1e6 / micro["kernel"]), "parts": round(1e6 / together)},
        **low_and_high("parts_over_kernel", ratios),
        "by_round": by_round,
    }


def photographs(count: int) -> list[bytes]:
    """Crops of real photographs with sensor-like noise, at ImageNet's typical size and bytes."""
    from skimage import data as shipped

    pictures = [Image.fromarray(picture) for picture in (shipped.chelsea(), shipped.coffee(), shipped.astronaut())]
    rng = np.random.default_rng(0)
    made: list[bytes] = []
    for number in range(count):
        picture = pictures[number % len(pictures)]
        side = int(rng.integers(200, min(picture.size)))
        left, top = (int(rng.integers(0, limit - side + 1)) for limit in picture.size)
        part = picture.resize(SIZE_PX, Image.Resampling.BICUBIC, box=(left, top, left + side, top + side * 3 // 4))
        noisy = np.asarray(part).astype(np.int16) + np.rint(rng.normal(0, 6, (SIZE_PX[1], SIZE_PX[0], 3)))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=95)
        made.append(file.getvalue())
    return made


def parts(originals: Sequence[bytes]) -> dict[str, Callable[[], float]]:
    """Each part on its own, with its input ready in the form that costs it least; and all of it."""
    buffer = np.empty(SIZE_PX[0] * SIZE_PX[1] * 4, np.uint8)
    raw = [np.array(simplejpeg.decode_jpeg(data, "RGBX")) for data in originals]
    images = [Image.frombuffer("RGBX", SIZE_PX, one, "raw", "RGBX", 0, 1) for one in raw]
    width, height, box = geometry(*SIZE_PX, FORM)
    small = [image.resize((width, height), Image.Resampling.BICUBIC, box=box) for image in images]

    def each(items: Sequence[Any], work: Callable[[Any], object]) -> float:
        started_s = time.perf_counter()
        for item in items:
            work(item)
        return (time.perf_counter() - started_s) / len(items)

    return {
        "decode": partial(each, originals, lambda data: simplejpeg.decode_jpeg(data, "RGBX", buffer=buffer)),
        "resize": partial(each, images, lambda one: one.resize((width, height), Image.Resampling.BICUBIC, box=box)),
        "encode": partial(each, small, lambda one: jpeg.encode(one, FORM.quality, FORM.subsampling)),
        "kernel": partial(each, originals, Preparer((FORM,))),
    }


# --- the job ------------------------------------------------------------------------------------------


def job(source: str, classes: int | None, count: int) -> dict[str, Any]:
    """samples/s of the Spark job and of a bare pool of as many processes, Spark's and the pool's start apart."""
    cores = usable_cores()
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        places = where_samples_are(PrepareConfig(source=source, out=folder, classes=classes))
        for _ in read_all(places, {}, {}):  # so that no cell is the one to meet a cold disk
            pass
        cells = {
            "pool": lambda: bare_pool(places, cores, Path(folder) / "pool"),
            "feedline": lambda: spark_job(source, classes, cores, Path(folder) / "out"),
        }
        by_round = in_rounds(cells, count)
    rates = {name: [one["samples_per_s"] for one in column(by_round, name)] for name in cells}
    ratios = [ours / pool for ours, pool in zip(rates["feedline"], rates["pool"], strict=True)]
    return {
        "what": f"{len(places)} images from {Path(source).name}: {WORDS}; {cores} cores; starts apart",
        "n": len(places),
        "rounds": count,
        "warm_up_rounds": 0,
        "samples_per_s": {name: spread(rates[name], 1)["median"] for name in cells},
        **low_and_high("feedline_over_pool", ratios),
        "peak_rss_bytes": max(one["peak_rss_bytes"] for one in column(by_round, "feedline")),
        "by_round": by_round,
    }


def where_samples_are(config: PrepareConfig) -> list[Where]:
    """The same bytes in the same order as the job reads them."""
    return [place for places in samples_by_shard(config) for place in places]


def samples_by_shard(config: PrepareConfig) -> list[list[Where]]:
    from feedline.preprocess.index_source import gather, open_configured

    columns, classes, _ = gather(config, open_configured(config), Path(config.out) / "staging", lambda note: None)
    planned = make_plan(columns, config, classes, "")
    tasks = [planned.task(split, shard) for split in planned.splits for shard in range(split.shards)]
    return [task.where() for task in tasks]


def bare_pool(places: Sequence[Where], cores: int, out: Path) -> dict[str, Any]:
    """A pool that reads, runs the same kernel and writes its files, and does nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    chunks = [(places[start : start + 156], out / f"{start}.bin") for start in range(0, len(places), 156)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(warm, range(cores * 4), 1)
        started_s = time.perf_counter()
        done = sum(pool.imap_unordered(pool_task, chunks))
        seconds = time.perf_counter() - started_s
    shutil.rmtree(out)
    return {"samples_per_s": round(done / seconds, 1), "seconds": round(seconds, 3)}


def warm(_: int) -> None:
    Preparer((FORM,))(photographs(1)[0])


def pool_task(chunk: tuple[Sequence[Where], Path]) -> int:
    places, path = chunk
    prepare_one = Preparer((FORM,))
    with path.open("wb") as file:
        for data in read_all(places, {}, {}):
            file.write(prepare_one(data)[0].data)
    return len(places)


def spark_job(source: str, classes: int | None, cores: int, out: Path) -> dict[str, Any]:
    """As the command runs it, in a process of its own; everything counts but its imports, Spark's start and end."""
    shutil.rmtree(out, ignore_errors=True)
    record: Mapping[str, Any] = apart(prepared, source, out, classes, {"master": f"local[{cores}]"})
    shutil.rmtree(out)
    seconds = record["wall_s"] - record["seconds"]["start"] - record["seconds"]["stop"]
    return {
        "samples": record["output_samples"],
        "samples_per_s": round(record["output_samples"] / seconds, 1),
        "seconds": round(seconds, 3),
        "spark_start_s": record["seconds"]["start"],
        "shards": record["shards"],
        "stage_s": record["stage_s"],
        "peak_rss_bytes": record["peak_rss_bytes"],
    }


def prepared(source: str, out: str, classes: int | None, engine: dict[str, Any]) -> dict[str, Any]:
    from feedline.preprocess.prepare import prepare

    started_s = time.perf_counter()
    config = PrepareConfig(source=source, out=out, classes=classes, max_bad=1.0, **engine)
    return {**prepare(config), "wall_s": time.perf_counter() - started_s}


# --- the engines --------------------------------------------------------------------------------------


def engines(source: str, classes: int | None, count: int) -> dict[str, Any]:
    """Seconds of the whole job in a fresh process, imports and starts included: with each engine, and of a bare
    spawned pool that is told where every sample lies and writes the same tars, hashed, synced and renamed."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        shards = samples_by_shard(PrepareConfig(source=source, out=folder, classes=classes))
        for places in shards:  # so that no cell is the one to meet a cold disk
            for _ in read_all(places, {}, {}):
                pass
        told = Path(folder) / "places.json"
        told.write_bytes(json.dumps([[astuple(place) for place in places] for places in shards]).encode())
        out = Path(folder) / "out"

        def seconds(work: Callable[..., Any], *arguments: Any) -> float:
            started_s = time.perf_counter()
            apart(work, *arguments)
            taken_s = time.perf_counter() - started_s
            shutil.rmtree(out)
            return taken_s

        cells = {
            "pool": lambda: seconds(writing_pool, told, usable_cores(), out),
            "processes": lambda: seconds(prepared, source, out, classes, {"engine": "processes"}),
            "spark": lambda: seconds(prepared, source, out, classes, {"engine": "spark"}),
        }
        by_round = in_rounds(cells, count, "{:.1f} s".format)
    taken = {name: column(by_round, name) for name in cells}
    samples = sum(map(len, shards))
    return {
        "what": f"{samples} images from {Path(source).name}: {WORDS}; {usable_cores()} cores, whole jobs",
        "n": samples,
        "rounds": count,
        "warm_up_rounds": 0,
        "seconds": {name: round(spread(taken[name])["median"], 2) for name in cells},
        "processes_over_pool": spread([a / b for a, b in zip(taken["pool"], taken["processes"], strict=True)], 4),
        "processes_over_spark": spread([a / b for a, b in zip(taken["spark"], taken["processes"], strict=True)], 4),
        "by_round": by_round,
    }


def writing_pool(told: str, cores: int, out: str) -> None:
    Path(out).mkdir()
    shards = [[Where(*place) for place in places] for places in json.loads(Path(told).read_bytes())]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(write_tar, [(places, f"{out}/{number}.tar") for number, places in enumerate(shards)], 1)


def write_tar(shard: tuple[Sequence[Where], str]) -> None:
    places, name = shard
    preparer = Preparer((FORM,))
    with Path(f"{name}.tmp").open("wb", buffering=1 << 20) as file:
        with ShardWriter(file, 0) as writer:
            for number, data in enumerate(read_all(places, {}, {})):
                with suppress(BadImage):
                    member = preparer(data)[0]
                    writer.add(f"{number:08d}", member.data, member.extension, label=0, width=member.width,
                               height=member.height)  # fmt: skip
        file.flush()
        os.fsync(file.fileno())
    assert writer.sha256
    Path(f"{name}.tmp").replace(name)
    sync_folder(Path(name).parent)


# --- the plan -----------------------------------------------------------------------------------------


def plan() -> dict[str, Any]:
    """Seconds to plan ImageNet's descriptors, and the process's peak memory with all tasks made."""
    columns = imagenet_like(IMAGENET)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clocks = [(time.perf_counter(), time.process_time())]
    planned = make_plan(columns, PrepareConfig(source="imagenet", out="out"), [{"name": "c"}] * 1000, "")
    clocks.append((time.perf_counter(), time.process_time()))
    tasks = len([planned.task(split, shard) for split in planned.splits for shard in range(split.shards)])
    clocks.append((time.perf_counter(), time.process_time()))
    (plan_s, plan_cpu_s), (tasks_s, tasks_cpu_s) = np.diff(clocks, axis=0).round(3).tolist()
    return {
        "what": "a generated descriptor table the size of ImageNet's train split, planned and cut into tasks",
        "n": IMAGENET,
        "plan_s": plan_s,
        "plan_cpu_s": plan_cpu_s,
        "tasks_s": tasks_s,
        "tasks_cpu_s": tasks_cpu_s,
        "tasks": tasks,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rss_with_table_bytes": before * 1024,
    }


def imagenet_like(samples: int) -> Columns:
    numbers = np.arange(samples)
    lengths_N = np.random.default_rng(0).integers(20_000, 220_000, samples)
    return Columns(
        keys=[f"n{1440764 + 37 * (n % 1000):08d}_{n}" for n in range(samples)],
        labels_N=(numbers % 1000).astype(np.int32),
        splits_N=np.zeros(samples, np.int8),
        split_names=["train"],
        paths=["ILSVRC2012_img_train.tar"],
        path_N=np.zeros(samples, np.int32),
        offsets_N=np.cumsum(lengths_N).astype(np.int64),
        lengths_N=lengths_N.astype(np.int64),
        troubles={},
    )


if __name__ == "__main__":
    end_with(main)
