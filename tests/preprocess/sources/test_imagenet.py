"""ILSVRC in every form gives the same samples with the right labels; what is missing or damaged is one clear line."""

import io
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

from feedline.pipeline.base.errors import FeedlineError, SourceError, UsageError
from feedline.preprocess.sources.base import open_source
from tests.preprocess.raw import (
    DEVKIT,
    TRAIN,
    VAL,
    class_folders,
    class_tars,
    indexed,
    link,
    samples,
    unpack,
    write_tar,
)


def wnids(ilsvrc: Path) -> list[str]:
    return json.loads((ilsvrc / "synth.json").read_text())["wnids"]


# --- every form ---------------------------------------------------------------------------------------


def test_archives_equal_the_extracted_folder(tiny_ilsvrc: Path, tiny_folder: Path) -> None:
    found = indexed(tiny_ilsvrc)
    assert samples(found) == samples(indexed(tiny_folder))
    assert len(found.columns) == 48
    assert found.columns.split_names == ["train", "val"]
    assert [entry["wnid"] for entry in found.classes] == sorted(wnids(tiny_ilsvrc))
    assert all(entry["name"] == entry["names"][0] and len(entry["names"]) == 2 for entry in found.classes)


def test_val_labels_by_another_route(tiny_ilsvrc: Path, tiny_folder: Path) -> None:
    """The folder layout says each val image's wnid, without a devkit."""
    order = sorted(wnids(tiny_ilsvrc))
    expected = {path.stem: order.index(path.parent.name) for path in (tiny_folder / "val").glob("*/*.JPEG")}
    found = {key: label for (split, key), (label, _) in samples(indexed(tiny_ilsvrc)).items() if split == "val"}
    assert found == expected


def test_nothing_is_extracted(tiny_ilsvrc: Path) -> None:
    columns = indexed(tiny_ilsvrc).columns
    assert columns.paths == [str(tiny_ilsvrc / TRAIN), str(tiny_ilsvrc / VAL)]
    assert sorted(path.name for path in tiny_ilsvrc.iterdir()) == [DEVKIT, TRAIN, VAL, "synth.json"]


@pytest.mark.parametrize("train", ["archive", "class tars", "class folders"])
@pytest.mark.parametrize("val", ["archive", "flat"])
@pytest.mark.parametrize("devkit", ["archive", "folder"])
def test_each_part_also_unpacked(tiny_ilsvrc: Path, tmp_path: Path, train: str, val: str, devkit: str) -> None:
    parts = tmp_path / "parts"
    forms = {
        "archive": {"TRAIN": tiny_ilsvrc / TRAIN},
        "class tars": {"ILSVRC2012_img_train": parts / "train"},
        "class folders": {"train": parts / "train"},
    }[train]
    if train != "archive":
        (class_tars if train == "class tars" else class_folders)(tiny_ilsvrc, parts / "train")
    forms |= {"VAL": tiny_ilsvrc / VAL} if val == "archive" else {"val": unpack(tiny_ilsvrc / VAL, parts / "val")}
    kit = unpack(tiny_ilsvrc / DEVKIT, parts / "kit") / "ILSVRC2012_devkit_t12"
    forms |= {"DEVKIT": tiny_ilsvrc / DEVKIT} if devkit == "archive" else {"ILSVRC2012_devkit_t12": kit}
    found = indexed(link(tmp_path / "source", **forms))
    assert samples(found) == samples(indexed(tiny_ilsvrc))
    assert found.classes == indexed(tiny_ilsvrc).classes


def test_only_the_train_tar(tiny_ilsvrc: Path) -> None:
    whole = samples(indexed(tiny_ilsvrc))
    train = {place: sample for place, sample in whole.items() if place[0] == "train"}
    assert samples(indexed(tiny_ilsvrc / TRAIN)) == train
    assert samples(indexed(tiny_ilsvrc, splits="train")) == train
    assert indexed(tiny_ilsvrc / TRAIN).classes == [{"name": wnid, "wnid": wnid} for wnid in wnids(tiny_ilsvrc)]


