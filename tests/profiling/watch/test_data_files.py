"""Dropping files from the page cache."""

import os
from pathlib import Path

import pytest

from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.watch import data_files
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.data_files import collect_paths, drop, is_cached, opened
from feedline.profiling.watch.feed import Feed, Feeds, WatchedLoader
from feedline.profiling.watch.legs.ways import Batches, Cold
from feedline.profiling.watch.patches import Patches


@pytest.mark.parametrize(
    ("cached", "share", "words"),
    [(False, 0.5, "4 of 8 files dropped"), (True, 0.0, "did not work: 4 of 4"), (None, None, "cannot be told here")],
)
def test_what_could_be_dropped_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool | None, share: float | None, words: str
) -> None:
    files = [tmp_path / str(number) for number in range(4)]
    for one in files:
        one.write_bytes(b"x" * 10_000)
    monkeypatch.setattr(data_files, "is_cached", lambda path: cached)
    told = drop([*map(str, files), *[str(tmp_path / "gone")] * 4])
    assert told.share == share and words in told.note
    assert drop([]).share == 0.0 and "not known" in drop([]).note


class Adapter(WatchedLoader):
    kind = "torch"


def test_only_files_that_were_read_and_are_there_make_a_leg_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is written, and a file that was asked for in vain, are none of the data."""
    monkeypatch.setattr(data_files, "is_cached", lambda path: False)
    data, log = tmp_path / "data.bin", tmp_path / "log"
    data.write_bytes(b"x")
    collect_paths()
    assert data.read_bytes()
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT))
    with pytest.raises(FileNotFoundError):
        (tmp_path / "none.bin").read_bytes()
    assert str(data) in opened and str(log) not in opened
    capture, loader = Capture(Journal(tmp_path), StudyConfig()), Adapter()
    capture.leave(None)
    cold = Cold()
    cold.begin(Batches(Feed(Feeds(capture, Patches(print)), Adapter(), loader, iter), Journal(tmp_path)))
    assert cold.dropped == 1.0 and "1 of 1 file dropped" in cold.note


def test_an_empty_file_is_in_memory_no_more_than_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert is_cached(str(tmp_path / "empty")) is None
