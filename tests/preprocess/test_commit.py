"""A job that dies at its very end."""

from pathlib import Path
from typing import Any

import pytest

from feedline.preprocess import commit
from feedline.preprocess.config import parse_output
from feedline.preprocess.verify import verify
from feedline.preprocess.write_shard import Outcome
from tests.preprocess.making import Killed, digests, prepare


def test_a_death_between_the_manifests_is_mended(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tuple(parse_output(text) for text in ("64:jpeg", "32:raw"))
    prepare(images, tmp_path / "calm", outputs=outputs)
    whole = commit.publish

    def dies_after_one(store: Any, splits: dict[str, Any]) -> None:
        whole(store, dict(list(splits.items())[:1]))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", dies_after_one)
        with pytest.raises(Killed):
            prepare(images, tmp_path / "out", outputs=outputs)
    assert not verify(str(tmp_path / "out"))["ok"]
    prepare(images, tmp_path / "out", outputs=outputs)
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_hours_of_all_of_imagenet_are_told_as_exactly_for_many_cores() -> None:
    told = commit.projection([Outcome(samples=1000, total_s=0.5)] * 2)
    assert told is not None
    hours = told["hours_by_cores"]
    assert hours["128"] * 128 == pytest.approx(hours["2"] * 2, rel=0.01)


def test_a_report_that_was_being_written_when_it_died_goes_with_the_next_start(
    clean_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    left = [out / ".report.json.0123abcd.4194303.tmp", out / ".mine.txt.0123abcd.4194303.tmp"]
    for path in left:
        path.write_text("{")
    prepare(clean_images, out)
    assert [path.exists() for path in left] == [False, True]
