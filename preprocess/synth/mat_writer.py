"""A MAT-file of version 5 with one struct array, as ImageNet's development kit has; `sources/matfile` reads it."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.preprocess.sources.matfile import ARRAY, CHAR, STRUCT, UTF8

TEXT_BYTES = 116
INT64 = 14
INT32_ELEMENT, UINT32_ELEMENT, INT8_ELEMENT, INT64_ELEMENT = 5, 6, 1, 12


def write_mat(text: bytes, name: str, rows: Sequence[dict[str, Any]]) -> bytes:
    """A file with one struct array, a column; fields are whole numbers, words, or lists of whole numbers."""
    fields = list(rows[0])
    width = max(map(len, fields), default=0) + 1
    names = b"".join(field.encode().ljust(width, b"\0") for field in fields)
    cells = b"".join(element(ARRAY, cell(row[field])) for row in rows for field in fields)
    head = array_head(STRUCT, (len(rows), 1), name)
    body = head + element(INT32_ELEMENT, struct.pack("<i", width)) + element(INT8_ELEMENT, names) + cells
    return text.ljust(TEXT_BYTES)[:TEXT_BYTES] + bytes(8) + struct.pack("<H", 0x0100) + b"IM" + element(ARRAY, body)


def cell(value: Any) -> bytes:
    if isinstance(value, str):
        return array_head(CHAR, (1, len(value))) + element(UTF8, value.encode())
    numbers = value if isinstance(value, list) else [value]
    data = np.array(numbers, "<i8").tobytes()
    return array_head(INT64, (1, len(numbers))) + element(INT64_ELEMENT, data)


def array_head(kind: int, dimensions: tuple[int, int], name: str = "") -> bytes:
    flags, sizes = struct.pack("<II", kind, 0), struct.pack("<ii", *dimensions)
    return (element(UINT32_ELEMENT, flags) + element(INT32_ELEMENT, sizes)
            + element(INT8_ELEMENT, name.encode()))  # fmt: skip


def element(kind: int, data: bytes) -> bytes:
    if 0 < len(data) <= 4 and kind != ARRAY:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)
