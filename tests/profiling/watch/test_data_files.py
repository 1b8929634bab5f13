"""Dropping files from the page cache."""

from pathlib import Path

import pytest

from feedline.profiling.watch import data_files
from feedline.profiling.watch.data_files import drop


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
