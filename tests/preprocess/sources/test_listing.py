"""Names of files under the place that was asked for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.preprocess.sources.base import open_source
from feedline.preprocess.sources.listing import expand, name_under
from tests.preprocess.raw import write_tar


@pytest.mark.parametrize(
    ("base", "name", "under"),
    [
        ("webhdfs://host:9870/user/test/shards", "webhdfs:///user/test/shards/train-0.tar", "train-0.tar"),
        ("sftp://host/d/x", "sftp:///d/x/val/a.tar", "val/a.tar"),
        ("az://box/x", "abfs://box/x/val/a.tar", "val/a.tar"),
        ("abfs://box@account.example/test/x", "abfs://box/test/x/train/a.tar", "train/a.tar"),
        ("s3://bucket/test", "s3://bucket/test/a.tar", "a.tar"),
        ("./test", "test/a.tar", "a.tar"),
        ("", "val/2024/shards/0.tar", "val/2024/shards/0.tar"),
        (".", "val/2024/shards/0.tar", "val/2024/shards/0.tar"),
        ("/d/val.tar", "/d/val.tar", "val.tar"),
    ],
)
def test_no_folder_above_the_source_says_the_split(base: str, name: str, under: str) -> None:
    assert name_under(base, name) == under


def test_a_disk_s_own_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lost+found`, which is root's: as another user sees it."""
    write_tar(tmp_path / "a.tar", [("x.jpg", b"x"), ("x.cls", b"0")])
    (tmp_path / "lost+found").mkdir()

    def denying(real: Callable[..., Any], inside_only: bool) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **options: Any) -> Any:
            if "lost+found" in str(path) and not (inside_only and str(path).endswith("lost+found")):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **options)

        return call

    monkeypatch.setattr(os, "stat", denying(os.stat, True))
    monkeypatch.setattr(os, "scandir", denying(os.scandir, False))
    assert open_source(str(tmp_path)).kind == "shards"


def test_a_file_by_several_names_is_read_once(tmp_path: Path) -> None:
    """By links, by a loop of folders, by a pattern that says it twice; links of another split are meant so."""
    folder = tmp_path / "set"
    (folder / "val").mkdir(parents=True)
    write_tar(folder / "b.tar", [("x.jpg", b"x"), ("x.cls", b"0")])
    (folder / "a.tar").symlink_to("b.tar")
    (folder / "loop").symlink_to(".")
    assert [file.path for file in expand(str(folder), (".tar",), {})] == [str(folder / "b.tar")]
    assert [file.under for file in expand(f"{folder}/{{b,b*}}.tar", (".tar",), {})] == ["b.tar"]
    (folder / "loop").unlink()
    (folder / "val" / "v.tar").symlink_to("../b.tar")
    assert [file.split for file in expand(str(folder), (".tar",), {})] == ["train", "val"]
