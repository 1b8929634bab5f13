"""What a killed job left is cleared by the next one, and by nobody before."""

import tempfile
from pathlib import Path

import pytest

from feedline.pipeline.base.scratch import PREFIX, clear_abandoned, scratch_folder


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_in_use_stays_and_an_abandoned_one_goes(tmp_path: Path) -> None:
    abandoned = tmp_path / f"{PREFIX}spark-gone"
    abandoned.mkdir()
    with scratch_folder("profile"):
        assert abandoned.exists(), "only its own kind knows what may still be at work there"
    with scratch_folder("spark") as folder:
        clear_abandoned()
        assert folder.exists() and not abandoned.exists()
    assert not folder.exists()
