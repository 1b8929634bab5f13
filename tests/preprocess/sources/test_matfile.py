"""MAT-files beside scipy's reading and writing of them; damage is refused."""

import io
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from feedline.preprocess.sources.matfile import read_mat
from feedline.preprocess.synth.mat_writer import write_mat

ROWS: list[dict[str, Any]] = [
    {"ID": 1, "WNID": "n01440764", "words": "tench, Tinca tinca", "gloss": "é", "children": []},
    {"ID": 2**40, "WNID": "n2", "words": "x" * 300, "gloss": "", "children": [3, -4]},
]
WRITTEN = write_mat(b"text", "synsets", ROWS)


def by_scipy(*, compressed: bool, **variables: Any) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, variables, do_compression=compressed)
    return buffer.getvalue()


def as_table(rows: list[dict[str, Any]]) -> Any:
    table = [tuple(np.array(value) if isinstance(value, list) else value for value in row.values()) for row in rows]
    return np.array(table, dtype=[(name, object) for name in rows[0]]).reshape(-1, 1)


def test_scipy_reads_what_is_written() -> None:
    table = loadmat(io.BytesIO(WRITTEN), squeeze_me=True)["synsets"]
    assert [int(row["ID"]) for row in table] == [1, 2**40]
    assert [str(row["words"]) for row in table] == [row["words"] for row in ROWS]
    assert table[1]["children"].tolist() == [3, -4]


@pytest.mark.parametrize("compressed", [False, True])
def test_what_scipy_writes_is_read(compressed: bool) -> None:
    read = read_mat(by_scipy(compressed=compressed, synsets=as_table(ROWS), cells=np.array(["a", 1], object)))
    assert read["synsets"] == [row | {"ID": [row["ID"]]} for row in ROWS] == read_mat(WRITTEN)["synsets"]
    assert read["cells"] == ["a", [1]]


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_of_every_width(kind: str) -> None:
    assert read_mat(by_scipy(compressed=False, x=np.array([[1, 2], [3, 100]], kind)))["x"] == [1, 3, 2, 100]


@given(data=st.data())
def test_damage_is_an_error_of_values(data: st.DataObject) -> None:
    damaged = bytearray(WRITTEN)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        read_mat(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_more_cells_than_bytes_are_not_counted_up() -> None:
    none = write_mat(b"", "x", [{}])
    dimensions = none.index(b"\x05\0\0\0\x08\0\0\0") + 8
    with pytest.raises(ValueError, match="more cells than bytes"):
        read_mat(none[:dimensions] + b"\xff\xff\xff\x7f" * 2 + none[dimensions + 8 :])
