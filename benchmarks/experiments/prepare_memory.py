"""What memory `prepare` takes: an executor's Python per task, and the driver for all of ImageNet.

    python -m feedline.benchmarks.experiments.prepare_memory [SOURCE]

With SOURCE (raw images, as for feedline prepare): executors, over a fifth and all of its classes. Without: the driver
with 1,281,167 generated descriptors and a real Spark. The driver's job is the real one but for two ends: its
descriptors are generated instead of indexed, and its tasks write receipts of plausible shards (sparse files) instead
of decoding images. Everything between is what runs: plan, tasks through Spark, receipts checked and read, index,
manifest. Peaks are those the kernel has counted (VmHWM). Adds to results/prepare-memory.json.
"""

import hashlib
import json
import os
import re
import resource
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from feedline.benchmarks.experiments.harness import apart, end_with, options, say, write
from feedline.benchmarks.experiments.prepare_speed import IMAGENET, imagenet_like, spark_job
from feedline.pipeline.base.process import read_text, usable_cores
from feedline.pipeline.format.manifest import ShardInfo
from feedline.pipeline.format.shard_tar import shard_name
from feedline.preprocess import prepare, spark
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.index_source import gather, open_configured
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.receipts import ROW, Receipt, Rows, receipt_name
from feedline.preprocess.store import WORK, open_store
from feedline.preprocess.write_shard import Order, Outcome

SHARES = (0.2, 1.0)
WANTED_BYTES = {"executor": 500_000_000, "driver": 1_500_000_000}
SAMPLE_BYTES = 30_208


def main() -> None:
    given = options(__doc__, "prepare-memory.json", "source?")
    figures = {"executor": executor(str(given.source))} if given.source else {"driver": apart(driver)}
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    kept = {name: before[name] for name in WANTED_BYTES if name in before}
    write(given.out, {"wanted_bytes": WANTED_BYTES, **kept, **figures})
    print(json.dumps(figures, indent=1))


def executor(source: str) -> list[dict[str, Any]]:
    """By number of images: the highest peak of any Python process that ran tasks."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        config = PrepareConfig(source=source, out=folder)
        _, classes, _ = gather(config, open_configured(config), Path(folder) / "staging", lambda note: None)
        for share in SHARES:
            ran = spark_job(source, max(1, round(share * len(classes))), usable_cores(), Path(folder) / "out")
            runs.append({"images": ran["samples"], "shards": ran["shards"], "peak_rss_bytes": ran["peak_rss_bytes"]})
            say(str(runs[-1]))
    return runs


def driver() -> dict[str, Any]:
    """In a process of its own: the experiment's libraries would count."""
    classes = [{"name": f"n{number:08d}"} for number in range(1000)]
    source: Any = SimpleNamespace()
    prepare.open_configured = lambda config: source
    prepare.gather = lambda *_: (imagenet_like(IMAGENET), classes, None)
    spark.write_group = fabricated
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder, jvm_peaks() as jvm_bytes:
        config = PrepareConfig(source="imagenet", out=folder, master=f"local[{usable_cores()}]")
        started, cpu = time.perf_counter(), time.process_time()
        record = prepare.prepare(config)
    return {
        "samples": record["output_samples"],
        "shards": record["shards"],
        "seconds": round(time.perf_counter() - started, 1),
        "python_cpu_s": round(time.process_time() - cpu, 1),
        "seconds_by_step": record["seconds"],
        "python_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "jvm_peak_rss_bytes": max(jvm_bytes, default=0),
    }


def fabricated(order: Order, group: Sequence[ShardTask]) -> list[Outcome]:
    """Instead of a task's work: a sparse file of a shard's size, and the receipt that would lie beside it."""
    store = open_store(order.address)
    outcomes: list[Outcome] = []
    for task in group:
        count = len(task)
        name, size = shard_name(task.split, task.shard), count * SAMPLE_BYTES
        path = Path(order.address) / order.config.folders(task.split)[0] / name
        path.touch()
        os.truncate(path, size)
        table_N = np.zeros(count, ROW)
        offsets_N = np.arange(count) * SAMPLE_BYTES + 512
        values = {"label": task.labels_N, "shard": task.shard, "offset": offsets_N, "length": SAMPLE_BYTES - 2048}
        for column, value in {**values, "width": 341, "height": 256}.items():
            table_N[column] = value
        digest = hashlib.sha256(name.encode()).hexdigest()
        receipt = Receipt(
            bytes_in=int(task.lengths_N.sum()),
            formats=order.fingerprint.formats,
            shards=[ShardInfo(name=name, bytes=size, sha256=digest, samples=count, planned_samples=count)],
            rows=[Rows(task.keys, table_N)],
        )
        store.write(f"{WORK}/{receipt_name(order.plan_hash, task.split, task.shard)}", receipt.to_bytes())
        outcomes.append(Outcome(samples=count, total_s=1.0))
    return outcomes


@contextmanager
def jvm_peaks() -> Generator[list[int]]:
    """The memory of this process's JVM at its highest, bytes, as the kernel counts it; one more every 0.2 s."""
    peaks: list[int] = []
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.2):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it has ended meanwhile
                    status = read_text(f"/proc/{child.pid}/status") if child.name() == "java" else ""
                    peaks.extend(int(kib) * 1024 for kib in re.findall(r"VmHWM:\s+(\d+)", status))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield peaks
    end.set()
    thread.join()


if __name__ == "__main__":
    end_with(main)
