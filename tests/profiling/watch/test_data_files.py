"""Files that a dataset lists; dropping files from the page cache."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.watch import data_files
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.data_files import dataset_files, drop, is_cached
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


@pytest.mark.parametrize("changing", [0.0, 1.0])
def test_only_files_that_are_all_that_is_read_make_a_leg_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changing: float
) -> None:
    """Of a file a sample some were seen, nobody knows of how many."""
    monkeypatch.setattr(data_files, "is_cached", lambda path: False)
    data, journal = tmp_path / "data.bin", Journal(tmp_path)
    data.write_bytes(b"x")
    journal.write("files", {"paths": [str(data), str(tmp_path / "gone.bin")], "changing": changing})
    capture, loader = Capture(journal, StudyConfig()), Adapter()
    capture.leave(None)
    cold = Cold()
    cold.begin(Batches(Feed(Feeds(capture, Patches(print)), Adapter(), loader, iter), journal))
    assert cold.dropped == (None if changing else 1.0) and "1 of 1 file dropped" in cold.note


@pytest.mark.parametrize(
    "entries",
    [
        list,
        lambda files: [str(file) for file in files],
        lambda files: [(str(file), 3) for file in files],
        lambda files: [("cat", 3, file) for file in files],
        lambda files: [{"label": "cat", "file_name": str(file)} for file in files],
        lambda files: [file.name for file in files],
        lambda files: np.array([str(file) for file in files]),
        lambda files: pd.DataFrame({"label": [3] * len(files), "path": [file.name for file in files]}),
        lambda files: pd.DataFrame({"path": files})["path"],
    ],
)
def test_files_that_a_dataset_lists(tmp_path: Path, entries: Any) -> None:
    """In whatever its attribute is called, whole or beside its folder."""
    files = [tmp_path / f"{number}.jpg" for number in range(9)]
    files[0].touch()
    dataset = SimpleNamespace(names=["a", "b"], root=tmp_path, items=entries(files), classes=["cat"] * 20)
    assert dataset_files(dataset) == [*map(str, files)]
    assert len(set(dataset_files(dataset, most=4))) == 4
    assert dataset_files(SimpleNamespace(dataset=dataset)) == [*map(str, files)]


@pytest.mark.parametrize("held", [{}, {"items": []}, {"items": [3, 4]}, {"items": ["gone.jpg"], "root": 5}])
def test_a_dataset_that_lists_none(held: dict[str, Any]) -> None:
    assert dataset_files(SimpleNamespace(**held)) == []


def test_an_empty_file_is_in_memory_no_more_than_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert is_cached(str(tmp_path / "empty")) is None
