"""Existing WebDataset tars and prepared datasets as sources: grouping, labels, splits, addresses."""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from feedline.pipeline.base.errors import FeedlineError, SourceError, UsageError
from feedline.pipeline.format.manifest import INDEX, MANIFEST, UNFINISHED, Manifest, ShardInfo, index_bytes
from feedline.pipeline.format.shard_tar import ShardWriter
from feedline.preprocess.sources.base import open_source
from tests.preprocess.raw import Samples, indexed, samples, write_tar


def wds(path: Path, *rows: tuple[str, object], first: str = "image") -> Path:
    """A tar of (key, label) samples whose image bytes are the key's."""
    members: list[tuple[str, bytes]] = []
    for key, label in rows:
        pair = [(f"{key}.jpg", key.encode()), (f"{key}.cls", str(label).encode())]
        members += pair if first == "image" else pair[::-1]
    return write_tar(path, members)


def plain(found: Samples) -> dict[tuple[str, str], tuple[int, str]]:
    return {place: (label, data.decode()) for place, (label, data) in found.items()}


@pytest.mark.parametrize("first", ["image", "label"])
def test_one_tar(tmp_path: Path, first: str) -> None:
    found = indexed(wds(tmp_path / "x.tar", ("a", 1), ("dir/b", 0), first=first))
    assert plain(samples(found)) == {("train", "a"): (1, "a"), ("train", "dir/b"): (0, "dir/b")}
    assert found.classes == [{"name": "0"}, {"name": "1"}]


def test_json_labels_and_other_members(tmp_path: Path) -> None:
    rows = [
        ("a.json", json.dumps({"label": 2, "x": "é"}).encode()),
        ("a.JPG", b"A"),
        ("a.seg.png", b"mask"),
        ("b.png", b"B"),
        ("b.json", b'{"caption": "no label"}'),
        ("c.txt", b"only text"),
        (".hidden.jpg", b"h"),
        ("d.webp", b"D"),
        ("d.json", b"{not json"),
        ("e.jfif", b"E"),
        ("e.json", b'{"label": 2}'),
        ("f.png", b"F"),
        ("f.json", json.dumps({"label": float("nan")}).encode()),  # as pandas writes a missing one
    ]
    found = indexed(write_tar(tmp_path / "x.tar", rows))
    assert samples(found) == {("train", "a"): (2, b"A"), ("train", "b"): (-1, b"B"), ("train", "d"): (-1, b"D"),
                              ("train", "e"): (2, b"E"), ("train", "f"): (-1, b"F")}  # fmt: skip
    assert found.notes[1:] == ["passed over (1): samples without an image"]


def test_classes_in_words_are_sorted(tmp_path: Path) -> None:
    found = indexed(wds(tmp_path / "x.tar", ("a", "n02"), ("b", "n01440764"), ("c", "dog")))
    assert found.classes == [{"name": "dog"}, {"name": "n01440764", "wnid": "n01440764"}, {"name": "n02"}]
    assert [label for label, _ in samples(found).values()] == [2, 1, 0]


@pytest.mark.parametrize(
    ("said", "labels", "names"),
    [
        (["2", " 0\n", "10"], [2, 0, 10], None),
        (["\ufeff2", "0\r\n"], [2, 0], None),
        (["00", "01", "10"], [0, 1, 10], None),
        (["dog", "cat", "dog"], [1, 0, 1], ["cat", "dog"]),
        (["1.2.3", "7_seas", "n02"], [0, 1, 2], ["1.2.3", "7_seas", "n02"]),
    ],
)
def test_labels_are_all_numbers_or_all_words(
    tmp_path: Path, said: list[str], labels: list[int], names: list[str] | None
) -> None:
    found = indexed(wds(tmp_path / "x.tar", *((f"k{n}", label) for n, label in enumerate(said))))
    assert found.columns.labels_N.tolist() == labels
    assert [entry["name"] for entry in found.classes] == (names or [str(n) for n in range(max(labels) + 1)])


