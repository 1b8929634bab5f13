"""MATLAB's files of version 5, as far as ImageNet's development kit goes: struct arrays of numbers and words.

Format: MathWorks, "MAT-File Format", chapter 1. An element is a tag (type, bytes) and its data, padded to 8 bytes; up
to 4 bytes may stand in the tag itself. An array is an element of elements: flags, dimensions, name, contents.
"""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

HEADER_BYTES = 128
ARRAY, COMPRESSED, UTF8 = 14, 15, 16
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Type of an element -> NumPy's."""
WORDS = {2: "latin-1", 4: "utf-16", UTF8: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, STRUCT, CHAR = 1, 2, 4
"""Classes of arrays."""


def read_mat(data: bytes) -> dict[str, Any]:
    """Variables by name: numbers as flat lists, words as a str, cells as lists, struct arrays as lists of dicts.

    Raises ValueError for what is no such file, or a damaged one.
    """
    mark = data[HEADER_BYTES - 2 : HEADER_BYTES]
    if mark not in (b"IM", b"MI"):
        raise ValueError("no MAT-file of version 5")
    order = "<" if mark == b"IM" else ">"
    try:
        return dict(read_array(body, order) for kind, body in elements(data[HEADER_BYTES:], order) if kind == ARRAY)
    except (struct.error, StopIteration, RuntimeError, LookupError, zlib.error) as error:
        raise ValueError(f"a damaged MAT-file ({type(error).__name__})") from error


def elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """(type, its data) of each; what is compressed is unpacked."""
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, position)
        if kind >> 16:
            kind, size, start, position = kind & 0xFFFF, kind >> 16, position + 4, position + 8
        else:
            start = position + 8
            position = start + size + (0 if kind == COMPRESSED else -size % 8)
        body = data[start : start + size]
        if len(body) < size:
            raise ValueError("a MAT-file that was cut short")
        if kind == COMPRESSED:
            yield from elements(zlib.decompress(body), order)
        else:
            yield kind, body


def read_array(data: bytes, order: str) -> tuple[str, Any]:
    """(name, contents)."""
    parts = elements(data, order)
    if not data:
        return "", []
    (_, flags), (_, dimensions), (_, name) = next(parts), next(parts), next(parts)
    kind = struct.unpack_from(f"{order}I", flags)[0] & 0xFF
    count = prod(np.frombuffer(dimensions, f"{order}i4").tolist())
    if kind in (STRUCT, CELL) and count > len(data):
        raise ValueError("a MAT-file with more cells than bytes")
    return name.decode("latin-1"), read_contents(kind, count, parts, order)


def read_contents(kind: int, count: int, parts: Iterator[tuple[int, bytes]], order: str) -> Any:
    if kind == STRUCT:
        (_, width), (_, names) = next(parts), next(parts)
        step = struct.unpack_from(f"{order}i", width)[0]
        fields = [names[at : at + step].rstrip(b"\0").decode("latin-1") for at in range(0, len(names), step)]
        return [{field: read_array(next(parts)[1], order)[1] for field in fields} for _ in range(count)]
    if kind == CELL:
        return [read_array(next(parts)[1], order)[1] for _ in range(count)]
    element, body = next(parts)
    if kind == CHAR:
        return body.decode(WORDS[element].replace("16", f"16-{order}".replace("<", "le").replace(">", "be")))
    return np.frombuffer(body, f"{order}{NUMBERS[element]}").tolist()
