"""A shard is a file or an error of one line, whatever lies in its place."""

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
        with pytest.raises(DatasetError, match="is cut short: it ends before byte 6"):
            wrong()
    files.close()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "folder", "loop", "missing"):
        with pytest.raises(DatasetError, match=f"{name} cannot be read"):
            LocalFiles(tmp_path, [name]).read(0, 0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