@pytest.mark.parametrize(
    ("said", "odd", "other"),
    [
        (["2", "10", "unknown", "2"], "unknown", "2"),
        (["cat", "dog", "cat", "7"], "7", "cat"),
        (["1", "2", "3", "4", "5", "cat", "dog", "dog"], "cat", "5"),
        (["2", "10", "1.0"], "1.0", "2"),
        (["1.0", "2.0", "10.0", "10.0"], "1.0", "10.0"),
        (["007", "07", "7"], "07", "7"),
        (["1", "+1"], "+1", "1"),
        (["1", "1e3"], "1e3", "1"),
        (["1", "nan"], "nan", "1"),
        (["1", "12345678901234567890"], "12345678901234567890", "1"),
        (["1", "３"], "３", "1"),
    ],
)
def test_an_odd_label_is_refused_by_name(tmp_path: Path, said: list[str], odd: str, other: str) -> None:
    wds(tmp_path / "set/train/a.tar", *((f"a{n}", label) for n, label in enumerate(said) if label != odd))
    wds(tmp_path / "set/train/b.tar", *((f"b{n}", label) for n, label in enumerate(said) if label == odd))
    where = re.escape(f"set: sample 'b{said.index(odd)}.jpg' of train/b.tar has the label {odd!r}")
    with pytest.raises(SourceError, match=f"{where}, others have {other!r}:.*labels=numbers.*labels=words"):
        indexed(tmp_path / "set")


def test_odd_labels_when_told_what_they_are(tmp_path: Path) -> None:
    said = ["007", "07", "7", "1.0", "10", "unknown", "1.5", ""]
    path = wds(tmp_path / "x.tar", *((f"k{n}", label) for n, label in enumerate(said)))
    found = indexed(path, labels="numbers")
    assert found.columns.labels_N.tolist() == [7, 7, 7, 1, 10, -1, -1, -1]
    assert found.columns.troubles == {5: "label is no number", 6: "label is no number"}
    found = indexed(path, labels="words")
    assert [entry["name"] for entry in found.classes] == sorted(said[:-1])
    assert found.columns.labels_N.tolist() == [0, 1, 5, 2, 4, 6, 3, -1]
    assert found.notes == ["labels are words: 7 classes in text order, '007' to 'unknown'"]
    with pytest.raises(UsageError, match="labels 'text' is neither numbers nor words"):
        indexed(path, labels="text")


def test_numbers_with_gaps_are_said(tmp_path: Path) -> None:
    found = indexed(wds(tmp_path / "x.tar", ("a", 1), ("b", 4)))
    assert found.notes == ["labels are numbers: 5 classes, 3 of them without a sample (first: 0)"]


