"""Parquet as hubs publish it, and torchvision datasets: unpacked in order, deterministically, once."""

import hashlib
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.preprocess.sources import staging
from feedline.preprocess.sources.base import SourceOptions, open_source
from feedline.preprocess.sources.torchvision_sets import datasets_of
from tests.preprocess.making import Killed
from tests.preprocess.raw import indexed, samples

NAMES = ["cat", "dog"]


def hub_table(count: int, start: int = 0, names: list[str] | None = None, **extra: list[Any]) -> pa.Table:
    images = [{"bytes": b"image %d" % n, "path": f"{n}.JPEG"} for n in range(start, start + count)]
    table = pa.table({"image": images, "label": [n % 2 for n in range(start, start + count)], **extra})
    if names is None:
        return table
    said = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(said)})


def write(path: Path, table: pa.Table, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **how)
    return path


def hub(folder: Path) -> Path:
    for n in range(2):
        write(folder / f"data/train-0000{n}-of-00002.parquet", hub_table(100, 100 * n, NAMES), row_group_size=30)
    write(folder / "data/validation-00000-of-00001.parquet", hub_table(7, 500, NAMES))
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.tar"))}


def test_a_hub_s_folder(tmp_path: Path) -> None:
    found = indexed(hub(tmp_path / "set"), tmp_path / "staging")
    assert found.classes == [{"name": "cat"}, {"name": "dog"}]
    expected = {("train", f"{n:08d}"): (n % 2, b"image %d" % n) for n in range(200)}
    expected |= {("val", f"{n:08d}"): (n % 2, b"image %d" % (500 + n)) for n in range(7)}
    assert samples(found) == expected


def test_the_same_bytes_each_time_and_only_once(tmp_path: Path) -> None:
    source = hub(tmp_path / "set")
    indexed(source, tmp_path / "one")
    indexed(source, tmp_path / "two")
    assert digests(tmp_path / "one") == digests(tmp_path / "two") != {}
    tar = next((tmp_path / "one").glob("*.tar"))
    before = tar.stat().st_mtime_ns
    indexed(source, tmp_path / "one")
    assert tar.stat().st_mtime_ns == before
    write(source / "data/train-00001-of-00002.parquet", hub_table(3, 0, NAMES))
    assert len(indexed(source, tmp_path / "one").columns) == 110


def test_tars_that_another_source_has_written_over_are_not_taken_for_the_first_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path / "a.parquet", hub_table(6, 10, NAMES))
    other = write(tmp_path / "b.parquet", hub_table(6, 50, NAMES))
    before = samples(indexed(first, tmp_path / "staging"))

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(staging, "write_atomically", dies)
        indexed(other, tmp_path / "staging")
    assert samples(indexed(first, tmp_path / "staging")) == before


def test_binary_column_words_and_nulls(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["x", "y", "z"],
            "jpg": pa.array([b"1", None, b"3"], pa.large_binary()),
            "class": pa.array(["dog", "cat", None]).dictionary_encode(),
        }
    )
    found = indexed(write(tmp_path / "x.parquet", table), tmp_path / "staging")
    assert [entry["name"] for entry in found.classes] == ["cat", "dog"]
    assert list(samples(found).values()) == [(1, b"1"), (0, b""), (-1, b"3")]


@pytest.mark.parametrize("names", [["cat", "emu"], ["dog", "cat"], ["cat"], ["cat", "dog", "dog"], None])
def test_files_that_name_different_classes_are_refused(tmp_path: Path, names: list[str] | None) -> None:
    write(tmp_path / "set/a.parquet", hub_table(4, 0, NAMES))
    write(tmp_path / "set/b.parquet", hub_table(4, 4, names))
    with pytest.raises(SourceError, match=r"b\.parquet names .* classes than .*a\.parquet.*labels=numbers"):
        indexed(tmp_path / "set", tmp_path / "staging")
    found = indexed(tmp_path / "set", tmp_path / "staging", labels="numbers")
    assert [label for label, _ in samples(found).values()] == [0, 1] * 4


def test_a_column_that_is_there_twice_is_one_line(tmp_path: Path) -> None:
    table = hub_table(3)
    path = write(tmp_path / "x.parquet", table.append_column(table.schema.field("label"), table.column("label")))
    with pytest.raises(SourceError, match=r"x\.parquet has two columns 'label'"):
        indexed(path, tmp_path / "staging", image_column="image", label_column="label")


