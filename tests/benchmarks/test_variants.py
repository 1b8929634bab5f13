"""Cells of a grid over shards differ in what the grid varies, and in nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from feedline.benchmarks.commands import stamp_of
from feedline.benchmarks.variants import completed

BASE = {"size": 256, "codec": "jpeg", "quality": 90, "resize": "shortest"}


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        ({}, BASE),
        ({"quality": 80}, BASE | {"quality": 80}),
        ({"codec": "raw"}, {"size": 256, "codec": "raw", "resize": "square"}),
        ({"size": 64, "codec": "raw"}, {"size": 64, "codec": "raw", "resize": "square"}),
        ({"codec": "planes", "quality": 80}, {"size": 256, "codec": "planes", "resize": "shortest"}),
        ({"codec": "keep", "size": 64}, {"codec": "keep"}),
        ({"shards": 8}, BASE | {"shards": 8}),
    ],
)
def test_what_is_not_asked_for_is_as_in_the_largest_shards(asked: dict[str, Any], whole: dict[str, Any]) -> None:
    assert completed(asked, BASE) == whole


def test_chroma_is_as_in_the_shards_too() -> None:
    base = BASE | {"subsampling": "444"}
    assert completed({"quality": 80}, base) == base | {"quality": 80}
    assert "subsampling" not in completed({"codec": "planes"}, base)


def test_raw_shards_are_found_as_they_are() -> None:
    for base in ({"codec": "raw", "resize": "none"}, {"size": 64, "codec": "raw", "resize": "shortest"}):
        assert completed({}, base) == base


def test_from_raw_images_the_defaults_are_prepare_s_own() -> None:
    assert completed({"quality": 80}, {}) == {"quality": 80}
    assert completed({"codec": "raw"}, {}) == {"codec": "raw", "resize": "square"}


def test_a_source_that_changed_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    stamps = [stamp_of(tmp_path)]
    (tmp_path / "train" / "cat" / "new.jpg").touch()
    stamps.append(stamp_of(tmp_path))
    (tmp_path / "images.tar").write_bytes(b"1")
    os.utime(tmp_path, ns=(1, 1))
    stamps.append(stamp_of(tmp_path))
    (tmp_path / "images.tar").write_bytes(b"22")
    os.utime(tmp_path, ns=(1, 1))
    stamps.append(stamp_of(tmp_path))
    assert stamps[-1] == stamp_of(tmp_path)
    assert len({str(stamp) for stamp in stamps}) == 4