def test_labels_that_cannot_be_read(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    labels = [("cls", "\u00e9".encode("latin-1")), ("cls", b"1\0"), ("cls", b"1\n2"), ("json", deep), ("json", b"{"),
              ("json", b'{"label": [1]}'), ("json", b'{"label": true}'),
              ("json", b'{"label": "\\ud800"}')]  # fmt: skip
    rows = [(f"k{n}.jpg", b"x") for n in range(len(labels))]
    rows = [
        pair for row, (kind, data) in zip(rows, labels, strict=True) for pair in (row, (f"{row[0][:-3]}{kind}", data))
    ]
    found = indexed(write_tar(tmp_path / "x.tar", [("ok.jpg", b"x"), ("ok.cls", b"0"), *rows]))
    assert found.columns.labels_N.tolist() == [0] + [-1] * len(labels)
    assert found.columns.troubles == dict.fromkeys(range(1, len(labels) + 1), "label cannot be read")


def test_two_images_in_a_sample_are_refused_until_told_which(tmp_path: Path) -> None:
    rows = [("a.png", b"mask"), ("a.jpg", b"photo"), ("a.cls", b"0"), ("a.txt", b"3")]
    path = write_tar(tmp_path / "x.tar", rows)
    with pytest.raises(SourceError, match=r"x\.tar: sample 'a' has two images, png and jpg: .* image_column=png"):
        indexed(path)
    assert samples(indexed(path, image_column="jpg")) == {("train", "a"): (0, b"photo")}
    assert samples(indexed(path, image_column=".JPG", label_column="txt")) == {("train", "a"): (3, b"photo")}


def test_two_labels_that_differ_are_refused_until_told_which(tmp_path: Path) -> None:
    rows = [("a.jpg", b"x"), ("a.cls", b"0"), ("a.json", b'{"label": 0}'), ("b.jpg", b"y"), ("b.cls", b"1")]
    path = write_tar(tmp_path / "x.tar", [*rows, ("b.json", b'{"label": 4}')])
    with pytest.raises(
        SourceError, match=r"sample 'b' has two labels, '1' in cls and '4' in json: .*label_column=cls"
    ):
        indexed(path)
    assert samples(indexed(path, label_column="json"))["train", "b"] == (4, b"y")
    same = write_tar(tmp_path / "y.tar", [*rows, ("b.json", b'{"caption": "no label"}')])
    assert samples(indexed(same))["train", "b"] == (1, b"y")


def test_what_has_no_bytes_in_a_tar_is_a_trouble(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("a.jpg", tarfile.SYMTYPE), ("b.jpg", tarfile.CHRTYPE), ("c.cls", tarfile.LNKTYPE),
                           ("c.jpg", tarfile.REGTYPE), ("note.txt", tarfile.FIFOTYPE), ("d.jpg", tarfile.REGTYPE),
                           ("d.cls", tarfile.REGTYPE)):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "x", int(kind == tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(b"0"))
    found = indexed(path)
    troubles = {found.columns.keys[row]: why for row, why in found.columns.troubles.items()}
    assert troubles == {"a": "symbolic link", "b": "character device", "c": "label cannot be read"}
    assert samples(found)["train", "d"] == (0, b"0")


def test_labels_that_are_none(tmp_path: Path) -> None:
    found = indexed(wds(tmp_path / "x.tar", ("a", -7), ("b", 1), ("c", "")))
    assert found.columns.labels_N.tolist() == [-1, 1, -1]
    assert found.columns.troubles == {0: "label out of range"}
    with pytest.raises(SourceError, match="a label of 123456789 is no class number"):
        indexed(wds(tmp_path / "y.tar", ("a", 123456789)))


@pytest.mark.parametrize(
    "layout",
    ["{split}/{n:06d}.tar", "{split}-{n:06d}.tar", "data/x/{split}_{n}.tar", "imagenet1k-{split}-{n:04d}.tar"],
)
def test_splits_and_folders(tmp_path: Path, layout: str) -> None:
    for split in ("train", "validation"):
        for n in range(2):
            wds(tmp_path / layout.format(split=split, n=n), (f"{split}{n}", n))
    found = indexed(tmp_path)
    assert plain(samples(found)) == {
        ("train", "train0"): (0, "train0"),
        ("train", "train1"): (1, "train1"),
        ("val", "validation0"): (0, "validation0"),
        ("val", "validation1"): (1, "validation1"),
    }
    assert indexed(tmp_path, splits="val").columns.split_names == ["val"]
    with pytest.raises(UsageError, match="has no tar of split test"):
        open_source(str(tmp_path), splits="test")


@pytest.mark.parametrize("pattern", ["{train,validation}/{000000..000001}.tar", "*/*.tar"])
def test_folders_of_a_pattern_say_the_split(tmp_path: Path, pattern: str) -> None:
    for split in ("train", "validation"):
        for n in range(2):
            wds(tmp_path / f"{split}/{n:06d}.tar", (f"{split}{n}", n))
    assert {split for split, _ in samples(indexed(tmp_path / pattern))} == {"train", "val"}


@pytest.mark.parametrize("here", [".", "./", "set/..", "./{train,val}/0.tar", "*/*.tar"])
def test_the_folders_say_the_split_however_the_place_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    (tmp_path / "set").mkdir()
    for split in ("train", "val"):
        wds(tmp_path / f"{split}/0.tar", (split, 0))
    monkeypatch.chdir(tmp_path)
    assert set(samples(indexed(here))) == {("train", "train"), ("val", "val")}


@pytest.mark.parametrize("address", ["memory://set", "memory:///set/", "memory://set/*/*.tar"])
def test_the_folders_of_an_address_say_the_split(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, address: str
) -> None:
    for split in ("train", "val"):
        memory.pipe_file(f"/set/{split}/0.tar", wds(tmp_path / "x.tar", (split, 0)).read_bytes())
    columns = indexed(address).columns
    assert [columns.split_names[split] for split in columns.splits_N] == columns.keys == ["train", "val"]


def test_a_name_of_two_splits_is_refused(tmp_path: Path) -> None:
    wds(tmp_path / "train-val-0.tar", ("a", 0))
    with pytest.raises(UsageError, match=r"train-val-0.tar may be of train or val: put each split into a folder"):
        indexed(tmp_path)


def test_a_split_without_labels_is_left_out(tmp_path: Path) -> None:
    wds(tmp_path / "train.tar", ("a", 0))
    wds(tmp_path / "test.tar", ("b", -1), ("c", -1))
    found = indexed(tmp_path)
    assert found.columns.keys == ["a"]
    assert found.notes == ["left out: test, 2 samples and none with a label"]


def test_images_without_any_label(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("train/n01/1.jpg", b"1"), ("train/n02/2.jpg", b"2")])
    with pytest.raises(
        SourceError, match=r"no image in its tars has a label .*label_column=.* extract the tars into class folders"
    ):
        indexed(path)


def test_tars_that_each_count_from_zero(tmp_path: Path) -> None:
    for name in ("a", "b"):
        wds(tmp_path / f"{name}.tar", ("000", 0), ("001", 1))
    assert indexed(tmp_path).columns.keys == ["a/000", "a/001", "b/000", "b/001"]


