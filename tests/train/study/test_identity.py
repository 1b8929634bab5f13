"""A study's folder is joined by those who mean the same study, and by nobody else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.train.study import identity
from feedline.train.study.identity import open_study, versions
from feedline.train.study.tasks import make_once

SAME: dict[str, Any] = {"kind": "sweep", "dataset": "abc", "--epochs": 9, "--widths": (6, 16)}


def test_whoever_means_the_same_joins(tmp_path: Path) -> None:
    for _ in range(2):
        open_study(tmp_path / "study", SAME)


def test_whoever_opens_it_at_the_same_moment_joins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, look = tmp_path / "study", Path.iterdir
    study.mkdir()
    (study / ".study.json.0badcafe.1.tmp").touch()  # another one is writing it

    def meanwhile(folder: Path) -> Iterator[Path]:
        monkeypatch.undo()
        make_once(folder / "study.json", SAME)  # and now has
        return look(folder)

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    open_study(study, SAME)
    (study / "study.json").unlink()
    open_study(study, SAME)
    assert (study / "study.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"dataset": "xyz"}, "another dataset .abc, here xyz"), ({"--epochs": 10}, "another --epochs .9, here 10"),
     ({"--new": 1}, "another --new .None, here 1")],
)  # fmt: skip
def test_another_dataset_space_or_setting_is_refused_with_both(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    open_study(tmp_path / "study", SAME)
    with pytest.raises(UsageError, match=said):
        open_study(tmp_path / "study", SAME | changes)


def test_another_version_is_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_study(tmp_path / "study", versions("torch"))
    monkeypatch.setattr(identity, "version", lambda _: "9.9")
    with pytest.raises(UsageError, match=r"another feedline version .*, here 9\.9"):
        open_study(tmp_path / "study", versions("torch"))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="not empty and no study"):
        open_study(tmp_path, SAME)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UsageError, match="no study"):
        open_study(tmp_path / "notes.txt", SAME)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FeedlineError, match=r"opening the study .*file/study failed: Not a directory"):
        open_study(tmp_path / "file" / "study", SAME)


def test_a_damaged_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        open_study(tmp_path / "study", SAME)
