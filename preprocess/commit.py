"""The end of a job: every receipt checked, then indexes, quarantine report and, last of all, the manifests."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest, ShardInfo, index_table_bytes
from feedline.preprocess.fingerprint import Fingerprint
from feedline.preprocess.output import (
    QUARANTINE_FILE,
    TEMPORARY_FILE,
    Store,
    claimed_folders,
    is_ours,
    remove_dataset,
)
from feedline.preprocess.receipts import Quarantined, Receipt, index_table, receipt_name
from feedline.preprocess.store import WORK
from feedline.preprocess.write_shard import QUARANTINE

REASONS = "report.jsonl"
"""In the quarantine folder: a line for each sample there."""


@dataclass(kw_only=True)
class Totals:
    """Counts over all receipts; samples are counted once, however many outputs there are."""

    input_samples: int = 0
    output_samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    shards: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])


def held_receipt(
    store: Store, plan_hash: str, made_by: Fingerprint, split: str, shard: int, planned: int, folders: Sequence[str]
) -> Receipt | None:
    """The receipt of a finished shard whose files are there with the right size; None when it must be done."""
    data = store.read(f"{WORK}/{receipt_name(plan_hash, split, shard)}")
    receipt = Receipt.from_bytes(data) if data is not None else None
    if receipt is None or (receipt.plan_hash, receipt.planned_samples) != (plan_hash, planned):
        return None
    lacked = receipt.quarantined and receipt.fingerprint.formats != made_by.formats
    if lacked or receipt.fingerprint.encoder != made_by.encoder or len(receipt.outputs) != len(folders):
        return None
    for written, folder in zip(receipt.outputs, folders, strict=True):
        if store.size(f"{folder}/{written.name}") != written.bytes:
            return None
    for bad in receipt.quarantined:
        if store.size(f"{QUARANTINE}/{bad.file}") != bad.length:
            return None
    return receipt


def totals_of(receipts: Sequence[Receipt]) -> Totals:
    totals = Totals()
    for receipt in receipts:
        totals.input_samples += receipt.planned_samples
        totals.output_samples += receipt.outputs[0].samples
        totals.bytes_in += receipt.bytes_in
        totals.bytes_out += sum(written.bytes for written in receipt.outputs)
        totals.shards += len(receipt.outputs)
        totals.reasons.update(bad.reason for bad in receipt.quarantined)
        totals.notes.update(receipt.notes)
    if totals.output_samples + sum(totals.reasons.values()) != totals.input_samples:
        raise DatasetError("the receipts do not add up (in is not out + quarantined): run again with --overwrite")
    return totals


def commit_split(store: Store, folder: str, output: int, receipts: Sequence[Receipt]) -> tuple[list[ShardInfo], str]:
    """Writes the index of one output of one split; returns its shard list and the index's SHA-256."""
    index = index_table_bytes(index_table([receipt.rows[output] for receipt in receipts]))
    store.write(f"{folder}/{INDEX}", index)
    infos = [
        ShardInfo(
            **vars(receipt.outputs[output]),
            planned_samples=receipt.planned_samples,
            fingerprint=receipt.fingerprint.encoder,
        )
        for receipt in receipts
    ]
    return infos, hashlib.sha256(index).hexdigest()


def commit_quarantine(store: Store, bad: Sequence[Quarantined]) -> None:
    """`report.jsonl` beside the bytes; stale files of ours go, and nothing stays when all samples were fine."""
    keep = {row.file for row in bad} | ({REASONS} if bad else set())
    for name in store.list(QUARANTINE):
        killed = TEMPORARY_FILE.fullmatch(name)
        if killed or (QUARANTINE_FILE.fullmatch(name) and name not in keep):
            store.delete(f"{QUARANTINE}/{name}")
    if bad:
        write_quarantine(store, bad)


def write_quarantine(store: Store, bad: Sequence[Quarantined], before: Sequence[dict[str, Any]] = ()) -> None:
    """`report.jsonl` alone: the rows that were there `before`, then those of other samples."""
    known = {(row["split"], row["shard"], row["position"]) for row in before}
    rows = [*before, *(vars(row) for row in bad if (row.split, row.shard, row.position) not in known)]
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
    store.write(f"{QUARANTINE}/{REASONS}", "".join(f"{line}\n" for line in lines).encode())


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


def read_quarantine(store: Store) -> list[dict[str, Any]]:
    """The rows of `report.jsonl`; empty when nothing was quarantined. Raises DatasetError when it is damaged."""
    text = store.read(f"{QUARANTINE}/{REASONS}") or b""
    try:
        rows = [vars(Quarantined(**json.loads(line))) for line in text.splitlines()]
        for row in rows:
            if not (isinstance(row["shard"], int) and isinstance(row["position"], int)):
                raise ValueError("a shard or position is no number")
            if row["file"] and ("/" in row["file"] or not QUARANTINE_FILE.fullmatch(row["file"])):
                raise ValueError(f"file {row['file']!r:.60} is none of its own")
            hash((row["split"], row["key"]))
        return rows
    except (ValueError, TypeError, RecursionError) as error:
        raise DatasetError(f"{store.address}/{QUARANTINE}/{REASONS} is damaged ({error})") from error


def read_report(store: Store, name: str) -> dict[str, Any]:
    text = store.read(name)
    try:
        return dict(json.loads(text)) if text else {}
    except ValueError:
        return {}