def test_the_same_key_twice_in_one_tar_stays_a_duplicate(tmp_path: Path) -> None:
    assert indexed(wds(tmp_path / "x.tar", ("a", 0), ("b", 0), ("a", 0))).columns.keys == ["a", "b", "a"]
    for first in ("image", "label"):
        found = indexed(wds(tmp_path / "x.tar", ("a", 0), ("a", 1), first=first)).columns
        assert found.keys == ["a", "a"] and found.labels_N.tolist() == [0, 1]


@pytest.mark.parametrize("key", ["../../up", "/abs/olute", "a b", "ünï", "..", "x" * 200])
def test_odd_keys_stay_in_their_folder(tmp_path: Path, key: str) -> None:
    keys = indexed(
        write_tar(tmp_path / "x.tar", [(f"{key}.jpg", b"1"), (f"{key}.cls", b"0"), ("z.jpg", b"2"), ("z.cls", b"0")])
    ).columns.keys
    assert len(keys) == (1 if key == ".." else 2)
    assert not any(key.startswith(("/", ".")) or "/../" in key for key in keys)


@pytest.mark.parametrize("name", ["train.tar.gz", "train.tgz"])
def test_compressed_tars_are_refused(tmp_path: Path, name: str) -> None:
    """Also beside others: none is left out in silence."""
    (tmp_path / name).write_bytes(b"packed")
    for _ in range(2):
        with pytest.raises(UsageError, match=rf"{name} is compressed, so that .*: gunzip it first"):
            open_source(str(tmp_path))
        wds(tmp_path / "val.tar", ("c", 1))


def test_patterns(tmp_path: Path) -> None:
    for n in range(12):
        wds(tmp_path / f"x-{n:03d}.tar", (f"k{n}", n))
    assert len(indexed(f"{tmp_path}/x-{{000..004}}.tar").columns) == 5
    assert len(indexed(f"{tmp_path}/x-{{000,007}}.tar").columns) == 2
    assert len(indexed(f"{tmp_path}/x-00*.tar").columns) == 10
    with pytest.raises(UsageError, match=r"x-099\.tar does not exist"):
        open_source(f"{tmp_path}/x-{{098..099}}.tar".replace("098..", "099.."))
    with pytest.raises(UsageError, match=r"\{5\.\.1\} is not a range"):
        open_source(f"{tmp_path}/x-{{5..1}}.tar")


def test_tars_without_images(tmp_path: Path) -> None:
    members = [("a.v1.jpg", b"1"), ("a.cls", b"1")]
    with pytest.raises(SourceError, match=r"its tars hold no images with an extension like \.jpg.* image_column="):
        indexed(write_tar(tmp_path / "x.tar", members))
    assert len(indexed(tmp_path / "x.tar", image_column="v1.jpg").columns) == 1


def test_a_tar_cut_short(tmp_path: Path) -> None:
    path = wds(tmp_path / "x.tar", ("a", 0), ("b", 0))
    path.write_bytes(path.read_bytes()[:1600])
    with pytest.raises(FeedlineError, match=r"x\.tar is cut short"):
        indexed(path)


# --- remote -------------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def test_remote_tars_equal_local_ones(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    for n in range(3):
        path = wds(tmp_path / f"set/train/{n}.tar", *((f"k{n}-{m}", m) for m in range(5)))
        memory.pipe_file(f"/set/train/{n}.tar", path.read_bytes())
    local, remote = indexed(tmp_path / "set").columns, indexed("memory://set").columns
    assert remote.keys == local.keys
    assert remote.paths == [f"memory:///set/train/{n}.tar" for n in range(3)]
    assert remote.offsets_N.tolist() == local.offsets_N.tolist()
    assert remote.labels_N.tolist() == local.labels_N.tolist()
    assert indexed("memory://set/train/{0..1}.tar").columns.keys == local.keys[:10]
    assert indexed("memory://set/train/*.tar").columns.keys == local.keys


