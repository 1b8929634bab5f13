"""What a finished shard leaves behind: enough to write index, manifest and quarantine report without reading shards.

One file per shard number, covering every output made from it. The same shard gives the same receipt.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.pipeline.format.manifest import INDEX_SCHEMA, SampleRow, ShardInfo
from feedline.preprocess.quarantine import Quarantined

COLUMNS = [name for name in INDEX_SCHEMA.names if name != "key"]
ROW = np.dtype([(name, INDEX_SCHEMA.field(name).type.to_pandas_dtype()) for name in COLUMNS])


@dataclass(frozen=True)
class Rows:
    """Index rows; all but the key as a table of `ROW`. Plain NumPy: Arrow's first array costs a worker a second."""

    keys: list[str]
    table_N: npt.NDArray[Any]

    @classmethod
    def of(cls, rows: Sequence[SampleRow]) -> "Rows":
        return cls([row.key for row in rows], np.array([*map(attrgetter(*COLUMNS), rows)], ROW))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    bytes_in: int
    formats: dict[str, str]
    """That were read, as in a `Fingerprint`."""
    shards: list[ShardInfo]
    """In each output, as it lies there."""
    rows: list[Rows]
    """Index rows of each output."""
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    notes: dict[str, int] = field(default_factory=dict[str, int])
    stamp: str = ""
    """Of the source's files that it was made of (`Plan.stamp`)."""

    def to_bytes(self) -> bytes:
        """SHA-256 of the rest, and a line of JSON."""
        rows = [(rows.keys, base64.b64encode(rows.table_N.tobytes()).decode()) for rows in self.rows]
        body = json.dumps(vars(self) | {"rows": rows}, sort_keys=True, default=vars).encode()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes) -> "Receipt | None":
        """None for anything that is not a whole receipt of this version: its shard is then made again."""
        digest, _, body = data.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        try:
            fields: dict[str, Any] = json.loads(body)
            fields["shards"] = [ShardInfo(**shard) for shard in fields["shards"]]
            rows = ((keys, base64.b64decode(table)) for keys, table in fields["rows"])
            fields["rows"] = [Rows(keys, np.frombuffer(table, ROW)) for keys, table in rows]
            fields["quarantined"] = [Quarantined(**bad) for bad in fields["quarantined"]]
            return cls(**fields)
        except (TypeError, KeyError, ValueError):
            return None


def receipts_folder(plan_hash: str) -> str:
    return f"receipts-{plan_hash[:16]}"


def receipt_name(plan_hash: str, split: str, shard: int) -> str:
    return f"{receipts_folder(plan_hash)}/{split}-{shard:06d}.receipt"


def index_table(rows: Sequence[Rows]) -> pa.Table:
    """The index of a split from its shards' rows, in order.

    Arrays are made of buffers: `pa.array` imports pandas where there is one, which takes longer than all the rest.
    """
    table_N = np.concatenate([part.table_N for part in rows])
    keys = [key.encode() for part in rows for key in part.keys]
    ends_N = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    text = [None, pa.py_buffer(ends_N), pa.py_buffer(b"".join(keys))]
    columns = [pa.Array.from_buffers(pa.string(), len(keys), text)]
    for name in COLUMNS:
        values = pa.py_buffer(np.ascontiguousarray(table_N[name]))
        columns.append(pa.Array.from_buffers(INDEX_SCHEMA.field(name).type, len(keys), [None, values]))
    return pa.Table.from_arrays(columns, schema=INDEX_SCHEMA)
