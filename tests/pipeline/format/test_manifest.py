"""The on-disk format: plain tars that everybody's tools read; index and manifest are believed only if sound."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base import files as atomic
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.pipeline.format.local import LocalFiles

names = st.text(st.characters(blacklist_characters="/.\0\n", blacklist_categories=["Cs"]), min_size=1, max_size=120)


def written(samples: list[tuple[str, bytes]], **metadata: Any) -> tuple[bytes, shard_tar.ShardWriter]:
    file = io.BytesIO()
    with shard_tar.ShardWriter(file, 0) as writer:
        for number, (key, data) in enumerate(samples):
            writer.add(key, data, "jpg", label=number, width=1, height=1, **metadata)
    return file.getvalue(), writer


@given(st.lists(st.tuples(names, st.binary(max_size=1500)), max_size=8, unique_by=lambda sample: sample[0]))
@settings(max_examples=60)
def test_tarfile_reads_what_was_written_and_offsets_point_at_it(samples: list[tuple[str, bytes]]) -> None:
    data, writer = written(samples)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == [
            f"{key}{end}" for key, _ in samples for end in (".jpg", ".cls")
        ]
        for number, (row, (_, image)) in enumerate(zip(writer.rows, samples, strict=True)):
            stored = tar.extractfile(members[2 * number])
            label = tar.extractfile(members[2 * number + 1])
            assert stored is not None and stored.read() == image
            assert label is not None and label.read() == str(number).encode()
            assert data[row.offset : row.offset + row.length] == image
    assert len(data) == writer.bytes and len(data) % shard_tar.RECORD_BYTES == 0


@given(names, st.integers(0, (8 << 30) + 5))
@settings(max_examples=200)
def test_a_header_is_what_tarfile_would_write(name: str, size_bytes: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size_bytes, 0o644
    assert shard_tar.member_header(name, size_bytes) == info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar here")
def test_gnu_tar_lists_and_extracts(tmp_path: Path) -> None:
    data, _ = written([("n01/a", b"first"), ("x" * 150, b"second"), ("é", b"third")], metadata={"width": 3})
    (tmp_path / "s.tar").write_bytes(data)
    done = subprocess.run(["tar", "xf", "s.tar"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "n01/a.jpg").read_bytes() == b"first"
    assert (tmp_path / f"{'x' * 150}.jpg").read_bytes() == b"second"
    assert (tmp_path / "é.json").read_text() == '{"width": 3}'


@pytest.mark.filterwarnings("ignore")
def test_stock_webdataset_reads_them(split: Path) -> None:
    wds = pytest.importorskip("webdataset")
    index = shards.read_index(split)
    dataset = wds.WebDataset([str(path) for path in sorted(split.glob("*.tar"))], shardshuffle=False)
    samples = list(dataset.decode("rgb8").to_tuple("__key__", "jpg", "cls"))
    assert [key for key, _, _ in samples] == index.keys
    assert [label for _, _, label in samples] == index.labels_N.tolist()
    assert all(image.shape == (40, 48, 3) for _, image, _ in samples)


def test_equal_samples_give_equal_bytes_and_the_hash_is_theirs() -> None:
    import hashlib

    samples = [("a", b"1" * 700), ("b", b"")]
    (one, writer), (other, _) = written(samples), written(samples)
    assert one == other
    assert writer.sha256 == hashlib.sha256(one).hexdigest()


def test_an_error_inside_leaves_no_end_of_archive() -> None:
    file = io.BytesIO()
    with pytest.raises(RuntimeError), shard_tar.ShardWriter(file, 0) as writer:
        writer.add("a", b"1", "jpg", label=0, width=1, height=1)
        raise RuntimeError
    assert len(file.getvalue()) == 4 * shard_tar.BLOCK_BYTES


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_shard_sizes_differ_by_one_at_most(samples: int, count: int) -> None:
    sizes = shard_tar.balanced_sizes(samples, count)
    assert sum(sizes) == samples and len(sizes) == count and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shard", [0, 123, 1_281_167])
def test_a_shards_names_are_known_again(shard: int) -> None:
    name = shard_tar.shard_name("train", shard)
    for one in (name, shard_tar.hashed_name(name, "0123456789abcdef" * 4)):
        assert shard_tar.SHARD_NAME.fullmatch(one) and not shard_tar.SHARD_NAME.fullmatch(f"{one}.partial")


@given(st.text(max_size=40))
def test_a_safe_key_has_no_dot_and_stays_in_its_folder(name: str) -> None:
    parts = shard_tar.safe_key(name).split("/")
    assert all(part and "." not in part for part in parts)


# --- index and manifest -------------------------------------------------------------------------------


def test_the_index_says_where_every_sample_is(split: Path) -> None:
    manifest = shards.read_manifest(split)
    index = shards.read_index(split, manifest)
    assert (len(index), index.key(7), index.keys[7]) == (60, "s00007", "s00007")
    files = LocalFiles(split, manifest.shard_names)
    for sample in (0, 59, 30):
        assert zlib.crc32(files.read(*index.place(sample))) == index.crc32_N[sample]
    files.close()


def test_a_table_and_rows_give_the_same_index() -> None:
    _, writer = written([("a", b"1"), ("b", b"22")])
    columns = {name: [getattr(row, name) for row in writer.rows] for name in shards.INDEX_SCHEMA.names}
    table = pa.table(columns, schema=shards.INDEX_SCHEMA)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert shards.index_table_bytes(chunked) == shards.index_bytes(writer.rows)


def test_an_empty_index_is_an_index(tmp_path: Path) -> None:
    (tmp_path / shards.INDEX).write_bytes(shards.index_bytes([]))
    assert len(shards.read_index(tmp_path)) == 0


def changed(split: Path, folder: Path, **columns: Any) -> Path:
    """A copy of the split's index in which row 5 has other values."""
    table = pq.ParquetFile(split / shards.INDEX).read()
    rows = table.to_pydict()
    for name, value in columns.items():
        rows[name][5] = value
    (folder / shards.INDEX).write_bytes(shards.index_table_bytes(pa.table(rows, schema=shards.INDEX_SCHEMA)))
    return folder


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard": 3},
        {"shard": -1},
        {"offset": -1},
        {"offset": 2**62},
        {"length": 2**62},
        {"length": -4},
    ],
)
def test_a_row_that_points_outside_its_shard_is_refused(split: Path, tmp_path: Path, wrong: dict[str, int]) -> None:
    manifest = shards.read_manifest(split)
    with pytest.raises(DatasetError, match="row 5 points outside"):
        shards.read_index(changed(split, tmp_path, **wrong), manifest)


