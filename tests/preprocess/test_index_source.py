"""A source becomes columns, and is watched from then on."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from feedline.pipeline.base.errors import FeedlineError
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.index_source import indexed, source_stats
from tests.preprocess.making import After, Here, prepare, write_images


def test_a_long_index_says_how_far_it_is(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.preprocess.index_source.NEWS_S", 0.0)
    said: list[str] = []
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), max_bad=0.2)
    door.prepare(config, on_note=said.append, engine=Here())
    assert "indexing: 1 of 1 piece, 53 samples" in said


def test_classes_of_one_name_are_said(tmp_path: Path) -> None:
    """A tab is escaped in a manifest; a folder may be called by the escape."""
    for number, name in enumerate(("a\tb", r"a\tb")):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "in" / name / "1.png")
    notes: list[str] = []
    config = PrepareConfig(source=str(tmp_path / "in"), out=str(tmp_path / "out"))
    door.prepare(config, on_note=notes.append, engine=Here())
    assert r"several classes are called 'a\\tb': each keeps a label of its own" in notes


def test_pieces_are_indexed_beside_each_other_and_stay_in_order() -> None:
    """Each of the two waits for the other."""
    meeting = threading.Barrier(2, timeout=60)

    class Piece:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self) -> Any:
            meeting.wait()
            return [self.name]

    pieces: list[Any] = [Piece("one"), Piece("other")]
    assert indexed(pieces, 2, lambda _: None) == [["one"], ["other"]]


def test_each_of_many_files_is_watched(tmp_path: Path) -> None:
    """Written anew with the same length, while the job runs."""
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    changes = After(lambda: os.utime(source / "bear" / "bear_1.JPEG", ns=(1, 1)))

    assert source_stats(["s3://bucket/x", str(source / "bear" / "bear_1.JPEG")])[:, 0].tolist()[0] == -1
    assert len(source_stats([str(source / "bear" / "bear_1.JPEG")] * 10_001)) == 10_001
    with pytest.raises(FeedlineError, match=r"bear_1\.JPEG changed while it was read"):
        prepare(source, tmp_path / "out", engine=changes, shards=1)
    with pytest.raises(FeedlineError, match="cannot be read any more"):
        source_stats([str(tmp_path / "gone")])


def test_a_source_that_changes_is_said(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    victim = source / "bear" / "bear_1.JPEG"
    changes = After(lambda: victim.write_bytes(victim.read_bytes() + b"more"))
    with pytest.raises(FeedlineError, match="changed while it was read"):
        prepare(source, tmp_path / "out", engine=changes, shards=1)


def test_a_source_file_that_vanishes_is_said(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    vanishes = After((source / "bear" / "bear_1.JPEG").unlink)
    with pytest.raises(FeedlineError, match="cannot be read any more"):
        prepare(source, tmp_path / "out", engine=vanishes, shards=1)