def test_class_tars_of_two_sets_are_not_mixed_up(tiny_ilsvrc: Path) -> None:
    memory: Any = fsspec.filesystem("memory")
    inner = (tiny_ilsvrc / TRAIN).read_bytes()[512:1024]
    for name in ("a/train", "b/train", "c/val"):
        memory.pipe_file(f"/sets/{name}/n00000001.tar", inner)
    with pytest.raises(UsageError, match=r"class tars are in .*a/train and .*b/train: give the folder"):
        open_source("memory://sets")
    with pytest.raises(UsageError, match=r"class tars are in .*c/val: give the folder"):
        open_source("memory://sets/c")


def test_a_folder_of_class_tars_alone(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    found = indexed(class_tars(tiny_ilsvrc, tmp_path / "tars"))
    assert found.columns.split_names == ["train"]
    assert len(found.columns) == 36


def test_the_dogs_of_task_3_are_another_dataset(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, DEVKIT=tiny_ilsvrc / DEVKIT)
    write_tar(source / "ILSVRC2012_img_train_t3.tar", [("n00000001.tar", b"no tar")])
    (source / "ILSVRC2012_devkit_t3.tar.gz").write_bytes(b"no devkit")
    (source / "ILSVRC2012_img_test_v10102019.tar").write_bytes(b"no test")
    assert len(indexed(source).columns) == 36


def test_tasks_are_many_and_their_order_does_not_matter(tmp_path: Path) -> None:
    tars = [
        (f"n{n:08d}.tar", write_tar(tmp_path / "t", [(f"n{n:08d}_1.JPEG", b"%d" % n)]).read_bytes())
        for n in range(40)
    ]
    source = open_source(str(write_tar(tmp_path / TRAIN, tars[::-1])))
    tasks = list(source.tasks())
    assert len(tasks) >= 3
    parts = {number: tasks[number]() for number in reversed(range(len(tasks)))}
    columns = source.finish([parts[number] for number in range(len(tasks))]).columns
    assert columns.labels_N.tolist() == list(range(40))
    assert columns.keys == [f"n{n:08d}_1" for n in range(40)]


def test_hidden_files_are_passed_over_and_odd_names_are_samples(tmp_path: Path) -> None:
    names = ["._n1.JPEG", "a b.JPEG", "ünï.JPEG", "../../evil.JPEG", "/etc/passwd", "noending", "a.b.c.JPEG"]
    inner = write_tar(tmp_path / "inner", [(name, name.encode()) for name in names])
    found = indexed(write_tar(tmp_path / TRAIN, [("n00000001.tar", inner.read_bytes())]))
    keys = [f"n00000001/{key}" for key in ("a b", "ünï", "evil", "etc/passwd", "noending", "a_b_c")]
    assert found.columns.keys == keys


# --- what is missing ----------------------------------------------------------------------------------


def without(tar: Path, target: Path, dropped: str) -> Path:
    with tarfile.open(tar) as archive:
        members = [(m.name, (archive.extractfile(m) or io.BytesIO()).read()) for m in archive if m.name != dropped]
    return write_tar(target, members)


def test_a_missing_class_tar(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    gone = wnids(tiny_ilsvrc)[2]
    source = link(tmp_path / "source", VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    without(tiny_ilsvrc / TRAIN, source / TRAIN, f"{gone}.tar")
    with pytest.raises(SourceError, match=rf"img_train\.tar lacks 1 of 4 class tars \(first: {gone}\): .*=allow"):
        open_source(str(source))
    found = indexed(source, missing_classes="allow")
    assert len(found.classes) == 4
    assert set(found.columns.labels_N[found.columns.splits_N == 0].tolist()) == {0, 1, 3}


def test_an_empty_class_tar(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    hollow = wnids(tiny_ilsvrc)[1]
    empty = write_tar(tmp_path / "empty", [])
    source = link(tmp_path / "source", VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    folder = class_tars(tiny_ilsvrc, tmp_path / "parts")
    (folder / f"{hollow}.tar").write_bytes(empty.read_bytes())
    (source / "ILSVRC2012_img_train").symlink_to(folder)
    with pytest.raises(SourceError, match=f"class {hollow} has no image"):
        indexed(source)


def test_a_class_the_devkit_does_not_know(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    folder = class_tars(tiny_ilsvrc, tmp_path / "parts")
    write_tar(folder / "n99999999.tar", [("n99999999_1.JPEG", b"1")])
    source = link(tmp_path / "source", DEVKIT=tiny_ilsvrc / DEVKIT, ILSVRC2012_img_train=folder)
    with pytest.raises(SourceError, match=r"class n99999999 is none of the 4 of .*devkit"):
        open_source(str(source))


def test_a_stray_image_beside_class_folders_is_a_trouble_and_not_of_the_last_class(
    tiny_ilsvrc: Path, tmp_path: Path
) -> None:
    folders = class_folders(tiny_ilsvrc, tmp_path / "folders")
    last = max(folders.iterdir())
    for image in last.iterdir():
        image.rename(folders / image.name)
    source = link(tmp_path / "source", train=folders, VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    with pytest.raises(SourceError, match=f"class {last.name} has no image"):
        indexed(source)
    found = indexed(source, missing_classes="allow")
    assert found.columns.labels_N[found.columns.splits_N == 0].tolist().count(-1) == 9


def test_links_to_nothing_are_one_line(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    tars = class_tars(tiny_ilsvrc, tmp_path / "tars")
    (tars / "n99999999.tar").symlink_to("gone")
    with pytest.raises(UsageError, match=r"n99999999\.tar cannot be read: No such file"):
        indexed(tars)
    with pytest.raises(UsageError, match="train is a broken link"):
        open_source(str(link(tmp_path / "source", train=tmp_path / "gone")))


def test_a_class_tar_twice(tmp_path: Path) -> None:
    inner = write_tar(tmp_path / "inner", [("n00000001_1.JPEG", b"1")]).read_bytes()
    with pytest.raises(SourceError, match=r"holds class tar n00000001\.tar twice"):
        open_source(str(write_tar(tmp_path / TRAIN, [("n00000001.tar", inner)] * 2)))


def test_val_without_truth(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, VAL=tiny_ilsvrc / VAL)
    with pytest.raises(UsageError, match=r"has no ground truth: .*devkit_t12\.tar\.gz .*splits=train"):
        open_source(str(source))
    assert len(indexed(source, devkit=str(tiny_ilsvrc / DEVKIT)).columns) == 48
    assert len(indexed(source, splits="train").columns) == 36


def test_the_val_tar_alone_finds_the_devkit_beside_it(tiny_ilsvrc: Path) -> None:
    whole = samples(indexed(tiny_ilsvrc))
    val = {place: sample for place, sample in whole.items() if place[0] == "val"}
    assert samples(indexed(tiny_ilsvrc / VAL)) == val


def test_a_val_image_missing_or_too_many(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, DEVKIT=tiny_ilsvrc / DEVKIT)
    without(tiny_ilsvrc / VAL, source / VAL, "ILSVRC2012_val_00000007.JPEG")
    with pytest.raises(SourceError, match=r"11 val images, but .* has 12 lines: 1 .*missing \(first: .*_00000007\)"):
        indexed(source)
    (source / VAL).unlink()
    extra = unpack(tiny_ilsvrc / VAL, tmp_path / "val")
    (extra / "ILSVRC2012_val_00000013.JPEG").write_bytes(b"1")
    (source / "val").symlink_to(extra)
    with pytest.raises(SourceError, match=r"1 without truth \(first: ILSVRC2012_val_00000013\)"):
        indexed(source)


def test_a_val_image_twice(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, DEVKIT=tiny_ilsvrc / DEVKIT)
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (*range(1, 12), 11)]
    write_tar(source / VAL, [(name, b"1") for name in names])
    with pytest.raises(SourceError, match="val image 'ILSVRC2012_val_00000011' is there twice"):
        indexed(source)


# --- ground truth files -------------------------------------------------------------------------------


def truth_of(tiny_folder: Path) -> dict[str, str]:
    return {path.name: path.parent.name for path in sorted((tiny_folder / "val").glob("*/*.JPEG"))}


@pytest.mark.parametrize(
    "form",
    [
        "{name} {wnid}",
        "{name}\t{label}",
        "{name},{label}",
        "{stem},{wnid} 1 2 3 4",
        "{stem},{wnid} 1 2 3 4 {wnid} 5 6 7 8",
        "{wnid}",
    ],
)
def test_a_flat_folder_with_ground_truth(tiny_ilsvrc: Path, tiny_folder: Path, tmp_path: Path, form: str) -> None:
    order = sorted(wnids(tiny_ilsvrc))
    truth = truth_of(tiny_folder)
    lines = [
        form.format(name=name, stem=name.removesuffix(".JPEG"), wnid=truth[name], label=order.index(truth[name]))
        for name in sorted(truth)
    ]
    file = tmp_path / "truth.txt"
    file.write_text("\n".join([*(["ImageId,PredictionString"] if "," in form else []), *lines]))
    source = link(tmp_path / "source", train=tiny_folder / "train", val=unpack(tiny_ilsvrc / VAL, tmp_path / "val"))
    assert samples(indexed(source, ground_truth=str(file))) == samples(indexed(tiny_folder))


def test_a_flat_folder_alone(tiny_ilsvrc: Path, tiny_folder: Path, tmp_path: Path) -> None:
    flat = unpack(tiny_ilsvrc / VAL, tmp_path / "val")
    with pytest.raises(UsageError, match="flat folder of images without labels: give --source-option ground_truth"):
        open_source(str(flat))
    found = indexed(flat, devkit=str(tiny_ilsvrc / DEVKIT))
    whole = samples(indexed(tiny_ilsvrc))
    assert samples(found) == {place: sample for place, sample in whole.items() if place[0] == "val"}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["5"] * 12, "says '5', which is none of the 4 classes; numbers go from 1 to 4"),
        (["n00000000"] * 12, "says 'n00000000', which is none of the 4 classes"),
        (["1"] * 11 + ["x.JPEG 1"], "some lines name their image and some do not"),
        (["ILSVRC2012_val_00000001.JPEG 1"], "'ILSVRC2012_val_00000002' has no truth in"),
        (["-1"] * 12, "says '-1'"),
        (["a.jpg,cat", "b.jpg,"], "line 2 lacks its label"),
        (["a.jpg,cat", ",dog"], "line 2 lacks its image"),
        (["a.jpg,cat", "a.png,dog"], "says 'cat' and 'dog' of image 'a'"),
        (["file,cat,dog", "a.jpg,0,1"], "of its columns (file, cat, dog) none of them is the label"),
        (["file,class_id,class_name", "a.jpg,0,cat"], "several may be the label: leave two, image and label"),
        (["file,label,split", "a.jpg,cat"], "line 2 has not the 3 columns of its header"),
        (["a.jpg,cat,train", "b.jpg,dog,val"], "has 3 columns, and no header says which of them is the label"),
    ],
)
def test_wrong_ground_truth(tiny_ilsvrc: Path, tmp_path: Path, lines: list[str], complaint: str) -> None:
    file = tmp_path / "truth.txt"
    file.write_text("\n".join(lines))
    with pytest.raises(SourceError, match=re.escape(complaint)):
        indexed(tiny_ilsvrc, ground_truth=str(file))


def test_numbers_without_a_devkit(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    file = tmp_path / "truth.txt"
    file.write_text("1\n" * 12)
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, VAL=tiny_ilsvrc / VAL)
    with pytest.raises(SourceError, match="has numbers only: give the devkit"):
        indexed(source, ground_truth=str(file))


@pytest.mark.parametrize("named", [True, False])
def test_numbers_of_a_flat_folder_alone_are_the_labels(tmp_path: Path, named: bool) -> None:
    """Also 10, which comes before 2 as text."""
    (tmp_path / "val").mkdir()
    names = [f"{n:02d}.jpg" for n in range(12)]
    for name in names:
        (tmp_path / "val" / name).write_bytes(b"x")
    file = tmp_path / "truth.txt"
    file.write_text("\n".join(f"{name} {n}" if named else str(n) for n, name in enumerate(names)))
    found = indexed(tmp_path / "val", ground_truth=str(file))
    assert found.columns.labels_N.tolist() == list(range(12))
    assert [entry["name"] for entry in found.classes] == [str(n) for n in range(12)]
    file.write_text(file.read_text().removesuffix("11") + "eleven")
    with pytest.raises(SourceError, match=r"truth\.txt says 'eleven' beside '.*': numbers or words\?"):
        indexed(tmp_path / "val", ground_truth=str(file))
    file.write_text("\n")
    with pytest.raises(SourceError, match=r"12 val images, but .*truth\.txt has 0 lines"):
        indexed(tmp_path / "val", ground_truth=str(file))


def test_a_table_of_names_and_words(tmp_path: Path) -> None:
    """With a header, quotes, and classes of several words: these were cut at the first blank, so that two eagles of
    different kinds became one class, and the header's word a class of its own."""
    (tmp_path / "val").mkdir()
    for name in "abc":
        (tmp_path / "val" / f"{name}.jpg").write_bytes(b"x")
    file = tmp_path / "truth.csv"
    file.write_text('filename,label\n"a.jpg","golden eagle"\nb.jpg, golden retriever\nc.jpg,"horse, brown"\n')
    found = indexed(tmp_path / "val", ground_truth=str(file))
    assert [entry["name"] for entry in found.classes] == ["golden eagle", "golden retriever", "horse, brown"]
    assert found.columns.labels_N.tolist() == [0, 1, 2]
    (tmp_path / "val" / "a.png").write_bytes(b"x")
    with pytest.raises(SourceError, match="'a' is there twice"):
        indexed(tmp_path / "val", ground_truth=str(file))


@pytest.mark.parametrize(
    "rows",
    [
        ["file,label,split", "a.jpg,cat,val", "b.jpg,dog,train", "c.jpg,cat,val"],
        ["file,width,label", "a.jpg,10,cat", "b.jpg,11,dog", "c.jpg,12,cat"],
        [",filename,class_name", "0,a.jpg,cat", "1,b.jpg,dog", "2,c.jpg,cat"],
        ["img,label", "a.jpg,cat", "b.jpg,dog", "c.jpg,cat"],
        ["label,filename", "cat,a.jpg", "dog,b.jpg", "cat,c.jpg"],
        ["id,filename,label", "0,a.jpg,cat", "1,b.jpg,dog", "2,c.jpg,cat"],
        ["\tfilename\tlabel\tnote", "0\ta.jpg\tcat\t", "1\tb.jpg\tdog\tx", "2\tc.jpg\tcat\t"],
        ["photo,breed", "a.jpg,cat", "b.jpg,dog", "c.jpg,cat"],
        ["file\tlabel", "a.jpg\tcat", "b.jpg\tdog", "c.jpg\tcat"],
        ["file label", "a.jpg cat", "b.jpg dog", "c.jpg cat"],
        ["a.jpg,cat", "b.jpg,dog", "c.jpg,cat"],
        ["a.jpg cat", "b.jpg dog", "c.jpg cat"],
        ["cat", "dog", "cat"],
    ],
)
def test_tables_of_all_kinds_say_the_same(tmp_path: Path, rows: list[str]) -> None:
    """Of more columns than two each but the first was a part of the label, and most headers a class."""
    (tmp_path / "val").mkdir()
    for name in "abc":
        (tmp_path / "val" / f"{name}.jpg").write_bytes(b"x")
    file = tmp_path / "truth.csv"
    file.write_text("\n".join(rows) + "\n")
    found = indexed(tmp_path / "val", ground_truth=str(file))
    assert [entry["name"] for entry in found.classes] == ["cat", "dog"]
    assert found.columns.labels_N.tolist() == [0, 1, 0]


def test_a_link_in_a_class_tar_is_a_trouble_and_a_class_tar_is_none(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    tars = class_tars(tiny_ilsvrc, tmp_path / "tars")
    first = min(tars.iterdir())
    with tarfile.open(first, "a") as tar:
        info = tarfile.TarInfo(f"{first.stem}_9.JPEG")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    found = indexed(tars)
    assert {found.columns.keys[row]: why for row, why in found.columns.troubles.items()} == {
        f"{first.stem}_9": "symbolic link"
    }
    with tarfile.open(tmp_path / TRAIN, "w") as tar:
        tar.add(first, first.name)
        info.name = "n99999999.tar"
        tar.addfile(info)
    with pytest.raises(SourceError, match=r"'n99999999\.tar' is a symbolic link: pack the files themselves"):
        indexed(tmp_path / TRAIN)


# --- damage -------------------------------------------------------------------------------------------


def test_a_truncated_outer_tar(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    whole = (tiny_ilsvrc / TRAIN).read_bytes()
    for part in (0.3, 0.8):
        (tmp_path / TRAIN).write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(FeedlineError, match=r"img_train\.tar is cut short: .*download it again"):
            indexed(tmp_path / TRAIN)


def test_an_inner_tar_cut_short(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    with tarfile.open(tiny_ilsvrc / TRAIN) as archive:
        members = [(m.name, (archive.extractfile(m) or io.BytesIO()).read()) for m in archive]
    name, data = members[1]
    members[1] = (name, data[: len(data) // 2])
    path = write_tar(tmp_path / TRAIN, members)
    with pytest.raises(FeedlineError, match=rf"img_train\.tar: {name} is cut short"):
        indexed(path)


def test_an_inner_tar_that_is_none(tmp_path: Path) -> None:
    path = write_tar(tmp_path / TRAIN, [("n00000001.tar", b"\x1f\x8b compressed, say" * 100)])
    with pytest.raises(FeedlineError, match=r"n00000001\.tar: no valid tar header at byte"):
        indexed(path)


@pytest.mark.parametrize("damage", ["cut", "noise", "no meta", "bad meta"])
def test_a_damaged_devkit(tiny_ilsvrc: Path, tmp_path: Path, damage: str) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, VAL=tiny_ilsvrc / VAL)
    whole = (tiny_ilsvrc / DEVKIT).read_bytes()
    if damage in ("cut", "noise"):
        (source / DEVKIT).write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"noise" * 1000)
    else:
        kit = source / "ILSVRC2012_devkit_t12" / "data"
        kit.mkdir(parents=True)
        if damage == "bad meta":
            (kit / "meta.mat").write_bytes(b"MATLAB 5.0" + bytes(500))
    with pytest.raises(SourceError, match=r"devkit.*(again|as downloaded)"):
        open_source(str(source))


# --- nothing is lost in silence -----------------------------------------------------------------------


@pytest.mark.parametrize("devkit", [True, False])
def test_all_unpacked_in_one_place(tiny_ilsvrc: Path, tmp_path: Path, devkit: bool) -> None:
    """`cd /data/imagenet; tar xf ILSVRC2012_img_train.tar`."""
    place = class_tars(tiny_ilsvrc, tmp_path / "imagenet")
    for name in (TRAIN, VAL, *([DEVKIT] if devkit else [])):
        (place / name).symlink_to(tiny_ilsvrc / name)
    if devkit:
        assert samples(indexed(place)) == samples(indexed(tiny_ilsvrc))
    else:
        with pytest.raises(UsageError, match="has no ground truth"):
            open_source(str(place))
        assert samples(indexed(place, splits="train")) == samples(indexed(tiny_ilsvrc, splits="train"))
    write_tar(place / "backup.tar", [("a.JPEG", b"1")])
    with pytest.raises(UsageError, match=r"holds class tars and backup\.tar, which is none: move it elsewhere"):
        open_source(str(place), splits="train")


@pytest.mark.parametrize("train", ["train", "training", "left-over"])
@pytest.mark.parametrize("val", ["val", "validation", "inside"])
def test_other_usual_places(tiny_ilsvrc: Path, tmp_path: Path, train: str, val: str) -> None:
    source = link(tmp_path / "source", DEVKIT=tiny_ilsvrc / DEVKIT)
    folders = class_folders(tiny_ilsvrc, source / ("train" if train == "left-over" else train))
    if train == "left-over":
        (folders / TRAIN).symlink_to(tiny_ilsvrc / TRAIN)
    if val == "inside":
        (source / "val").mkdir()
        (source / "val" / VAL).symlink_to(tiny_ilsvrc / VAL)
    else:
        unpack(tiny_ilsvrc / VAL, source / val)
    assert samples(indexed(source)) == samples(indexed(tiny_ilsvrc))


def test_a_split_that_cannot_be_read_is_refused(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, DEVKIT=tiny_ilsvrc / DEVKIT)
    unpack(tiny_ilsvrc / VAL, source / "old_val")  # it does not stand in for it
    for name in (VAL, "val.tar.gz", "validation.zip"):
        (source / name).write_bytes(b"<html>404</html>")
        with pytest.raises(UsageError, match=rf"{name} is in no form of val that can be read: .*splits=train"):
            open_source(str(source))
        assert len(indexed(source, splits="train").columns) == 36
        (source / name).unlink()


def test_a_val_tar_that_cannot_be_read_is_refused_beside_folders_too(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    """Without a devkit they are taken for any folder of images."""
    class_folders(tiny_ilsvrc, tmp_path / "source" / "train")
    assert open_source(str(tmp_path / "source")).kind == "folder"
    (tmp_path / "source" / VAL).touch()
    with pytest.raises(UsageError, match=rf"{VAL} is in no form of val that can be read: .*splits=train"):
        open_source(str(tmp_path / "source"))
    assert len(indexed(tmp_path / "source", splits="train").columns) == 36


def test_the_split_itself_comes_before_what_is_only_called_after_it(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    folders = class_folders(tiny_ilsvrc, source / "train")
    for name in ("mini_train", "old_train"):
        shutil.copytree(folders, source / name, ignore=lambda at, names: names[3:] if at == str(folders) else [])
    assert samples(indexed(source)) == samples(indexed(tiny_ilsvrc))
    folders.rename(source / "other_train")
    with pytest.raises(UsageError, match="has two folders for train: mini_train and old_train"):
        open_source(str(source))


def test_a_train_folder_half_unpacked(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    first, *_ = sorted(class_tars(tiny_ilsvrc, source / "train").iterdir())
    unpack(first, source / "train" / first.stem)
    assert samples(indexed(source)) == samples(indexed(tiny_ilsvrc))
    first.unlink()
    with pytest.raises(UsageError, match="holds class tars and class folders: keep one form of all classes"):
        open_source(str(source))


def test_a_class_half_unpacked(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    """As `mkdir; tar x; rm` leaves it, ended within the last class."""
    source = link(tmp_path / "source", VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    *_, last = sorted(class_tars(tiny_ilsvrc, tmp_path / "tars").glob("*.tar"))
    folders = class_folders(tiny_ilsvrc, source / "train")
    shutil.copy(last, folders / last.name)
    next((folders / last.stem).iterdir()).unlink()
    for place in (source, folders):
        with pytest.raises(UsageError, match="holds class tars and class folders"):
            open_source(str(place))


def test_another_split_beside_class_tars_may_be_left_out(tmp_path: Path) -> None:
    write_tar(tmp_path / "n00000001.tar", [("x.JPEG", b"x")])
    (tmp_path / "val.zip").write_bytes(b"PK")
    with pytest.raises(UsageError, match="--source-option splits=train"):
        open_source(str(tmp_path))
    assert indexed(tmp_path, splits="train")


@pytest.mark.parametrize("stranger", ["cat.tar", "n00000002.tar.gz", "n00000002.tar.part"])
@pytest.mark.parametrize("where", ["train", "."])
def test_what_looks_like_a_class_tar_is_not_passed_over(tmp_path: Path, where: str, stranger: str) -> None:
    for name in ("n00000001.tar", stranger):
        write_tar(tmp_path / where / name, [("x.JPEG", b"x")])
    with pytest.raises(UsageError, match=f"holds class tars and {stranger}, which is none"):
        open_source(str(tmp_path))


def test_a_class_tar_beside_the_train_folder(tmp_path: Path) -> None:
    write_tar(tmp_path / "n00000001.tar", [("x.JPEG", b"x")])
    (tmp_path / "train/n00000002").mkdir(parents=True)
    (tmp_path / "train/n00000002/y.JPEG").write_bytes(b"y")
    with pytest.raises(UsageError, match=r"holds class tars, and .*train is train too: keep one"):
        open_source(str(tmp_path))


def test_the_archive_beside_its_class_tars_is_read(tiny_ilsvrc: Path, tmp_path: Path) -> None:
    source = link(tmp_path / "source", TRAIN=tiny_ilsvrc / TRAIN, VAL=tiny_ilsvrc / VAL, DEVKIT=tiny_ilsvrc / DEVKIT)
    shutil.copy(next(class_tars(tiny_ilsvrc, tmp_path / "tars").glob("*.tar")), source)
    assert samples(indexed(source)) == samples(indexed(tiny_ilsvrc))
