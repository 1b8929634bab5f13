"""Image folders: splits, labels, keys, and what is not taken for one."""

import os
import re
from pathlib import Path

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import SourceError, open_source
from tests.preprocess.raw import indexed, samples


def images(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def test_one_level(tmp_path: Path) -> None:
    found = indexed(images(tmp_path, "dog/1.jpg", "cat/1.PNG", "cat/b/2.jpeg", "ape/ape_1.webp"))
    assert [entry["name"] for entry in found.classes] == ["ape", "cat", "dog"]
    assert samples(found) == {
        ("train", "ape_1"): (0, b"ape/ape_1.webp"),
        ("train", "cat/1"): (1, b"cat/1.PNG"),
        ("train", "cat/b/2"): (1, b"cat/b/2.jpeg"),
        ("train", "dog/1"): (2, b"dog/1.jpg"),
    }


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_splits_share_train_s_labels(tmp_path: Path, val: str) -> None:
    images(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", f"{val}/c/1.jpg", "test/b/9.jpg")
    found = indexed(tmp_path)
    assert found.columns.split_names == ["train", "test", "val"]
    assert samples(found)["val", "c/1"] == (2, f"{val}/c/1.jpg".encode())
    assert samples(found)["test", "b/9"][0] == 1
    assert indexed(tmp_path, splits="train,val").columns.split_names == ["train", "val"]


def test_a_val_class_that_train_lacks(tmp_path: Path) -> None:
    images(tmp_path, "train/a/1.jpg", "val/z/1.jpg")
    with pytest.raises(SourceError, match=r"val/z is no class of the dataset \(1 classes\)"):
        indexed(tmp_path)


def test_names_that_collide_or_lead_astray(tmp_path: Path) -> None:
    """Names are safe keys; the later of two names with one key gets a hash, so that nothing is lost."""
    images(
        tmp_path,
        "a/x.jpg",
        "a/x.png",
        "a/p.q.jpg",
        "a/p_q.jpg",
        "a/with space é\n.jpg",
        "a/..jpg",
        "a/back\\slash.jpg",
    )
    keys = indexed(tmp_path).columns.keys
    assert [re.sub(r"-[0-9a-f]{8}$", "-HASH", key) for key in sorted(keys)] == [
        "a/back/slash", "a/p_q", "a/p_q-HASH", "a/with space é_a", "a/x", "a/x-HASH",
    ]  # fmt: skip
    assert keys == indexed(tmp_path).columns.keys


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    images(tmp_path, "a/1.jpg")
    (tmp_path / os.fsdecode(b"a/\xff.jpg")).write_bytes(b"odd")
    found = indexed(tmp_path)
    assert len(found.columns) == 2
    for key in found.columns.keys:
        key.encode("utf-8")
    assert (0, b"odd") in samples(found).values()


def test_what_is_passed_over_is_said(tmp_path: Path) -> None:
    images(tmp_path, "a/1.jpg", "a/notes.txt", "a/.hidden.jpg", "b/readme.md")
    os.mkfifo(tmp_path / "a/pipe.jpg")  # opening it would wait for ever
    found = indexed(tmp_path)
    assert len(found.columns) == 1
    assert found.notes == [
        "no train image: 1 classes (first: b)",
        "passed over: 3 things that are no image files",
    ]


def test_links(tmp_path: Path) -> None:
    """Linked files and class folders are followed; a folder linked into a class may lead back, and is not."""
    images(tmp_path / "store", "one.jpg", "cats/2.jpg")
    images(tmp_path / "set", "a/1.jpg")
    (tmp_path / "set/a/linked.jpg").symlink_to(tmp_path / "store/one.jpg")
    (tmp_path / "set/b").symlink_to(tmp_path / "store/cats")
    (tmp_path / "set/a/loop").symlink_to(tmp_path / "set")
    assert sorted(indexed(tmp_path / "set").columns.keys) == ["a/1", "a/linked", "b/2"]
    (tmp_path / "set/a/broken.jpg").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"broken\.jpg cannot be read: No such file"):
        indexed(tmp_path / "set")


def test_wnids_are_known_as_such(tmp_path: Path) -> None:
    found = indexed(images(tmp_path, "n01440764/n01440764_10.JPEG", "n01440764/other.JPEG"))
    assert found.classes == [{"name": "n01440764", "wnid": "n01440764"}]
    assert found.columns.keys == ["n01440764_10", "n01440764/other"]


# --- wrong use ----------------------------------------------------------------------------------------


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone does not exist: give the folder or archive"):
        open_source(str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="is an empty folder"):
        open_source(str(tmp_path))
    (tmp_path / "text.txt").write_text("hello")
    for unknown in (tmp_path, tmp_path / "text.txt"):
        with pytest.raises(UsageError, match="is not a source of a known kind: give a folder with"):
            open_source(str(unknown))


def test_class_folders_without_images(tmp_path: Path) -> None:
    (tmp_path / "train/a").mkdir(parents=True)
    with pytest.raises(SourceError, match="its class folders hold no image"):
        indexed(tmp_path)


def test_a_flat_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="flat folder of images without labels"):
        open_source(str(images(tmp_path, "1.jpg", "2.jpg")))


def test_a_flat_val_beside_class_folders(tmp_path: Path) -> None:
    images(tmp_path, "train/a/1.jpg", "val/1.jpg", "test/2.jpg")
    with pytest.raises(UsageError, match=r"val is a flat folder .* take --source-option splits=train"):
        open_source(str(tmp_path))
    assert indexed(tmp_path, splits="train").columns.keys == ["a/1"]


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    images(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "validation/a/1.jpg")
    with pytest.raises(UsageError, match="has two folders for val: val and validation"):
        open_source(str(tmp_path))


def test_options(tmp_path: Path) -> None:
    images(tmp_path, "a/1.jpg")
    with pytest.raises(UsageError, match="source option 'colour' is none of kind, splits"):
        open_source(str(tmp_path), colour="red")
    with pytest.raises(UsageError, match="source kind 'zip' is none of"):
        open_source(str(tmp_path), kind="zip")
    with pytest.raises(UsageError, match="splits names 'tarin', which is none of train"):
        open_source(str(tmp_path), splits="tarin")
    with pytest.raises(UsageError, match="is not a parquet source"):
        open_source(str(tmp_path), kind="parquet")
    assert open_source(str(tmp_path), kind="folder").kind == "folder"


@pytest.mark.parametrize("option", ["devkit", "ground_truth", "image_column", "label_column"])
def test_an_option_that_would_change_nothing_is_refused(tiny_folder: Path, option: str) -> None:
    given = {option: str(tiny_folder)}
    with pytest.raises(UsageError, match=f"source option {option} is of no use for .*kind folder"):
        open_source(str(tiny_folder), kind="folder", **given)
