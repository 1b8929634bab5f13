"""Image folders: splits, labels, keys, and what is not taken for one."""

import hashlib
import os
import re
from pathlib import Path

import pytest

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.preprocess.plan import checked
from feedline.preprocess.sources.base import open_source
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
    with pytest.raises(SourceError, match=r"val/z is no class of the dataset \(1 class\)"):
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
        "no train image: 1 class (first: b)",
        "passed over (1): hidden images",
        "passed over (3): things that are no image files",
    ]
    images(tmp_path, ".kept/1.jpg", ".git/objects")  # ImageFolder takes the first for a class
    assert indexed(tmp_path).notes[0] == (
        f"passed over: hidden folders with images ({tmp_path}/.kept): rename those that are classes"
    )


def test_links(tmp_path: Path) -> None:
    """Linked files and folders are followed, each folder once; one that leads back to where it lies is not."""
    images(tmp_path / "store", "one.jpg", "cats/2.jpg", "more/3.jpg", "more/deep/4.jpg")
    images(tmp_path / "set", "a/1.jpg", "a/real/5.jpg")
    (tmp_path / "set/a/linked.jpg").symlink_to(tmp_path / "store/one.jpg")
    (tmp_path / "set/b").symlink_to(tmp_path / "store/cats")
    (tmp_path / "set/a/more").symlink_to(tmp_path / "store/more")
    for name, target in {"loop": "set", "self": "set/a", "again": "set/a/real"}.items():
        (tmp_path / "set/a" / name).symlink_to(tmp_path / target)
    (tmp_path / "store/more/deep/up").symlink_to(tmp_path / "store/more")
    found = indexed(tmp_path / "set")
    keys = ["a/1", "a/linked", "a/more/3", "a/more/deep/4", "a/real/5", "b/2"]
    assert sorted(found.columns.keys) == keys
    assert found.notes == ["passed over (4): links to folders already listed"]


def test_what_has_no_bytes_or_no_class_is_a_trouble(tmp_path: Path) -> None:
    images(tmp_path, "a/1.jpg", "b/2.jpg", "stray.jpg")
    for name in ("a/broken.jpg", "a/gone", "c"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "b/loop.jpg").symlink_to("loop.jpg")
    found = indexed(tmp_path)
    columns = checked(found.columns, len(found.classes))
    assert {columns.keys[row]: why for row, why in columns.troubles.items()} == {
        "a/broken": "broken link", "a/gone": "broken link", "b/loop": "broken link", "c": "broken link",
        "stray": "no label",
    }  # fmt: skip
    assert [entry["name"] for entry in found.classes] == ["a", "b"]
    assert columns.labels_N[[columns.keys.index(key) for key in ("a/1", "b/2", "stray")]].tolist() == [0, 1, -1]


def test_stray_images_of_a_split_are_troubles_too(tmp_path: Path) -> None:
    images(tmp_path, "train/a/1.jpg", "train/stray.jpg", "val/a/2.jpg", "logo.png", "docs/x.txt")
    (tmp_path / "valid").symlink_to("gone")
    found = indexed(tmp_path)
    assert samples(found)["train", "stray"] == (-1, b"train/stray.jpg")
    assert found.notes == ["left out beside train, val: docs, logo.png, valid"]


def test_images_are_known_by_their_bytes_too(tmp_path: Path) -> None:
    jpeg, png, jp2 = b"\xff\xd8\xff\xe0 photo", b"\x89PNG\r\n\x1a\n", b"\0\0\0\x0cjP  \r\n"
    (tmp_path / "a").mkdir()
    files = {"x.jfif": jpeg, "bare": png, "x.jp2": jp2, "odd.jpg_large": jpeg}
    others = {"text": b"P", "no.txt": b"BMW", "empty": b""}
    for name, data in (files | others).items():
        (tmp_path / "a" / name).write_bytes(data)
    images(tmp_path, "a/empty.jpe")
    found = indexed(tmp_path)
    assert sorted(found.columns.keys) == ["a/bare", "a/empty", "a/odd", "a/x", "a/x-" + found.columns.keys[-1][-8:]]
    assert found.notes == ["passed over (3): things that are no image files"]


