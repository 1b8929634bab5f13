"""The end of a job: every receipt checked, then indexes, report and, last of all, the manifests."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest, ShardInfo, index_table_bytes
from feedline.preprocess import job_report
from feedline.preprocess.output import REPORT, claimed_folders, is_ours, remove_dataset
from feedline.preprocess.quarantine import QUARANTINE
from feedline.preprocess.receipts import Receipt, index_table, receipt_name
from feedline.preprocess.sources.base import Classes
from feedline.preprocess.store import TEMPORARY_FILE, WORK, Store
from feedline.preprocess.write_shard import Order


def held_receipt(store: Store, order: Order, split: str, shard: int) -> Receipt | None:
    """The receipt of a finished shard whose files are there with the right size; None when it must be done."""
    data = store.read(f"{WORK}/{receipt_name(order.plan_hash, split, shard)}")
    receipt = Receipt.from_bytes(data) if data is not None else None
    if receipt is None or (receipt.quarantined and receipt.fingerprint.formats != order.fingerprint.formats):
        return None
    folders = order.config.folders(split)
    files = {f"{folder}/{file.name}": file.bytes for folder, file in zip(folders, receipt.outputs, strict=True)}
    files |= {f"{QUARANTINE}/{bad.file}": bad.length for bad in receipt.quarantined}
    return receipt if all(store.size(name) == length for name, length in files.items()) else None


def commit_split(
    store: Store, order: Order, split: str, receipts: Sequence[Receipt], classes: Classes
) -> dict[str, Manifest]:
    """Writes the split's indexes; returns the manifests of its outputs by folder."""
    config, manifests = order.config, dict[str, Manifest]()
    for number, output in enumerate(config.outputs):
        folder = config.folders(split)[number]
        index = index_table_bytes(index_table([receipt.rows[number] for receipt in receipts]))
        store.write(f"{folder}/{INDEX}", index)
        manifests[folder] = Manifest(
            split=split,
            samples=sum(receipt.outputs[number].samples for receipt in receipts),
            classes=classes,
            shards=[
                ShardInfo(
                    **vars(receipt.outputs[number]),
                    planned_samples=receipt.planned_samples,
                    fingerprint=receipt.fingerprint.encoder,
                )
                for receipt in receipts
            ],
            settings=output.settings()
            | {"max_pixels": config.max_pixels, "metadata": config.metadata, "shuffle": "keyed hash"},
            seed=config.seed,
            plan_hash=order.plan_hash,
            index_sha256=hashlib.sha256(index).hexdigest(),
            versions=job_report.versions(),
            formats=order.fingerprint.formats,
        )
    return manifests


def publish_manifests(store: Store, manifests: Mapping[str, Manifest]) -> None:
    """By folder. From here on the dataset exists."""
    for folder, manifest in manifests.items():
        store.write(f"{folder}/{MANIFEST}", manifest.to_json().encode())


def remove_replaced(store: Store, manifests: Mapping[str, Manifest]) -> None:
    """What the manifests do not name: shards of attempts that were killed, and in an object store the old dataset."""
    for folder, manifest in manifests.items():
        keep = {INDEX, MANIFEST, *(shard.name for shard in manifest.shards)}
        for name in store.list(folder):
            if is_ours(name) and name not in keep:
                store.delete(f"{folder}/{name}")
    for folder in claimed_folders(store) - set(manifests):
        remove_dataset(store, folder)
    for name in store.list(""):
        if name.startswith(f".{REPORT}.") and TEMPORARY_FILE.fullmatch(name):
            store.delete(name)


def read_report(store: Store) -> dict[str, Any]:
    """Empty when it is missing or damaged."""
    try:
        return dict(json.loads(store.read(REPORT) or b"{}"))
    except ValueError:
        return {}
