"""What one sample of a prepared dataset costs, measured here and read from what the prepare job wrote down."""

import json
from dataclasses import dataclass
from pathlib import Path

from feedline.benchmarks.measuring import Bench
from feedline.benchmarks.subject import Subject
from feedline.pipeline.errors import DatasetError
from feedline.pipeline.shards import prepared_splits, read_manifest


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
    prepare_cpu_s, original_bytes, prepare_start_s = from_report(split)
    return Costs(
        split=split,
        load_cpu_s=found[len(found) // 2],
        sample_bytes=sum(shard.bytes for shard in manifest.shards) / max(1, manifest.samples),
        prepare_cpu_s=prepare_cpu_s,
        original_bytes=original_bytes,
        prepare_start_s=prepare_start_s,
    )


def from_report(split: Path) -> tuple[float | None, float | None, float]:
    """Core seconds and bytes of one original, and the job's fixed seconds, from its report beside the splits; None
    where it says nothing."""
    for folder in (split.parent, split.parent.parent):
        try:
            said = json.loads((folder / "report.json").read_text())
            done = said["input_samples"] - said["resumed_samples"]
            run_s, all_s = said["seconds"]["run"], said["seconds"]["all"]
            core_s = run_s * said["parallelism"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if done > 0:
            bytes_in = said.get("bytes_in")
            return core_s / done, (bytes_in / done if bytes_in else None), all_s - run_s
    return None, None, 0.0
