"""How fast `prepare` is, against the sum of its parts, a bare process pool, and itself at other sizes.

    python -m feedline.benchmarks.experiments.prepare_speed kernel  the pure kernel against its parts, one core
    python -m feedline.benchmarks.experiments.prepare_speed job SOURCE  the Spark job against a bare two-process pool
    python -m feedline.benchmarks.experiments.prepare_speed plan  1,281,167 descriptors: seconds and memory

Everything that is compared is measured in the same run, in rounds, in an order drawn anew for each round; the figure
is the median over rounds of the ratio within a round. Results go to benchmarks/results/.
"""

import argparse
import io
import json
import multiprocessing
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from feedline.benchmarks.measure.rounds import rounds
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.codecs import jpeg
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Kernel, Output, geometry
from feedline.preprocess.plan import Plan, make_plan
from feedline.preprocess.sources.base import Columns
from feedline.preprocess.sources.reading import Where, read_all
from feedline.profiling.record.host import describe_host

RESULTS = Path(__file__).parents[1] / "results"
SIZE_PX = (500, 375)
IMAGES = 48


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m feedline.benchmarks.experiments.prepare_speed", description=__doc__
    )
    parser.add_argument("what", choices=["kernel", "job", "plan"])
    parser.add_argument("source", nargs="?", help="raw images, as for feedline prepare")
    parser.add_argument("--classes", type=int, help="take only this many classes of the source")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    said = parser.parse_args()
    if said.what == "job" and said.source is None:
        parser.error("job needs a SOURCE: feedline synth makes one")
    found = {
        "kernel": lambda: kernel(said.rounds),
        "plan": plan,
        "job": lambda: job(said.source, said.classes, said.rounds),
    }
    figures = found[said.what]()
    size = f"-{figures['n']}" if said.what == "job" else ""
    write(said.out / f"prepare-{said.what}{size}.json", figures)


def write(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = f"python -m feedline.benchmarks.{Path(sys.argv[0]).stem}"
    whole = {"command": f"{command} {shlex.join(words)}", "host": describe_host()}
    path.write_text(json.dumps(whole | figures, indent=1) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "by_round"}, indent=1))


# --- the kernel ---------------------------------------------------------------------------------------


def kernel(count: int) -> dict[str, Any]:
    """Seconds per image of the kernel and of decode, resize and encode alone, on one core."""
    originals = photographs(IMAGES)
    timed = parts(originals) | {"kernel": whole(originals)}
    for run in timed.values():  # warm-up
        run()
    by_round: list[dict[str, float]] = [{} for _ in range(count)]
    for number, name in rounds(list(timed), count):
        by_round[number][name] = timed[name]() / len(originals)
    ratios = [(one["decode"] + one["resize"] + one["encode"]) / one["kernel"] for one in by_round]
    micro = {name: round(1e6 * median(one[name] for one in by_round), 1) for name in timed}
    return {
        "what": f"{SIZE_PX[0]}x{SIZE_PX[1]} q95 -> short side 256, bicubic, q90 4:2:0 with restart markers; one core",
        "mean_bytes_in": round(float(np.mean([len(data) for data in originals]))),
        "n": len(originals),
        "rounds": count,
        "warm_up_rounds": 1,
        "microseconds": micro,
        "samples_per_s": {"kernel": round(1e6 / micro["kernel"]), "parts": round(1e6 / sum(parts_of(micro)))},
        "parts_over_kernel": round(median(ratios), 4),
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "by_round": by_round,
    }


def parts_of(micro: dict[str, float]) -> list[float]:
    return [micro[name] for name in ("decode", "resize", "encode")]


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
    """Each part on its own, with its input ready in the form that costs it least."""
    buffer = np.empty(SIZE_PX[0] * SIZE_PX[1] * 4, np.uint8)
    raw = [np.array(simplejpeg.decode_jpeg(data, "RGBX")) for data in originals]
    images = [Image.frombuffer("RGBX", SIZE_PX, one, "raw", "RGBX", 0, 1) for one in raw]
    width, height, box = geometry(*SIZE_PX, Output())
    small = [image.resize((width, height), Image.Resampling.BICUBIC, box=box) for image in images]

    def decode() -> float:
        started = time.perf_counter()
        for data in originals:
            simplejpeg.decode_jpeg(data, "RGBX", buffer=buffer)
        return time.perf_counter() - started

    def resize() -> float:
        started = time.perf_counter()
        for image in images:
            image.resize((width, height), Image.Resampling.BICUBIC, box=box)
        return time.perf_counter() - started

    def encode() -> float:
        started = time.perf_counter()
        for image in small:
            jpeg.encode(image, 90, "420")
        return time.perf_counter() - started

    return {"decode": decode, "resize": resize, "encode": encode}


def whole(originals: Sequence[bytes]) -> Callable[[], float]:
    prepare_one = Kernel((Output(),))

    def run() -> float:
        started = time.perf_counter()
        for data in originals:
            prepare_one(data)
        return time.perf_counter() - started

    return run


# --- the job ------------------------------------------------------------------------------------------


