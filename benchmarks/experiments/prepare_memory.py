"""What memory `prepare` takes: an executor's Python per task, and the driver for all of ImageNet.

    python -m feedline.benchmarks.experiments.prepare_memory executor SOURCE   a fifth and all of SOURCE's classes
    python -m feedline.benchmarks.experiments.prepare_memory driver  1,281,167 generated descriptors, a real Spark

The driver's job is the real one but for two ends: its descriptors are generated instead of indexed, and its tasks
write receipts of plausible shards (sparse files) instead of decoding images. Everything between is what runs: plan,
tasks through Spark, receipts checked and read, index, manifest. Peaks are those the kernel has counted (VmHWM).
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from feedline.benchmarks.experiments.prepare_speed import IMAGENET, imagenet_like, spark_job
from feedline.pipeline.base.process import usable_cores
from feedline.preprocess import prepare, spark
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.receipts import ROW, Receipt, Rows, Written, receipt_name
from feedline.preprocess.store import WORK, open_store
from feedline.preprocess.write_shard import Order, Outcome, ShardTask
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "prepare-memory.json"
SHARES = (0.2, 1.0)
WANTED_BYTES = {"executor": 500_000_000, "driver": 1_500_000_000}
SAMPLE_BYTES = 30_208


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m feedline.benchmarks.experiments.prepare_memory", description=__doc__
    )
    parser.add_argument("what", choices=["executor", "driver", "driver-alone"])
    parser.add_argument("source", nargs="?", help="raw images, as for feedline prepare")
    parser.add_argument("--out", type=Path, default=RESULT)
    said = parser.parse_args()
    if said.what == "driver-alone":
        print(json.dumps(driver()))
        return
    if said.what == "executor" and said.source is None:
        parser.error("executor needs a SOURCE: feedline synth makes one")
    found = executor(said.source) if said.what == "executor" else driver_in_a_process()
    before = json.loads(said.out.read_text()) if said.out.exists() else {}
    whole = {
        "command": "python -m feedline.benchmarks.experiments.prepare_memory executor SOURCE; … driver",
        "host": describe_host(),
        "wanted_bytes": WANTED_BYTES,
    }
    said.out.write_text(json.dumps(before | whole | {said.what: found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


# --- executors ----------------------------------------------------------------------------------------


def executor(source: str) -> list[dict[str, Any]]:
    """By number of images: the highest peak of any Python process that ran tasks."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        classes = number_of_classes(source, Path(folder))
        for share in SHARES:
            ran = spark_job(source, max(1, round(share * classes)), usable_cores(), Path(folder) / "out")
            found.append({"images": ran["samples"], "shards": ran["shards"], "peak_rss_bytes": ran["peak_rss_bytes"]})
            print(found[-1], file=sys.stderr, flush=True)
    return found


def number_of_classes(source: str, folder: Path) -> int:
    from feedline.preprocess.index_source import gather

    _, classes, _ = gather(PrepareConfig(source=source, out=str(folder)), folder / "staging", lambda note: None)
    return len(classes)


# --- the driver ---------------------------------------------------------------------------------------


def driver_in_a_process() -> dict[str, Any]:
    """In a process of its own: this one's libraries would count."""
    command = [sys.executable, "-m", "feedline.benchmarks.experiments.prepare_memory", "driver-alone"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def driver() -> dict[str, Any]:
    classes = [{"name": f"n{number:08d}"} for number in range(1000)]
    prepare.open_configured = lambda config: SimpleNamespace(needs_staging=False)  # pyright: ignore[reportAttributeAccessIssue]
    prepare.gather = lambda config, staging, on_note, source: (imagenet_like(IMAGENET), classes, None)
    spark.write_group = fabricated
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder, JvmPeak() as jvm:
        config = PrepareConfig(source="imagenet", out=folder, master=f"local[{usable_cores()}]")
        started, cpu = time.perf_counter(), time.process_time()
        said = prepare.prepare(config)
    return {
        "samples": said["output_samples"],
        "shards": said["shards"],
        "seconds": round(time.perf_counter() - started, 1),
        "python_cpu_s": round(time.process_time() - cpu, 1),
        "seconds_by_step": said["seconds"],
        "python_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "jvm_peak_rss_bytes": jvm.peak_bytes,
    }


def fabricated(order: Order, group: Sequence[ShardTask]) -> list[Outcome]:
    """Instead of a task's work: a sparse file of a shard's size, and the receipt that would lie beside it."""
    store = open_store(order.address)
    found: list[Outcome] = []
    for task in group:
        count = len(task)
        name, size = f"{task.split}-{task.shard:06d}.tar", count * SAMPLE_BYTES
        path = Path(order.address) / order.config.folders(task.split)[0] / name
        path.touch()
        os.truncate(path, size)
        digest = hashlib.sha256(name.encode()).hexdigest()
        receipt = Receipt(
            plan_hash=order.plan_hash,
            fingerprint=order.fingerprint,
            split=task.split,
            shard=task.shard,
            planned_samples=count,
            bytes_in=int(task.lengths_N.sum()),
            outputs=[Written(name=name, bytes=size, sha256=digest, samples=count)],
            rows=[Rows(task.keys, plausible_rows(task))],
        )
        store.write(f"{WORK}/{receipt_name(order.plan_hash, task.split, task.shard)}", receipt.to_bytes())
        found.append(Outcome(samples=count, total_s=1.0))
    return found


def plausible_rows(task: ShardTask) -> np.ndarray[Any, Any]:
    table_N = np.zeros(len(task), ROW)
    offsets_N = np.arange(len(task)) * SAMPLE_BYTES + 512
    values = {"label": task.labels_N, "shard": task.shard, "offset": offsets_N, "length": SAMPLE_BYTES - 2048}
    for name, value in {**values, "width": 341, "height": 256}.items():
        table_N[name] = value
    return table_N


class JvmPeak:
    """The highest memory of this process's JVM, as the kernel counts it."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "JvmPeak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.2):
            for one in psutil.Process().children(recursive=True):
                try:
                    if one.name() == "java":
                        self.peak_bytes = max(self.peak_bytes, high_water_bytes(one.pid))
                except (psutil.Error, OSError):
                    continue  # it has ended meanwhile


def high_water_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
