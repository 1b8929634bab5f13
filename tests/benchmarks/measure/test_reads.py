"""Reads of a dataset's own files, on whatever file system the tests have; slow ones are in tests/lab."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.benchmarks.measure import reads
from feedline.benchmarks.measure.reads import Piece, in_memory, measure_reads, pieces_of_files, pieces_of_split
from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.manifest import read_index
from tests.lab import tiny_split

MIB = 1 << 20


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "long"
    with path.open("wb") as file:
        file.write(os.urandom(9 * MIB + 123))
        os.fsync(file.fileno())  # what is not on the disk yet cannot be dropped
    return path


def takes_direct(path: Path) -> bool:
    """Whether the tests' file system can be read past the page cache."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        return os.preadv(file, [mmap.mmap(-1, mmap.PAGESIZE)], 0) > 0
    except OSError:
        return False
    finally:
        os.close(file)


def test_a_profile_reads_where_arrow_is_not_installed() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import feedline.benchmarks.measure.reads"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_is_gone_leaves_no_other_open(long: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    pieces = [*pieces_of_files([str(long)], 30_000), Piece(long.with_name("gone"), 0, 4096)]
    with pytest.raises(DatasetError, match="gone"):
        measure_reads(pieces, seconds=0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("direct", [True, False])
def test_random_and_sequential_reads_of_a_long_file(
    long: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    if not direct:
        monkeypatch.setattr(reads, "DIRECT", 0)
    found = measure_reads(pieces_of_files([str(long)], 30_000), seconds=0.1)
    assert found is not None and found.piece_bytes == 30_000 and found.at_once[:2] == [1, 4]
    assert min(found.random_bytes_per_s) > 0 and found.latency_s > 0
    assert found.sequential_bytes_per_s is not None
    assert found.cold == (1.0 if direct and takes_direct(long) else None)


def test_single_files_are_read_whole_and_say_nothing_of_sequence(tmp_path: Path) -> None:
    for number in range(100):  # more than are kept open
        (tmp_path / f"{number}.jpg").write_bytes(bytes(5000 + number))
    (tmp_path / "empty.jpg").touch()
    paths = [*map(str, sorted(tmp_path.iterdir())), str(tmp_path), str(tmp_path / "gone")]
    pieces = pieces_of_files(paths, 5100.0)
    assert len(pieces) == 101 and all(one.offset == 0 for one in pieces)
    found = measure_reads(pieces, seconds=0.05)
    assert found is not None and 5000 <= found.piece_bytes <= 5099 and found.sequential_bytes_per_s is None


def test_what_is_in_memory_is_told_where_the_kernel_tells(long: Path) -> None:
    pieces = [Piece(long, 0, MIB), Piece(long, 4097, 10), Piece(long, 9 * MIB, 123)]
    long.read_bytes()
    assert in_memory(pieces) in (1.0, None)
    assert in_memory([Piece(long.with_name("gone"), 0, 10)]) is None and in_memory([]) is None


def test_pieces_of_a_split_are_its_samples(tmp_path: Path) -> None:
    split = tmp_path / "train"
    manifest = tiny_split.write(split, 48, 3)
    index = read_index(split, manifest)
    pieces = pieces_of_split(split, index, manifest.shard_names)
    places = {(split / manifest.shard_names[shard], offset, length)
              for shard, offset, length in map(index.place, range(48))}  # fmt: skip
    assert {tuple(one) for one in pieces} == places and len(pieces) == 48


def test_nothing_to_read_is_no_measurement() -> None:
    assert measure_reads([]) is None and pieces_of_files([], None) == []
    assert measure_reads([Piece(Path("nowhere"), 0, 0)]) is None


@pytest.mark.parametrize("direct", [True, False])
def test_files_that_are_gone_or_cut_short_are_one_line(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    if not direct:
        monkeypatch.setattr(reads, "DIRECT", 0)
    with pytest.raises(DatasetError, match=r"gone cannot be read: No such file"):
        measure_reads([Piece(tmp_path / "gone", 0, 10)], seconds=0.02)
    with pytest.raises(DatasetError, match="is cut short: it ends before byte 9,437,308"):
        measure_reads([Piece(long, 9 * MIB, 124)], seconds=0.02)
    with pytest.raises(DatasetError, match="is cut short"):
        measure_reads([Piece(long, 20 * MIB, 10)], seconds=0.02)
