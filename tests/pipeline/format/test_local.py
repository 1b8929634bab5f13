"""A shard is a file or an error of one line, whatever lies in its place."""

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.local import LocalFiles


def test_a_shard_opens(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").write_bytes(b"bytes")
    files = LocalFiles(tmp_path, ["train-000000.tar"])
    assert files.read(0, 1, 3) == b"yte"
    out = np.empty((2, 1), np.uint8)
    files.read_into(0, 5, out)
    assert out.tobytes() == b"es"
    for wrong in (lambda: files.read(0, 3, 3), lambda: files.read_into(0, 6, out)):
        with pytest.raises(DatasetError, match="is cut short: it ends before byte 6; copy it again, or run"):
            wrong()
    files.close()


def test_no_shard_is_opened_of_a_split_that_was_prepared_anew(tmp_path: Path) -> None:
    manifest, shards = tmp_path / "manifest.json", ["a.tar", "b.tar", "c.tar"]
    manifest.write_text("{}")
    for name in shards:
        (tmp_path / name).write_bytes(b"bytes")
    files = LocalFiles(tmp_path, shards, identity=hashlib.sha256(b"{}").hexdigest())
    assert files.read(0, 0, 5) == b"bytes"
    manifest.unlink()
    manifest.write_text("{}")  # a copy, or a file system whose inodes change
    assert files.read(1, 0, 5) == b"bytes"
    manifest.write_text("[]")
    files.announce(2, 0, 5)  # says nothing
    with pytest.raises(DatasetError, match="was prepared anew or taken away"):
        files.read(2, 0, 5)
    assert files.read(0, 0, 5) == b"bytes", "it is open"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "folder", "loop", "missing"):
        with pytest.raises(DatasetError, match=f"{name} cannot be read"):
            LocalFiles(tmp_path, [name]).read(0, 0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_descriptor_that_went_stale_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(b"bytes")
    files, real, failures = LocalFiles(tmp_path, ["a.tar"]), os.pread, [OSError(errno.ESTALE, "Stale file handle")]
    first = files.opened(0)

    def pread(number: int, length: int, offset: int) -> bytes:
        if failures:
            raise failures.pop()
        return real(number, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert files.read(0, 0, 5) == b"bytes" and files.opened(0) is not first
    failures += [OSError(errno.ESTALE, "Stale file handle")] * 2
    with pytest.raises(DatasetError, match=r"a\.tar cannot be read: Stale file handle"):
        files.read(0, 0, 5)


def test_a_shard_that_gives_way_stays_open_for_whoever_reads_it(tmp_path: Path) -> None:
    """Another thread, say, which got it before."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    files = LocalFiles(tmp_path, ["a", "b"], most_open=1)
    held = files.opened(0)
    assert files.read(1, 0, 1) == b"b" and os.pread(held.number, 1, 0) == b"a"
    number = held.number
    del held
    with pytest.raises(OSError):
        os.fstat(number)
