"""What one sample of a prepared dataset costs, measured here and read from what the prepare job wrote down."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.rounds import Bench
from feedline.benchmarks.measure.window import Subject
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.manifest import prepared_splits, read_manifest


@dataclass(frozen=True, kw_only=True)
class Costs:
    split: Path
    load_cpu_s: float
    sample_bytes: float
    prepare_cpu_s: float | None
    """Core seconds of the job while it ran, what Spark and waiting took included."""
    original_bytes: float | None
    prepare_start_s: float = 0.0
    """Whatever the number of images: starting, planning, committing."""
    prepared_originals: int | None = None
    """How many the job that says so had."""


def measure_costs(dataset: Path, image_size_px: int, *, windows: int = 3) -> Costs:
    """Loads from the first train split for a few seconds, with one worker. Raises DatasetError."""
    split = next((one for one in prepared_splits(dataset) if read_manifest(one).split == "train"), None)
    if split is None:
        raise DatasetError(f"{dataset} has no prepared train split: run `feedline prepare` first")
    manifest = read_manifest(split)
    settings = {"split": str(split), "num_workers": 1, "image_size": image_size_px, "batch_size": 64, "device": "cpu"}
    subject = Subject(kind="loader", settings=settings, window_s=1.0, warm_up_s=0.5)
    with Bench() as bench:
        found = sorted(w.worker_cpu_s / w.samples for w in (bench.measure(subject) for _ in range(windows)))
    job = from_report(split)
    return Costs(
        split=split,
        load_cpu_s=found[len(found) // 2],
        sample_bytes=sum(shard.bytes for shard in manifest.shards) / max(1, manifest.samples),
        **job,
    )


def from_report(split: Path) -> dict[str, Any]:
    """The fields of `Costs` about preparing, from the job's report beside the splits; None without one."""
    for folder in (split.parent, split.parent.parent):
        try:
            said = json.loads((folder / "report.json").read_text())
            done = said["input_samples"] - said["resumed_samples"]
            run_s, all_s = said["seconds"]["run"], said["seconds"]["all"]
            core_s, bytes_in = run_s * said["parallelism"], said.get("bytes_in")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if done > 0:
            return {"prepare_cpu_s": core_s / done, "original_bytes": bytes_in / done if bytes_in else None,
                    "prepare_start_s": all_s - run_s, "prepared_originals": done}  # fmt: skip
    return {"prepare_cpu_s": None, "original_bytes": None}