def test_a_flat_folder_of_names_without_extension(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(UsageError, match="flat folder of images without labels"):
        open_source(str(tmp_path))


def test_different_images_never_share_a_key(tmp_path: Path) -> None:
    official = "ILSVRC2012_val_00000001.JPEG"
    images(tmp_path, "a/a_b_1.jpg", "a_b/a_b_1.jpg", f"a/{official}", f"c/{official}", "c/x.jpg")
    clash = "c/x-" + hashlib.blake2b(b"c/x.png", digest_size=4).hexdigest()
    images(tmp_path, "c/x.png", f"{clash}.jpg")  # what the hash of c/x.png leads to is there already
    columns = indexed(tmp_path).columns
    assert len(set(columns.keys)) == len(columns) == 7
    assert {"a_b_1", "ILSVRC2012_val_00000001", "c/x", clash} < set(columns.keys)
    assert not checked(columns, len(indexed(tmp_path).classes)).troubles


def test_classes_beside_a_split_are_not_dropped(tmp_path: Path) -> None:
    images(tmp_path, "car/1.jpg", "plane/2.jpg", "train/kind0/3.jpg")
    with pytest.raises(UsageError, match=r"car, plane beside train: .*layout=classes.*splits=train"):
        open_source(str(tmp_path))
    found = indexed(tmp_path, layout="classes")
    assert [entry["name"] for entry in found.classes] == ["car", "plane", "train"]
    assert samples(found)["train", "train/kind0/3"] == (2, b"train/kind0/3.jpg")
    found = indexed(tmp_path, splits="train")
    assert found.columns.keys == ["kind0/3"]
    assert found.notes == ["left out beside train: car, plane"]


def test_a_class_called_val(tmp_path: Path) -> None:
    images(tmp_path, "car/1.jpg", "val/2.jpg")
    with pytest.raises(UsageError, match="or layout=classes if it is a class"):
        open_source(str(tmp_path))
    assert [entry["name"] for entry in indexed(tmp_path, layout="classes").classes] == ["car", "val"]


def test_a_class_folder_called_like_a_tar(tmp_path: Path) -> None:
    images(tmp_path, "a/1.jpg", "z.tar/2.jpg")
    assert [entry["name"] for entry in indexed(tmp_path).classes] == ["a", "z.tar"]
    images(tmp_path / "split", "train/a/1.jpg", "train/z.tar/2.jpg")
    assert [entry["name"] for entry in indexed(tmp_path / "split").classes] == ["a", "z.tar"]


def test_a_split_alone_keeps_the_labels_it_has_beside_the_others(tmp_path: Path) -> None:
    images(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/b/2.jpg", "test/b/3.jpg")
    assert samples(indexed(tmp_path, splits="val")) == {("val", "b/2"): (1, b"val/b/2.jpg")}
    with pytest.raises(UsageError, match="has no folder for test"):
        open_source(str(images(tmp_path / "other", "a/1.jpg")), splits="test")


def test_class_folders_that_are_numbers_in_text_order_are_said(tmp_path: Path) -> None:
    found = indexed(images(tmp_path, "0/1.jpg", "1/1.jpg", "2/1.jpg", "10/1.jpg"))
    assert found.notes == [
        "class folders are labelled in text order: '10' is label 2 (--class-order gives them another)"
    ]


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
    with pytest.raises(UsageError, match=r"/dev/null is neither a folder nor a file: give the folder or archive"):
        open_source("/dev/null")
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


def test_a_folder_that_is_called_otherwise_than_its_split_is_said(tmp_path: Path) -> None:
    images(tmp_path, "Train/a/1.jpg", "validation/a/1.jpg")
    assert indexed(tmp_path).notes == [f"{tmp_path}/validation is taken as the split val"]
    assert indexed(tmp_path, splits="train").notes == []


@pytest.mark.parametrize("above", ["imagenette2", "Data/CLS-LOC"])
def test_a_folder_too_high(tmp_path: Path, above: str) -> None:
    images(tmp_path, *(f"{above}/{split}/n0{n}/1.jpg" for split in ("train", "val", "test") for n in (1, 2)))
    with pytest.raises(UsageError, match=rf"{above} holds the splits: give it as SOURCE"):
        open_source(str(tmp_path))
    assert indexed(tmp_path / above).columns.split_names == ["train", "test", "val"]
    assert len(indexed(tmp_path, layout="classes").columns) == 6
    images(tmp_path, f"{above}/sample.jpg", "Annotations/val/n01/1.xml")  # neither hides the splits
    with pytest.raises(UsageError, match=rf"Annotations and .*{above} hold splits: give that of the images"):
        open_source(str(tmp_path))


def test_a_class_may_hold_albums_with_manifests_of_their_own(tmp_path: Path) -> None:
    assert len(indexed(images(tmp_path, "cat/album/1.jpg", "cat/album/manifest.json", "dog/2.jpg")).classes) == 2


def test_what_prepare_wrote_in_several_forms_is_no_folder_of_classes(tmp_path: Path) -> None:
    images(tmp_path, "quarantine/1.jpg")
    for output in ("256-jpeg", "64-raw"):
        images(tmp_path, f"{output}/train/manifest.json", f"{output}/train/index.parquet")
    with pytest.raises(UsageError, match="holds several prepared datasets: give one of them"):
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
