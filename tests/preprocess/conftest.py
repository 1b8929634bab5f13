"""One small folder of photographs, with and without oddities."""

from pathlib import Path

import pytest

from tests.preprocess.making import write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 classes of 16 photographs, and five oddities of which two are unusable."""
    return write_images(tmp_path_factory.mktemp("source") / "images")


@pytest.fixture(scope="session")
def clean_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("source") / "images", oddities=False)