def test_remote_mistakes_are_one_line(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/set/readme.txt", b"1")
    with pytest.raises(UsageError, match="memory://set is not a source of a known kind"):
        open_source("memory://set")
    with pytest.raises(UsageError, match=r"memory://gone\.tar cannot be read"):
        indexed("memory://gone.tar")
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:9/x cannot be listed: connection refused"):
        open_source("http://127.0.0.1:9/x")
    with pytest.raises(UsageError, match="nonsense://x cannot be listed"):
        open_source("nonsense://x")


# --- prepared datasets --------------------------------------------------------------------------------


def prepared(folder: Path, split: str, codec: str = "jpeg") -> Path:
    target = folder / split
    target.mkdir(parents=True)
    file = io.BytesIO()
    with ShardWriter(file, 0) as writer:
        for key, label in (("x/a", 1), ("b", 0)):
            writer.add(key, f"{split} {key}".encode(), "jpg", label=label, width=1, height=1)
    (target / f"{split}-000000.tar").write_bytes(file.getvalue())
    (target / INDEX).write_bytes(index_bytes(writer.rows))
    shard = ShardInfo(
        name=f"{split}-000000.tar", samples=2, planned_samples=2, bytes=writer.bytes, sha256=writer.sha256
    )
    classes = [{"name": "cat"}, {"name": "tench", "wnid": "n01440764"}]
    manifest = Manifest(
        split=split, samples=2, classes=classes, shards=[shard], settings={"codec": codec}, seed=0, plan_hash="x"
    )
    (target / MANIFEST).write_text(manifest.to_json())
    return folder


def test_a_prepared_dataset_keeps_its_classes(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    prepared(prepared(tmp_path / "out", "train"), "val")
    found = indexed(tmp_path / "out")
    expected = {
        (split, key): (label, f"{split} {key}") for split in ("train", "val") for key, label in (("x/a", 1), ("b", 0))
    }
    assert plain(samples(found)) == expected
    assert found.classes == [{"name": "cat"}, {"name": "tench", "wnid": "n01440764"}]
    assert set(plain(samples(indexed(tmp_path / "out" / "val")))) == {("val", "x/a"), ("val", "b")}
    memory.put(str(tmp_path / "out"), "/out", recursive=True)
    assert indexed("memory://out").columns.keys == found.columns.keys


def test_an_unfinished_prepare_is_no_source(tmp_path: Path) -> None:
    """Of two splits one may have its manifest already."""
    prepared(tmp_path / "out", "train")
    (tmp_path / "out" / ".feedline").mkdir()
    (tmp_path / "out" / UNFINISHED).write_text("{}")
    for place in (tmp_path / "out", tmp_path / "out" / "train"):
        with pytest.raises(SourceError, match="holds an unfinished prepare: run its command again"):
            indexed(place)


def test_tars_too_deep_are_not_left_out(tmp_path: Path) -> None:
    wds(tmp_path / "a.tar", ("a", 0))
    wds(tmp_path / "p" / "q" / "b.tar", ("b", 1))
    assert len(indexed(tmp_path).columns) == 2
    wds(tmp_path / "p" / "q" / "r" / "c.tar", ("c", 1))
    with pytest.raises(UsageError, match=r"r/c\.tar lies deeper than 3 levels"):
        indexed(tmp_path)


def test_options_for_labels_are_of_no_use_for_a_prepared_dataset(tmp_path: Path) -> None:
    prepared(tmp_path, "train")
    with pytest.raises(UsageError, match="source option labels is of no use for"):
        open_source(str(tmp_path), labels="words")


def test_a_prepared_dataset_without_images(tmp_path: Path) -> None:
    prepared(tmp_path, "train", codec="raw")
    with pytest.raises(UsageError, match="was prepared as raw, which is no image file: give the original source"):
        open_source(str(tmp_path))


def test_several_prepared_datasets(tmp_path: Path) -> None:
    prepared(tmp_path / "256-jpeg", "train")
    prepared(tmp_path / "64-raw", "train", codec="raw")
    with pytest.raises(UsageError, match=r"holds several prepared datasets: give one of them, like .*256-jpeg"):
        open_source(str(tmp_path))
    assert len(indexed(tmp_path / "256-jpeg").columns) == 2


def test_a_damaged_index(tmp_path: Path) -> None:
    prepared(tmp_path, "train")
    (tmp_path / "train" / INDEX).write_bytes(b"noise")
    with pytest.raises(SourceError, match=r"index\.parquet cannot be read .*run `feedline verify` on "):
        indexed(tmp_path)


def test_another_program_s_manifest_beside_tars(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    wds(tmp_path / "0.tar", ("a", 0))
    (tmp_path / "manifest.json").write_text('{"files": ["0.tar"]}')
    (tmp_path / "shards_manifest.json").write_text("{}")
    assert indexed(tmp_path).columns.keys == ["a"]
    memory.put(str(tmp_path), "/theirs", recursive=True)
    assert indexed("memory://theirs").columns.keys == ["a"]


def test_another_program_s_manifest_in_one_split_does_not_hide_it(tmp_path: Path) -> None:
    prepared(prepared(tmp_path, "train"), "val")
    (tmp_path / "val" / MANIFEST).write_text("{}")
    with pytest.raises(SourceError, match=r"val/manifest\.json"):
        open_source(str(tmp_path))
