"""A receipt is read back as it was, or not at all."""

import hashlib
import json
from typing import Any

import pytest

from feedline.pipeline.format.manifest import SampleRow, ShardInfo
from feedline.preprocess.quarantine import Quarantined
from feedline.preprocess.receipts import Receipt, Rows

SHARD = ShardInfo(name="train-000000.tar", samples=1, planned_samples=2, bytes=2048, sha256="0" * 64)
ROW = SampleRow(key="a", label=1, shard=0, offset=512, length=9, width=4, height=3, crc32=7)
BAD = Quarantined(split="train", key="b", label=0, reason="empty", detail="", source="b.jpg", offset=0, length=0,
                  file="", shard=0, position=1)  # fmt: skip
RECEIPT = Receipt(bytes_in=9, formats={}, shards=[SHARD], rows=[Rows.of([ROW])], quarantined=[BAD])


def test_it_comes_back_as_it_was() -> None:
    data = RECEIPT.to_bytes()
    read = Receipt.from_bytes(data)
    assert read is not None and (read.shards, read.quarantined) == ([SHARD], [BAD])
    assert read.to_bytes() == data
    assert Receipt.from_bytes(data[:-1]) is Receipt.from_bytes(b"") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"more": 1},
        {"shards": [vars(SHARD) | {"more": 1}]},
        {"quarantined": [{"key": "b"}]},
        {"rows": [[["a"], "AAAA"]]},
        {"rows": None},
    ],
)
def test_one_of_another_version_counts_as_none(fields: dict[str, Any]) -> None:
    body = json.dumps(json.loads(RECEIPT.to_bytes().partition(b"\n")[2]) | fields).encode()
    assert Receipt.from_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body) is None
