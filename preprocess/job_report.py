"""What a job says about itself: counts, stage times, speed, and what full ImageNet would cost. Pure."""

import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import mean, stdev
from typing import Any

from feedline.pipeline.base.errors import DatasetError
from feedline.preprocess.receipts import Receipt
from feedline.preprocess.write_shard import Outcome

STAGES = ("read", "decode", "resize", "encode", "write")
IMAGENET_SAMPLES = 1_281_167 + 50_000
CORES = (2, 8, 32, 128)
PACKAGES = ("feedline", "numpy", "pillow", "pillow-simd", "simplejpeg", "pyarrow", "pyspark")


def versions() -> dict[str, str]:
    """Of whatever can change the prepared bytes, and of what ran the job."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def totals(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Counts over all shards; samples are counted once, however many outputs there are. Raises DatasetError when
    they do not add up."""
    reasons = Counter(bad.reason for receipt in receipts for bad in receipt.quarantined)
    notes = Counter[str]()
    for receipt in receipts:
        notes.update(receipt.notes)
    counts: dict[str, Any] = {
        "input_samples": sum(receipt.planned_samples for receipt in receipts),
        "output_samples": sum(receipt.outputs[0].samples for receipt in receipts),
        "quarantined": sum(reasons.values()),
        "reasons": dict(sorted(reasons.items())),
        "notes": dict(sorted(notes.items())),
        "shards": sum(len(receipt.outputs) for receipt in receipts),
        "bytes_in": sum(receipt.bytes_in for receipt in receipts),
        "bytes_out": sum(written.bytes for receipt in receipts for written in receipt.outputs),
    }
    if counts["output_samples"] + counts["quarantined"] != counts["input_samples"]:
        raise DatasetError("the receipts do not add up (in is not out + quarantined): run again with --overwrite")
    return counts


def speed(outcomes: Sequence[Outcome], run_s: float, commit_s: float) -> dict[str, Any]:
    """Of this run alone: shards done in an earlier one do not count. None where nothing ran."""
    done = sum(outcome.samples + outcome.quarantined for outcome in outcomes)
    busy_s = sum(outcome.total_s for outcome in outcomes)
    stage_s = {stage: sum(outcome.stage_s.get(stage, 0.0) for outcome in outcomes) for stage in STAGES}
    stage_s |= {"other": max(busy_s - sum(stage_s.values()), 0.0), "commit": commit_s}
    return {
        "samples_per_s": round(done / run_s, 1) if done and run_s else None,
        "samples_per_s_per_core": round(done / busy_s, 1) if done and busy_s else None,
        "imagenet": projection(outcomes),
        "peak_rss_bytes": max((outcome.peak_rss_bytes for outcome in outcomes), default=0),
        "hosts": sorted({outcome.host for outcome in outcomes}),
        "stage_s": {stage: round(seconds, 3) for stage, seconds in stage_s.items()},
    }


def projection(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Hours for all of ImageNet on N cores, from the tasks' seconds per sample; ± twice the standard error.

    Assumes the same images' cost and storage that keeps up; None with fewer than two tasks to judge the spread by.
    """
    per_sample = [o.total_s / (o.samples + o.quarantined) for o in outcomes if o.samples + o.quarantined]
    if len(per_sample) < 2:
        return None
    error = 2 * stdev(per_sample) / len(per_sample) ** 0.5
    hours = {str(cores): round(mean(per_sample) * IMAGENET_SAMPLES / cores / 3600, 3) for cores in CORES}
    return {
        "samples": IMAGENET_SAMPLES,
        "hours_by_cores": hours,
        "relative_error": round(error / mean(per_sample), 4),
    }