def test_a_lone_column_of_another_name_is_not_taken_for_the_label(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", hub_table(3).rename_columns(["image", "id"]))
    with pytest.raises(UsageError, match=r"which column is the label\? Say --source-option label_column=NAME"):
        open_source(str(path))
    found = indexed(path, tmp_path / "staging", label_column="id")
    assert "columns: image 'image', label 'id'" in found.notes
    hub = hub_table(3, 0, NAMES).rename_columns(["image", "kind"])
    said = {"info": {"features": {"kind": {"names": NAMES}}}}
    named = write(tmp_path / "y.parquet", hub.replace_schema_metadata({"huggingface": json.dumps(said)}))
    assert indexed(named, tmp_path / "more").classes == [{"name": "cat"}, {"name": "dog"}]
    assert indexed(named, tmp_path / "plain", labels="words").classes == [{"name": "0"}, {"name": "1"}]


@pytest.mark.parametrize("labels", [["7", "07", "8"], ["1", "2", "unknown"]])
def test_an_odd_label_names_its_row(tmp_path: Path, labels: list[str]) -> None:
    images = [{"bytes": b"x", "path": ""}] * 3
    write(tmp_path / "set/a.parquet", pa.table({"image": images, "label": ["5", "5", "5"]}))
    write(tmp_path / "set/b.parquet", pa.table({"image": images, "label": labels}))
    with pytest.raises(SourceError, match=r"set: sample '0000000[45]\.jpg' of train has the label '(07|unknown)'"):
        indexed(tmp_path / "set", tmp_path / "staging")


def test_a_label_column_of_floats_is_refused(tmp_path: Path) -> None:
    images = [{"bytes": b"x", "path": ""}] * 2
    write(tmp_path / "x.parquet", pa.table({"image": images, "label": [1.0, None], "id": [5, 6]}))
    with pytest.raises(UsageError, match=r"label column 'label' is of double: store integers or text"):
        open_source(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("labels", [([1, 2], [1.0, 2.0]), ([1.0, 2.0], [1, 2])])
def test_whole_and_float_labels_together_mean_the_same_in_any_order(tmp_path: Path, labels: Any) -> None:
    images = [{"bytes": b"x", "path": ""}] * 2
    for name, column in zip("ab", labels, strict=True):
        write(tmp_path / f"set/{name}.parquet", pa.table({"image": images, "label": column}))
    with pytest.raises(UsageError, match=r"set: label column 'label' is of double: .*labels=numbers"):
        indexed(tmp_path / "set", tmp_path / "staging")
    found = indexed(tmp_path / "set", tmp_path / "numbers", labels="numbers")
    assert found.columns.labels_N.tolist() == [1, 2, 1, 2]
    found = indexed(tmp_path / "set", tmp_path / "words", labels="words")
    assert [entry["name"] for entry in found.classes] == ["1", "1.0", "2", "2.0"]


def test_image_columns_of_two_kinds(tmp_path: Path) -> None:
    write(tmp_path / "set/a.parquet", hub_table(1))
    write(tmp_path / "set/b.parquet", pa.table({"image": [b"plain"], "label": [1]}))
    found = indexed(tmp_path / "set", tmp_path / "staging")
    assert [data for _, data in samples(found).values()] == [b"image 0", b"plain"]


@pytest.mark.parametrize("names", [5, "cat", [1, 2], {"a": 1}, "deep"])
def test_class_names_that_are_none_are_passed_over(tmp_path: Path, names: Any) -> None:
    said = json.dumps({"info": {"features": {"label": {"names": names}}}}) if names != "deep" else "[" * 100_000
    table = hub_table(4).replace_schema_metadata({"huggingface": said})
    write(tmp_path / "set/train.parquet", table)
    assert indexed(tmp_path / "set", tmp_path / "staging").classes == [{"name": "0"}, {"name": "1"}]


def test_no_rows_are_said_to_be_none(tmp_path: Path) -> None:
    write(tmp_path / "set/train.parquet", hub_table(4).slice(0, 0))
    with pytest.raises(SourceError, match="set: it has no rows"):
        indexed(tmp_path / "set", tmp_path / "staging")
    nulls = pa.table({"image": [b"1"], "label": pa.array([None], pa.int64())})
    with pytest.raises(SourceError, match=r"nulls\.parquet: its column 'label' holds no label: say .*label_column="):
        indexed(write(tmp_path / "nulls.parquet", nulls), tmp_path / "staging")


def test_columns_in_doubt(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet", hub_table(2).rename_columns(["photo", "kind"]).append_column("n", pa.array([5, 6]))
    )
    with pytest.raises(
        UsageError, match=r"which column is the label\? Say --source-option label_column=NAME; .* kind, n"
    ):
        open_source(str(path))
    with pytest.raises(UsageError, match="label column 'photo' cannot be one"):
        open_source(str(path), label_column="photo")
    with pytest.raises(UsageError, match="image column 'nope' does not exist"):
        open_source(str(path), image_column="nope")
    assert len(indexed(path, tmp_path / "staging", label_column="kind").columns) == 2


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", hub_table(500))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"x\.parquet is not a whole Parquet file"):
        open_source(str(path))
    write(tmp_path / "set/a.parquet", hub_table(2))
    write(tmp_path / "set/b.parquet", hub_table(2).drop(["label"]))
    with pytest.raises(SourceError, match=r"b\.parquet has no column 'label'"):
        indexed(tmp_path / "set", tmp_path / "staging")


# --- torchvision --------------------------------------------------------------------------------------


def cifar10(root: Path) -> Path:
    """CIFAR10's own files, five pictures a batch; torchvision checks their MD5, so the check is told ours."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for n, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels = rng.integers(0, 256, (5, 3072), np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [(n + m) % 10 for m in range(5)]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {n}" for n in range(10)]}))
    return root


@pytest.fixture
def cifar_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from torchvision.datasets import CIFAR10

    root = cifar10(tmp_path / "root")
    folder = root / "cifar-10-batches-py"

    def listed(names: list[str]) -> list[list[str]]:
        return [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]

    monkeypatch.setattr(CIFAR10, "train_list", listed([f"data_batch_{n}" for n in range(1, 6)]))
    monkeypatch.setattr(CIFAR10, "test_list", listed(["test_batch"]))
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": listed(["batches.meta"])[0][1]})
    return root


def test_cifar10(cifar_root: Path, tmp_path: Path) -> None:
    from torchvision.datasets import CIFAR10

    found = indexed(f"torchvision:CIFAR10:{cifar_root}", tmp_path / "staging")
    assert [entry["name"] for entry in found.classes] == [f"class {n}" for n in range(10)]
    read = samples(found)
    for split, train in (("train", True), ("val", False)):
        dataset = CIFAR10(str(cifar_root), train=train)
        for row, (image, label) in enumerate(dataset):
            found_label, data = read.pop((split, f"{row:08d}"))
            assert found_label == label
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), np.asarray(image))
    assert not read


def test_torchvision_is_only_imported_to_unpack(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from feedline.preprocess.sources.base import open_source; "
        f"open_source('torchvision:CIFAR10:{tmp_path}'); print('torch' in sys.modules, 'torchvision' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]


def test_torchvision_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not torchvision:NAME:ROOT, like torchvision:CIFAR10:/data"):
        open_source("torchvision:CIFAR10")
    with pytest.raises(UsageError, match="gone does not exist"):
        open_source(f"torchvision:CIFAR10:{tmp_path}/gone")
    with pytest.raises(UsageError, match="has no dataset 'CIFAR11': did you mean CIFAR10"):
        indexed(f"torchvision:CIFAR11:{tmp_path}", tmp_path / "staging")
    with pytest.raises(UsageError, match="unpickles whatever lies in its cache"):
        indexed(f"torchvision:LSUN:{tmp_path}", tmp_path / "staging")
    with pytest.raises(UsageError, match="EMNIST is six datasets in one: export it to an image folder"):
        indexed(f"torchvision:EMNIST:{tmp_path}", tmp_path / "staging")
    with pytest.raises(UsageError, match=r"CIFAR10 cannot be opened in .*download it there first"):
        indexed(f"torchvision:CIFAR10:{tmp_path}", tmp_path / "staging")


def test_datasets_with_a_split_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The val split is called what the dataset calls it; a label that is no number is refused."""
    from torchvision import datasets

    class Tiny:
        classes = (("tabby", "cat"), "dog")

        def __init__(self, root: str, split: str = "train") -> None:
            if split not in ("train", "test"):
                raise ValueError(f"unknown split {split}")
            self.items = [(Image.new("L", (4, 3), n), n % 2 if root.endswith("good") else "cat") for n in range(3)]

        def __getitem__(self, row: int) -> Any:
            return self.items[row]

        def __len__(self) -> int:
            return len(self.items)

    monkeypatch.setattr(datasets, "Tiny", Tiny, raising=False)
    for name in ("good", "words"):
        (tmp_path / name).mkdir()
    found = indexed(f"torchvision:Tiny:{tmp_path}/good", tmp_path / "staging")
    assert found.classes == [{"name": "tabby, cat"}, {"name": "dog"}]
    assert found.columns.labels_N.tolist() == [0, 1, 0] * 2
    assert found.columns.split_names == ["train", "val"]
    with pytest.raises(SourceError, match=r"does not give \(image, integer label\)"):
        indexed(f"torchvision:Tiny:{tmp_path}/words", tmp_path / "other")


def test_pets_have_a_trainval_split(tmp_path: Path) -> None:
    base = tmp_path / "root" / "oxford-iiit-pet"
    (base / "images").mkdir(parents=True)
    (base / "annotations").mkdir()
    for split, names in (("trainval", ("Abyssinian_1", "Bengal_1")), ("test", ("Abyssinian_2", "Bengal_2"))):
        lines = [f"{name} {label} 1 1" for label, name in enumerate(names, 1)]
        (base / "annotations" / f"{split}.txt").write_text("\n".join(lines))
        for name in names:
            Image.new("RGB", (5, 4)).save(base / "images" / f"{name}.jpg")
    found = indexed(f"torchvision:OxfordIIITPet:{tmp_path}/root", tmp_path / "staging")
    assert found.columns.split_names == ["train", "val"]
    assert found.columns.labels_N.tolist() == [0, 1] * 2
    file = io.BytesIO()
    Image.new("RGB", (5, 4)).save(file, "PNG")
    for broken in (b"no picture", file.getvalue().replace(b"IDAT", b"\0\0\0\0")):  # the latter is a SyntaxError
        (base / "images" / "Bengal_1.jpg").write_bytes(broken)
        with pytest.raises(SourceError, match=r"root: item 1 of train cannot be read \(.*\): mend it"):
            indexed(f"torchvision:OxfordIIITPet:{tmp_path}/root", tmp_path / "other")


def test_no_thread_of_arrow_waits_for_python_s_lock(tmp_path: Path, gil_watch: dict[str, str]) -> None:
    """One that does so while the interpreter ends, as it soon does where a file is damaged, aborts the process."""
    path = write(tmp_path / "x.parquet", hub_table(3000, 0, NAMES))
    code = f"""
from feedline.preprocess.sources.parquet import opened
from feedline.preprocess.sources.base import SourceOptions
for _ in range(30):
    with opened({str(path)!r}, SourceOptions()) as file:
        for row in file.iter_batches(batch_size=64): pass
"""
    done = subprocess.run([sys.executable, "-c", code], env=gil_watch, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("splits", "found"),
    [
        (None, [("train", "train"), ("val", "val")]),
        ("train,val,test", [("train", "train"), ("val", "val"), ("test", "test")]),
        ("test", [("test", "test")]),
        ("train,val", [("train", "train"), ("val", "val")]),
    ],
)
def test_a_third_split_is_read_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: str | None, found: list[tuple[str, str]]
) -> None:
    from torchvision import datasets

    class Flowers:
        def __init__(self, root: str, split: str = "train", download: bool = False) -> None:
            if split not in ("train", "val", "test"):
                raise ValueError(split)
            self.split = split

        def __getitem__(self, row: int) -> None: ...

    monkeypatch.setattr(datasets, "Flowers", Flowers, raising=False)
    options = SourceOptions(splits=splits)
    assert [(split, one.split) for split, one in datasets_of("Flowers", str(tmp_path), options)] == found


def test_a_test_split_that_is_taken_for_val_is_not_read_twice(cifar_root: Path) -> None:
    assert [split for split, _ in datasets_of("CIFAR10", str(cifar_root), SourceOptions())] == ["train", "val"]
    with pytest.raises(UsageError, match="has no test split"):
        datasets_of("CIFAR10", str(cifar_root), SourceOptions(splits="test"))


def test_another_file_at_the_same_address_is_unpacked_anew(tmp_path: Path) -> None:
    store, address = fsspec.filesystem("memory"), f"memory://{tmp_path.name}/train.parquet"

    def publish(start: int) -> None:
        file = write(tmp_path / "made.parquet", hub_table(20, start, NAMES))
        store.pipe_file(f"/{tmp_path.name}/train.parquet", file.read_bytes())

    publish(0)
    first = samples(indexed(address, tmp_path / "staging"))
    stamped = (tmp_path / "staging/staged.json").stat().st_mtime_ns
    assert samples(indexed(address, tmp_path / "staging")) == first
    assert (tmp_path / "staging/staged.json").stat().st_mtime_ns == stamped
    publish(300)
    assert {data for _, data in samples(indexed(address, tmp_path / "staging")).values()} == {
        b"image %d" % n for n in range(300, 320)
    }
