"""The end of a job: every receipt checked and counted, then indexes, report and, last of all, the manifests."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import TEMPORARY
from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest, index_table_bytes
from feedline.preprocess.fingerprint import versions
from feedline.preprocess.output import REPORT, claimed_folders, is_ours, remove_dataset
from feedline.preprocess.quarantine import QUARANTINE
from feedline.preprocess.receipts import Receipt, index_table, receipt_name
from feedline.preprocess.sources.base import Classes
from feedline.preprocess.store import WORK, Store
from feedline.preprocess.write_shard import STAGES, Order, Outcome

IMAGENET_SAMPLES = 1_281_167 + 50_000
CORES = (2, 8, 32, 128)

Splits = dict[str, tuple[bytes, Manifest]]
"""Index and manifest by folder."""


def held_receipt(store: Store, order: Order, split: str, shard: int, stamp: str) -> Receipt | None:
    """The receipt of a finished shard whose files are there with the right size, and those it was made of as they
    were; None when it must be done. What lies in quarantine may have been mended since."""
    receipt = Receipt.from_bytes(store.read(f"{WORK}/{receipt_name(order.plan_hash, split, shard)}") or b"")
    if (
        receipt is None
        or receipt.stamp != stamp
        or (receipt.quarantined and receipt.formats != order.fingerprint.formats)
    ):
        return None
    folders = order.config.folders(split)
    files = {f"{folder}/{done.name}": done.bytes for folder, done in zip(folders, receipt.shards, strict=True)}
    whole = all(store.size(name) == length for name, length in files.items())
    kept = all(store.size(f"{QUARANTINE}/{bad.file}") is not None for bad in receipt.quarantined)
    return receipt if whole and kept else None


def described(order: Order, receipts: Mapping[str, Sequence[Receipt]], classes: Classes) -> Splits:
    """What the receipts of each split make of it."""
    config, splits = order.config, Splits()
    for split, of_split in receipts.items():
        for number, folder in enumerate(config.folders(split)):
            index = index_table_bytes(index_table([receipt.rows[number] for receipt in of_split]))
            shards = [receipt.shards[number] for receipt in of_split]
            manifest = Manifest(
                split=split,
                samples=sum(shard.samples for shard in shards),
                classes=classes,
                shards=shards,
                settings=config.outputs[number].settings()
                | {"max_pixels": config.max_pixels, "metadata": config.metadata, "shuffle": "keyed hash"},
                seed=config.seed,
                plan_hash=order.plan_hash,
                index_sha256=hashlib.sha256(index).hexdigest(),
                versions=versions(),
                formats=order.fingerprint.formats,
            )
            splits[folder] = index, manifest
    return splits


def publish(store: Store, splits: Splits) -> None:
    """From here on the dataset exists. A new index is refused beside an old manifest, which names another one."""
    for folder, (index, manifest) in splits.items():
        store.write(f"{folder}/{INDEX}", index)
        store.write(f"{folder}/{MANIFEST}", manifest.to_json().encode())


def remove_replaced(store: Store, splits: Splits) -> None:
    """What the manifests do not name: shards of attempts that were killed, and in an object store the old dataset."""
    for folder, (_, manifest) in splits.items():
        keep = {INDEX, MANIFEST, *(shard.name for shard in manifest.shards)}
        for name in store.list(folder):
            if is_ours(name) and name not in keep:
                store.delete(f"{folder}/{name}")
    for folder in claimed_folders(store) - set(splits):
        remove_dataset(store, folder)
    for name in store.list(""):
        if name.startswith(f".{REPORT}.") and TEMPORARY.fullmatch(name):
            store.delete(name)


def found(manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """Counts of a finished dataset, by folder; samples are counted once, however many outputs there are."""
    of_splits = {manifest.split: manifest for manifest in manifests.values()}.values()
    return {
        "input_samples": sum(shard.planned_samples for manifest in of_splits for shard in manifest.shards),
        "output_samples": sum(manifest.samples for manifest in of_splits),
        "shards": sum(len(manifest.shards) for manifest in manifests.values()),
        "bytes_out": sum(shard.bytes for manifest in manifests.values() for shard in manifest.shards),
    }


def totals(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Counts over all shards; samples are counted once, however many outputs there are. Raises DatasetError when
    they do not add up."""
    reasons = Counter(bad.reason for receipt in receipts for bad in receipt.quarantined)
    notes = Counter[str]()
    for receipt in receipts:
        notes.update(receipt.notes)
    counts: dict[str, Any] = {
        "input_samples": sum(receipt.shards[0].planned_samples for receipt in receipts),
        "output_samples": sum(receipt.shards[0].samples for receipt in receipts),
        "quarantined": sum(reasons.values()),
        "reasons": dict(sorted(reasons.items())),
        "notes": dict(sorted(notes.items())),
        "shards": sum(len(receipt.shards) for receipt in receipts),
        "bytes_in": sum(receipt.bytes_in for receipt in receipts),
        "bytes_out": sum(shard.bytes for receipt in receipts for shard in receipt.shards),
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
    hours = {str(cores): round(mean(per_sample) * IMAGENET_SAMPLES / cores / 3600, 6) for cores in CORES}
    return {
        "samples": IMAGENET_SAMPLES,
        "hours_by_cores": hours,
        "relative_error": round(error / mean(per_sample), 4),
    }
