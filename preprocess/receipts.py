"""What a finished shard leaves behind: enough to write index, manifest and quarantine report without reading shards.

One file per shard number, covering every output made from it. The same shard gives the same receipt.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.pipeline.format.manifest import INDEX_SCHEMA, SampleRow
from feedline.preprocess.fingerprint import Fingerprint
from feedline.preprocess.quarantine import Quarantined

KINDS = {
    "label": "<i4",
    "shard": "<i4",
    "offset": "<i8",
    "length": "<i8",
    "width": "<i4",
    "height": "<i4",
    "crc32": "<u4",
}
ROW = np.dtype(list(KINDS.items()))


@dataclass(frozen=True, kw_only=True)
class Written:
    """One output's shard as it lies in its folder."""

    name: str
    bytes: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class Rows:
    """Index rows; all but the key as a table of `ROW`. Plain NumPy: Arrow's first array costs a worker a second."""

    keys: list[str]
    table_N: npt.NDArray[Any]

    @classmethod
    def of(cls, rows: Sequence[SampleRow]) -> "Rows":
        return cls([row.key for row in rows], np.array([*map(attrgetter(*KINDS), rows)], ROW))


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
    """Index rows of each output."""
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    notes: dict[str, int] = field(default_factory=dict[str, int])

    def to_bytes(self) -> bytes:
        """One line of JSON, then keys and columns of each output, then SHA-256 of it all."""
        columns: list[bytes] = []
        for rows in self.rows:
            columns.append("\0".join(rows.keys).encode("utf-8", "surrogateescape"))
            columns += [rows.table_N[name].tobytes() for name in KINDS]
        fields = {name: value for name, value in vars(self).items() if name != "rows"} | {
            "fingerprint": vars(self.fingerprint),
            "outputs": [vars(written) for written in self.outputs],
            "quarantined": [vars(bad) for bad in self.quarantined],
            "lengths": [len(column) for column in columns],
        }
        body = b"".join([json.dumps(fields, sort_keys=True).encode(), b"\n", *columns])
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Receipt | None":
        """None for anything that is not a whole receipt."""
        body, digest = data[:-32], data[-32:]
        if hashlib.sha256(body).digest() != digest:
            return None
        head, _, rest = body.partition(b"\n")
        fields: dict[str, Any] = json.loads(head)
        ends = np.cumsum([0, *fields.pop("lengths")]).tolist()
        columns = iter([rest[start:end] for start, end in pairwise(ends)])
        outputs = [Written(**written) for written in fields.pop("outputs")]
        rows: list[Rows] = []
        for written in outputs:
            keys = next(columns).decode("utf-8", "surrogateescape").split("\0") if written.samples else []
            table_N = np.empty(written.samples, ROW)
            for name, kind in KINDS.items():
                table_N[name] = np.frombuffer(next(columns), kind)
            rows.append(Rows(keys, table_N))
        quarantined = [Quarantined(**row) for row in fields.pop("quarantined")]
        made_by = Fingerprint(**fields.pop("fingerprint"))
        return cls(fingerprint=made_by, outputs=outputs, quarantined=quarantined, rows=rows, **fields)


def receipts_folder(plan_hash: str) -> str:
    return f"receipts-{plan_hash[:16]}"


def receipt_name(plan_hash: str, split: str, shard: int) -> str:
    return f"{receipts_folder(plan_hash)}/{split}-{shard:06d}.receipt"


def index_table(rows: Sequence[Rows]) -> pa.Table:
    """The index of a split from its shards' rows, in order."""
    table_N = np.concatenate([part.table_N for part in rows])
    keys = pa.array([key for part in rows for key in part.keys], pa.string())
    others = [pa.array(np.ascontiguousarray(table_N[name]), INDEX_SCHEMA.field(name).type) for name in KINDS]
    return pa.Table.from_arrays([keys, *others], schema=INDEX_SCHEMA)