def test_an_index_of_another_dataset_is_refused(split: Path) -> None:
    manifest = replace(shards.read_manifest(split), samples=61)
    with pytest.raises(DatasetError, match=r"60 samples, manifest\.json says 61"):
        shards.read_index(split, manifest)


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "columns", "nulls"])
def test_a_damaged_index_is_one_line(split: Path, tmp_path: Path, damage: str) -> None:
    path, data = tmp_path / shards.INDEX, (split / shards.INDEX).read_bytes()
    if damage == "nulls":
        changed(split, tmp_path, offset=None)
    elif damage == "columns":
        pq.write_table(pa.table({"label": [1]}), path)
    elif damage != "missing":
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"no parquet")
    with pytest.raises(DatasetError, match=r"index\.parquet .*prepare the dataset again$") as raised:
        shards.read_index(tmp_path)
    assert "\n" not in str(raised.value) and "Errno" not in str(raised.value)


MANY = 3_000_000


@pytest.mark.parametrize("footer", ["true", "few in all", "few in all and in the group"])
def test_a_small_file_of_many_rows_takes_no_memory(split: Path, tmp_path: Path, footer: str) -> None:
    """Repeated values cost a file nothing; what its footer says may be wrong in some places."""
    folder = copied(split, tmp_path)
    columns = [pa.array(np.zeros(MANY, np.int8)).cast(field.type) for field in shards.INDEX_SCHEMA]
    data = bytearray(shards.index_table_bytes(pa.table(columns, schema=shards.INDEX_SCHEMA)))
    many, few = varint(MANY), varint(60)
    few = bytes([few[0] | 0x80]) + b"\x80" * (len(many) - 2) + b"\0"
    first, last = data.find(many, len(data) - 5000), data.rfind(many)
    for place in {"true": [], "few in all": [first]}.get(footer, [first, last]):
        data[place : place + len(many)] = few
    (folder / shards.INDEX).write_bytes(data)
    assert len(data) < 200_000
    manifest = replace(shards.read_manifest(folder), index_sha256="")
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(DatasetError, match=r"index\.parquet has 3,?000,?000 samples, manifest\.json says 60"):
            shards.read_index(folder, manifest)
        with pytest.raises(DatasetError, match=r"3,?000,?000"):
            shards.read_index(folder, most_rows=60)
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < 2_000_000


