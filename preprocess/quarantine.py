"""Samples that could not be used: their bytes in OUT/quarantine, a line for each in `report.jsonl` beside them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import DatasetError
from feedline.preprocess.store import TEMPORARY_FILE, Store

QUARANTINE = "quarantine"
REASONS = f"{QUARANTINE}/report.jsonl"
FILE = re.compile(r"report\.jsonl|[a-z]+-\d{6}-\d{5}-.*-[0-9a-f]{8}\.bin")


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """One sample that could not be used, and where its bytes are now."""

    split: str
    key: str
    label: int
    reason: str
    detail: str
    source: str
    offset: int
    length: int
    file: str
    """Name in the quarantine folder."""
    shard: int
    position: int
    """Its place in the shard as planned."""


def file_name(split: str, shard: int, position: int, key: str) -> str:
    """A plain, unique, stable file name that still shows which sample it is."""
    tail = re.sub(r"[^A-Za-z0-9_.-]+", "_", key.rpartition("/")[2])[:64]
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return f"{split}-{shard:06d}-{position:05d}-{tail}-{digest}.bin"


def read_report(store: Store) -> list[Quarantined]:
    """The rows of `report.jsonl`; empty when nothing was quarantined. Raises DatasetError when it is damaged."""
    text = store.read(REASONS) or b""
    try:
        rows = [Quarantined(**json.loads(line)) for line in text.splitlines()]
        for row in rows:
            for name, kind in Quarantined.__annotations__.items():
                if not isinstance(getattr(row, name), kind):
                    raise ValueError(f"{name} {getattr(row, name)!r:.60} is no {kind.__name__}")
            if row.file and ("/" in row.file or not FILE.fullmatch(row.file)):
                raise ValueError(f"file {row.file!r:.60} is none of its own")
        return rows
    except (ValueError, TypeError, RecursionError) as error:
        raise DatasetError(f"{store.address}/{REASONS} is damaged ({error})") from error


def write_report(store: Store, bad: Sequence[Quarantined], before: Sequence[Quarantined] = ()) -> None:
    """`report.jsonl` alone: the rows that were there `before`, then those of other samples."""
    known = {(row.split, row.shard, row.position) for row in before}
    rows: list[dict[str, Any]] = [vars(row) for row in before]
    rows += [vars(row) for row in bad if (row.split, row.shard, row.position) not in known]
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
    store.write(REASONS, "".join(f"{line}\n" for line in lines).encode())


def commit_quarantine(store: Store, bad: Sequence[Quarantined]) -> None:
    """The whole report; stale files of ours go, and nothing stays when all samples were fine."""
    keep = {row.file for row in bad} | ({"report.jsonl"} if bad else set())
    for name in store.list(QUARANTINE):
        if TEMPORARY_FILE.fullmatch(name) or (FILE.fullmatch(name) and name not in keep):
            store.delete(f"{QUARANTINE}/{name}")
    if bad:
        write_report(store, bad)
