"""Samples that could not be used: their bytes in OUT/quarantine, a line for each in `report.jsonl` beside them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import TEMPORARY
from feedline.preprocess.store import Store

QUARANTINE = "quarantine"
REASONS = f"{QUARANTINE}/report.jsonl"
MENDED = f"{QUARANTINE}/mended.jsonl"
"""Samples that were taken in from their mended files while others are still to be mended: a later retry reads these
files again, for the source is what it was."""
FILE = re.compile(r"(report|mended)\.jsonl|[a-z]+-\d{6,}-\d{5,}-.*-[0-9a-f]{8}\.bin")


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

    @property
    def place(self) -> tuple[str, int, int]:
        return self.split, self.shard, self.position


def file_name(split: str, shard: int, position: int, key: str) -> str:
    """A plain, unique, stable file name that still shows which sample it is."""
    tail = re.sub(r"[^A-Za-z0-9_.-]+", "_", key.rpartition("/")[2])[:64]
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return f"{split}-{shard:06d}-{position:05d}-{tail}-{digest}.bin"


def read_report(store: Store, report: str = REASONS) -> list[Quarantined]:
    """The rows of `report.jsonl`, or of `mended.jsonl`; empty when there is none. Raises DatasetError for damage."""
    text = store.read(report) or b""
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
        raise DatasetError(f"{store.address}/{report} is damaged ({error})") from error


def write_report(store: Store, bad: Sequence[Quarantined], before: Sequence[Quarantined]) -> None:
    """`report.jsonl` alone: the rows that were there `before`, then those of other samples."""
    known = {row.place for row in before}
    write_rows(store, REASONS, [*before, *(row for row in bad if row.place not in known)])


def write_rows(store: Store, report: str, rows: Sequence[Quarantined]) -> None:
    lines = (json.dumps(vars(row), sort_keys=True, ensure_ascii=False) for row in rows)
    # a file's name that is no UTF-8 has lone surrogates, for which JSON has escapes
    store.write(report, "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))


def commit_quarantine(
    store: Store, bad: Sequence[Quarantined], tried: Sequence[Quarantined], tried_in: Store
) -> None:
    """The whole report; stale files of ours go, and nothing stays when all samples were fine. Of the samples `tried`
    again, from their files in `tried_in`, those that are fine now keep theirs while others are bad."""
    still = {row.place for row in bad}
    mended = [row for row in tried if row.place not in still] if bad else []
    for row in mended:
        if tried_in != store:
            store.write(f"{QUARANTINE}/{row.file}", tried_in.read(f"{QUARANTINE}/{row.file}") or b"")
    lists = {"report.jsonl": bad, "mended.jsonl": mended}
    keep = {row.file for row in (*bad, *mended)} | {name for name, rows in lists.items() if rows}
    for name in store.list(QUARANTINE):
        if TEMPORARY.fullmatch(name) or (FILE.fullmatch(name) and name not in keep):
            store.delete(f"{QUARANTINE}/{name}")
    for name, rows in lists.items():
        if rows:
            write_rows(store, f"{QUARANTINE}/{name}", rows)
