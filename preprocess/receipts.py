"""What a finished shard leaves behind: enough to write index, manifest and quarantine report without reading shards.

One file per shard number, covering every output made from it. The same shard gives the same receipt.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.pipeline.format.manifest import INDEX_SCHEMA, SampleRow
from feedline.preprocess.fingerprint import Fingerprint


@dataclass(frozen=True, kw_only=True)
class Written:
    """One output's shard as it lies in its folder."""

    name: str
    bytes: int
    sha256: str
    samples: int


NAMES = ("label", "shard", "offset", "length", "width", "height", "crc32")
KINDS = ("<i4", "<i4", "<i8", "<i8", "<i4", "<i4", "<u4")


@dataclass(frozen=True)
class Rows:
    """Index rows as columns, in the order of `NAMES`. Plain NumPy: Arrow's first array costs a worker a second."""

    keys: list[str]
    columns: list[npt.NDArray[Any]]

    @classmethod
    def of(cls, rows: Sequence[SampleRow]) -> "Rows":
        columns = [
            np.array([getattr(row, name) for row in rows], kind) for name, kind in zip(NAMES, KINDS, strict=True)
        ]
        return cls([row.key for row in rows], columns)

    @classmethod
    def from_columns(cls, columns: Sequence[bytes], samples: int) -> "Rows":
        keys = columns[0].decode("utf-8", "surrogateescape").split("\0") if samples else []
        return cls(keys, [np.frombuffer(data, kind) for data, kind in zip(columns[1:], KINDS, strict=True)])


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
    """Name in the quarantine folder; "" when the bytes could not be read."""
    shard: int
    position: int
    """Its place in the shard as planned."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    plan_hash: str
    fingerprint: Fingerprint
    split: str
    shard: int
    planned_samples: int
    bytes_in: int
    outputs: list[Written]
    rows: list[Rows]
    """Index rows, one set of columns per output."""
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    notes: dict[str, int] = field(default_factory=dict[str, int])

    def to_bytes(self) -> bytes:
        """One line of JSON, then the columns as they lie in memory."""
        said: dict[str, Any] = {
            "plan_hash": self.plan_hash,
            "fingerprint": vars(self.fingerprint),
            "split": self.split,
            "shard": self.shard,
            "planned_samples": self.planned_samples,
            "bytes_in": self.bytes_in,
            "outputs": [vars(written) for written in self.outputs],
            "quarantined": [vars(bad) for bad in self.quarantined],
            "notes": dict(sorted(self.notes.items())),
        }
        columns: list[bytes] = []
        for rows in self.rows:
            columns.append("\0".join(rows.keys).encode("utf-8", "surrogateescape"))
            columns += [column.astype(kind).tobytes() for column, kind in zip(rows.columns, KINDS, strict=True)]
        said["lengths"] = [len(column) for column in columns]
        body = b"".join([json.dumps(said, sort_keys=True).encode(), b"\n", *columns])
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Receipt | None":
        """None for anything that is not a whole receipt."""
        body, digest = data[:-32], data[-32:]
        if hashlib.sha256(body).digest() != digest:
            return None
        head, _, rest = body.partition(b"\n")
        said: dict[str, Any] = json.loads(head)
        ends = np.cumsum([0, *said.pop("lengths")]).tolist()
        columns = [rest[start:end] for start, end in pairwise(ends)]
        outputs = [Written(**written) for written in said.pop("outputs")]
        bad = [Quarantined(**row) for row in said.pop("quarantined")]
        made_by = Fingerprint(**said.pop("fingerprint"))
        per_output = 1 + len(KINDS)
        rows = [
            Rows.from_columns(columns[n * per_output : (n + 1) * per_output], written.samples)
            for n, written in enumerate(outputs)
        ]
        return cls(fingerprint=made_by, outputs=outputs, quarantined=bad, rows=rows, **said)


def receipts_folder(plan_hash: str) -> str:
    return f"receipts-{plan_hash[:16]}"


def receipt_name(plan_hash: str, split: str, shard: int) -> str:
    return f"{receipts_folder(plan_hash)}/{split}-{shard:06d}.receipt"


def index_table(rows: Sequence[Rows]) -> pa.Table:
    """The index of a split from its shards' rows, in order."""
    columns = [np.concatenate([one.columns[n] for one in rows]) for n in range(len(KINDS))]
    keys = pa.array([key for one in rows for key in one.keys], pa.string())
    others = [pa.array(column, INDEX_SCHEMA.field(name).type) for name, column in zip(NAMES, columns, strict=True)]
    return pa.Table.from_arrays([keys, *others], schema=INDEX_SCHEMA)
