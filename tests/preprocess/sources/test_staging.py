"""Staging tars are written once for a source, and again where their stamp does not say so."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feedline.preprocess.sources.staging import STAMP, Unpacked, staged


class Source:
    def __init__(self) -> None:
        self.unpacked = 0

    def samples(self) -> Iterator[Unpacked]:
        self.unpacked += 1
        yield Unpacked("train", "a", b"\xff\xd8\xff", "0")

    def staged(self, folder: Path, version: int = 1) -> int:
        """How often it has been unpacked by then."""
        (tar,), classes = staged(folder, {"version": version}, self.samples(), [{"name": "cat"}])
        assert Path(tar.path).exists() and classes == [{"name": "cat"}]
        return self.unpacked


def test_the_same_source_is_unpacked_once(tmp_path: Path) -> None:
    source = Source()
    assert [source.staged(tmp_path, version) for version in (1, 1, 2, 2)] == [1, 1, 2, 2]
    (tmp_path / "train-000000.tar").unlink()
    assert source.staged(tmp_path, 2) == 3


def test_tars_are_on_the_disk_before_the_stamp_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    Source().staged(tmp_path)
    assert "train-000000.tar" in synced[0] and STAMP in synced[1]


@pytest.mark.parametrize("stamp", ["", "{", "[]", "null", "7", '{"made_from": {"version": 1}}',
                                   '{"made_from": {"version": 1}, "tars": [["train"]], "classes": []}',
                                   '{"made_from": {"version": 1}, "tars": [["train", 3]], "classes": []}',
                                   "[" * 100_000])  # fmt: skip
def test_a_stamp_that_is_damaged_or_of_another_version_counts_for_nothing(tmp_path: Path, stamp: str) -> None:
    source = Source()
    source.staged(tmp_path)
    (tmp_path / STAMP).write_text(stamp)
    assert source.staged(tmp_path) == source.staged(tmp_path) == 2
