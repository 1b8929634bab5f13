"""A shard is a file or an error of one line, whatever lies in its place."""

import os
from pathlib import Path

import pytest

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.local import open_shard


def test_a_shard_opens(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").write_bytes(b"bytes")
    descriptor = open_shard(tmp_path / "train-000000.tar")
    assert os.pread(descriptor, 9, 0) == b"bytes"
    os.close(descriptor)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "folder", "loop", "missing"):
        with pytest.raises(DatasetError, match=f"{name} cannot be read"):
            open_shard(tmp_path / name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
