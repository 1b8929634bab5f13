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
    original_bytes: float | None


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
    prepare_cpu_s, original_bytes = from_report(split)
    return Costs(
        split=split,
        load_cpu_s=found[len(found) // 2],
        sample_bytes=sum(shard.bytes for shard in manifest.shards) / max(1, manifest.samples),
        prepare_cpu_s=prepare_cpu_s,
        original_bytes=original_bytes,
    )


def from_report(split: Path) -> tuple[float | None, float | None]:
    """Core seconds and bytes of one original, from the job's report beside the splits; None where it says nothing."""
    for folder in (split.parent, split.parent.parent):
        try:
            said = json.loads((folder / "report.json").read_text())
            per_core, samples = said.get("samples_per_s_per_core"), said.get("input_samples")
        except (OSError, ValueError):
            continue
        bytes_in = said.get("bytes_in")
        return (1 / per_core if per_core else None), (bytes_in / samples if bytes_in and samples else None)
    return None, None