def copied(split: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(split, tmp_path / "copy"))


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes a number that is not negative."""
    number, data = 2 * number, b""
    while number >= 0x80:
        number, data = number >> 7, data + bytes([number & 0x7F | 0x80])
    return data + bytes([number])


def test_a_pipe_in_the_index_s_place_is_not_waited_for(split: Path, tmp_path: Path) -> None:
    folder = copied(split, tmp_path)
    (folder / shards.INDEX).unlink()
    os.mkfifo(folder / shards.INDEX)
    with pytest.raises(DatasetError, match="it is not a regular file"):
        shards.read_index(folder)


def test_no_thread_of_arrow_holds_python_s_memory(split: Path, gil_watch: dict[str, str]) -> None:
    """One that lets go of it while the interpreter ends aborts the process ("terminate called without an …")."""
    code = f"""
from pathlib import Path
from feedline.pipeline.format.manifest import read_index, read_manifest
folder = Path({str(split)!r})
for _ in range(50):
    read_index(folder, read_manifest(folder)).key(3)
"""
    done = subprocess.run([sys.executable, "-c", code], env=gil_watch, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_class_is_called_by_its_name_and_the_first_of_its_others() -> None:
    tench = {"name": "n01440764", "wnid": "n01440764", "names": ["tench", "Tinca tinca"]}
    assert [shards.class_name(entry) for entry in (tench, {"name": "cat", "names": ["cat"]}, {"name": "7"})] == [
        "n01440764 (tench)", "cat", "7"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 99}', '{"format_version": 1}', "\0"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / shards.MANIFEST).write_text(text)
    with pytest.raises(DatasetError, match="manifest"):
        shards.read_manifest(tmp_path)


def test_a_manifest_of_another_version_says_which_and_what_to_do(split: Path) -> None:
    old = shards.read_manifest(split).to_json().replace('"format_version": 2', '"format_version": 1')
    with pytest.raises(DatasetError, match="format version 1, this feedline reads 2: prepare the dataset again"):
        shards.Manifest.from_json(old, "here")


def test_a_manifest_without_an_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / shards.MANIFEST)
    with pytest.raises(DatasetError, match=r"manifest\.json cannot be read: it is not a regular file"):
        shards.read_manifest(tmp_path)
    (tmp_path / shards.MANIFEST).unlink()
    (tmp_path / shards.MANIFEST).write_text("{" + 100 * " ")
    monkeypatch.setattr(shards, "MANIFEST_BYTES", 100)
    with pytest.raises(DatasetError, match="larger than"):
        shards.read_manifest(tmp_path)


@pytest.mark.parametrize("places", [("train", "val"), ("32-raw/train", "64-jpeg/train", "64-jpeg/val")])
def test_who_gives_a_dataset_for_a_split_is_told_its_splits(split: Path, tmp_path: Path, places: list[str]) -> None:
    for place in places:
        shutil.copytree(split, tmp_path / place)
    there = " or ".join(str(tmp_path / place) for place in places)
    with pytest.raises(DatasetError, match=rf"is not a prepared split \(no manifest\.json\): give {there}$"):
        shards.read_manifest(tmp_path)


def test_an_unfinished_prepare_is_no_dataset_yet(tmp_path: Path) -> None:
    (tmp_path / ".feedline").mkdir()
    (tmp_path / shards.UNFINISHED).write_text("{}")
    for read in (shards.prepared_splits, shards.read_manifest):
        with pytest.raises(DatasetError, match="holds an unfinished prepare: run its command again to resume"):
            read(tmp_path)


def test_a_manifest_survives_the_round_trip_and_names_no_file_elsewhere(split: Path) -> None:
    manifest = shards.read_manifest(split)
    assert shards.Manifest.from_json(manifest.to_json(), "here") == manifest
    outside = replace(manifest, shards=[replace(manifest.shards[0], name="../train-000000.tar")])
    with pytest.raises(DatasetError, match="outside its folder"):
        shards.Manifest.from_json(outside.to_json(), "here")


def test_writing_atomically_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    atomic.write_atomically(path, b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        atomic.write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_writers_of_one_process_id_do_not_take_each_others_temporaries(tmp_path: Path) -> None:
    """As in containers that share a folder, where speculative copies of a task write the same receipt."""
    barrier = threading.Barrier(2)

    def write(_: int) -> None:
        for _ in range(20):
            barrier.wait(30)
            atomic.write_atomically(tmp_path / "receipt", b"all of it")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"all of it"]


def test_columns_are_views_of_one_buffer_not_python_objects(split: Path) -> None:
    index = shards.read_index(split)
    for column in (index.labels_N, index.offsets_N, index.crc32_N):
        assert isinstance(column, np.ndarray) and column.dtype != object