def job(source: str, classes: int | None, count: int) -> dict[str, Any]:
    """samples/s of the Spark job and of a bare pool of as many processes, Spark's and the pool's start apart."""
    cores = usable_cores()
    by_round: list[dict[str, Any]] = [{} for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        places = where_samples_are(PrepareConfig(source=source, out=folder, classes=classes))
        for _ in read_all(places, {}, {}):  # so that no cell is the one to meet a cold disk
            pass
        cells = {
            "pool": lambda: bare_pool(places, cores, Path(folder) / "pool"),
            "feedline": lambda: spark_job(source, classes, cores, Path(folder) / "out"),
        }
        for number, name in rounds(list(cells), count):
            by_round[number][name] = cells[name]()
            print(number, name, by_round[number][name], file=sys.stderr)
    ratios = [one["feedline"]["samples_per_s"] / one["pool"]["samples_per_s"] for one in by_round]
    return {
        "what": f"{len(places)} images from {Path(source).name}: short side 256, q90; {cores} cores; starts apart",
        "n": len(places),
        "rounds": count,
        "warm_up_rounds": 0,
        "samples_per_s": {
            name: round(median(one[name]["samples_per_s"] for one in by_round), 1) for name in ("pool", "feedline")
        },
        "feedline_over_pool": round(median(ratios), 4),
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "peak_rss_bytes": max(one["feedline"]["peak_rss_bytes"] for one in by_round),
        "by_round": by_round,
    }


def where_samples_are(config: PrepareConfig) -> list[Where]:
    """The same bytes in the same order as the job reads them."""
    from feedline.preprocess.index_source import gather

    columns, classes, _ = gather(config, Path(config.out) / "staging", lambda note: None)
    planned = make_plan(columns, config, classes, "")
    tasks = [planned.task(split, shard) for split in planned.splits for shard in range(split.shards)]
    return [place for task in tasks for place in task.where()]


def bare_pool(places: Sequence[Where], cores: int, out: Path) -> dict[str, Any]:
    """A pool that reads, runs the same kernel and writes its files, and does nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    chunks = [(places[start : start + 156], out / f"{start}.bin") for start in range(0, len(places), 156)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(warm, range(cores * 4), 1)
        started = time.perf_counter()
        done = sum(pool.imap_unordered(pool_task, chunks))
        seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return {"samples_per_s": round(done / seconds, 1), "seconds": round(seconds, 3)}


def warm(_: int) -> None:
    Kernel((Output(),))(photographs(1)[0])


def pool_task(chunk: tuple[Sequence[Where], Path]) -> int:
    places, path = chunk
    prepare_one = Kernel((Output(),))
    with path.open("wb") as file:
        for data in read_all(places, {}, {}):
            file.write(prepare_one(data)[0].data)
    return len(places)


def spark_job(source: str, classes: int | None, cores: int, out: Path) -> dict[str, Any]:
    """As the command runs it, in a process of its own; everything counts but its imports, Spark's start and end."""
    shutil.rmtree(out, ignore_errors=True)
    program = (
        "import json, sys, time, scipy.io; from feedline.preprocess.prepare import prepare; "
        "from feedline.preprocess.config import PrepareConfig; started = time.perf_counter(); "
        "said = prepare(PrepareConfig(source=sys.argv[1], out=sys.argv[2], master=sys.argv[3], "
        "classes=int(sys.argv[4]) or None, max_bad=1.0)); "
        "print(json.dumps(said | {'wall_s': time.perf_counter() - started}))"
    )
    command = [sys.executable, "-c", program, source, str(out), f"local[{cores}]", str(classes or 0)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shutil.rmtree(out)
    seconds = said["wall_s"] - said["seconds"]["start"] - said["seconds"]["stop"]
    return {
        "samples": said["output_samples"],
        "samples_per_s": round(said["output_samples"] / seconds, 1),
        "seconds": round(seconds, 3),
        "spark_start_s": said["seconds"]["start"],
        "shards": said["shards"],
        "stage_s": said["stage_s"],
        "peak_rss_bytes": said["peak_rss_bytes"],
    }


# --- the plan -----------------------------------------------------------------------------------------

IMAGENET = 1_281_167


def plan() -> dict[str, Any]:
    """Seconds to plan ImageNet's descriptors, and the process's peak memory with all tasks made."""
    columns = imagenet_like(IMAGENET)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    planned = make_plan(columns, PrepareConfig(source="imagenet", out="out"), [{"name": "c"}] * 1000, "")
    seconds, plan_cpu_s = time.perf_counter() - started, time.process_time() - cpu
    started, cpu = time.perf_counter(), time.process_time()
    tasks = all_tasks(planned)
    tasks_s, tasks_cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return {
        "what": "a generated descriptor table the size of ImageNet's train split, planned and cut into tasks",
        "n": IMAGENET,
        "plan_s": round(seconds, 3),
        "plan_cpu_s": round(plan_cpu_s, 3),
        "tasks_s": round(tasks_s, 3),
        "tasks_cpu_s": round(tasks_cpu_s, 3),
        "tasks": tasks,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rss_with_table_bytes": before * 1024,
    }


def all_tasks(planned: Plan) -> int:
    return len([planned.task(split, shard) for split in planned.splits for shard in range(split.shards)])


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
    main()
