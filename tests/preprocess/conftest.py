"""Small folders of photographs; and what a job makes of the large ones."""

from pathlib import Path

import pytest

from tests.commands import Commands
from tests.preprocess import jobs
from tests.preprocess.making import digests, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 classes of 16 photographs, and five oddities of which two are unusable."""
    return write_images(tmp_path_factory.mktemp("source") / "images")


@pytest.fixture(scope="session")
def clean_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("source") / "images", oddities=False)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """61 large pictures of 3 classes, one of them unusable."""
    return jobs.write_large_images(tmp_path_factory.mktemp("large") / "images")


@pytest.fixture(scope="session")
def calm(feedline: Commands, source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed job writes, whichever engine runs its tasks."""
    out = tmp_path_factory.mktemp("calm") / "out"
    assert feedline(*jobs.words(source, out, "--engine", "processes")).returncode == 0
    return digests(out)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the job's own, so that what is left there can be seen."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder
