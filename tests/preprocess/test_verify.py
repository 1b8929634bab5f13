"""Every promise has a way to be broken, and each is noticed and named."""

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.format.local import AGAIN
from feedline.pipeline.format.manifest import Index, read_index, read_manifest
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.verify import verify
from tests.preprocess.making import Here, photo, saved

FORMS = ("64:jpeg", "32:raw:square", "48:planes", "keep")


@pytest.fixture(scope="module")
def prepared(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "out"
    outputs = tuple(parse_output(text) for text in FORMS)
    config = PrepareConfig(source=str(images), out=str(out), outputs=outputs, shards=3, max_bad=0.2)
    door.prepare(config, engine=Here())
    return out


def sample_at(index: Index, shard: int, position: int, size: int) -> set[str]:
    """The keys that may be blamed for a byte: the sample it lies in or behind, or the next one's header."""
    rows = [row for row in range(len(index)) if index.shards_N[row] == shard]
    starts = [int(index.offsets_N[row]) for row in rows]
    before = sum(start <= position for start in starts)
    return {index.keys[rows[n]] for n in (before - 1, before) if 0 <= n < len(rows)}


def changed(path: Path, position: int, how: Callable[[int], int]) -> bytes:
    data = bytearray(path.read_bytes())
    data[position] = how(data[position])
    before = path.read_bytes()
    path.write_bytes(data)
    return before


def test_a_split_elsewhere_behind_a_link_is_looked_at(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(prepared, out)
    split = min(out.glob("*/train"))
    for moved in (split, split.parent):
        moved.rename(tmp_path / f"elsewhere-{moved.name}")
        moved.symlink_to(tmp_path / f"elsewhere-{moved.name}")
    assert verify(str(out))["checked_samples"] == verify(str(prepared))["checked_samples"]
    (split / "manifest.json").write_bytes(b"{")
    assert not verify(str(out))["ok"]


def test_what_the_report_names_and_is_gone_is_noticed(prepared: Path, tmp_path: Path) -> None:
    out = shutil.copytree(prepared, tmp_path / "out")
    shutil.rmtree(out / "keep")
    shutil.rmtree(out / "48-planes" / "train")
    said = verify(str(out))["problems"]
    assert [problem["shard"] for problem in said] == ["48-planes/train", "keep/train"]
    assert "report.json names it, and it is gone: bring it back" in said[0]["what"]
    assert verify(str(out / "64-jpeg" / "train"))["ok"]
    plan = json.loads((out / "report.json").read_text())["plan_hash"]
    for report in (
        {"plan_hash": "of another", "folders": ["val"]},
        {"plan_hash": plan, "folders": 7},
        {"plan_hash": []},
    ):
        (out / "report.json").write_text(json.dumps(report))
        assert verify(str(out))["ok"]


def test_what_was_prepared_is_fine(prepared: Path) -> None:
    for full in (False, True):
        said = verify(str(prepared), full=full)
        assert said["ok"], said["problems"]
        assert said["checked_samples"] == (4 * 51 if full else 4 * 3 * 4)
    assert verify(str(prepared / "64-jpeg" / "train"), full=True)["ok"]


@settings(max_examples=60)
@given(data=st.data())
def test_any_changed_byte_names_shard_and_sample(prepared: Path, data: Any) -> None:
    form = data.draw(st.sampled_from(["64-jpeg", "32-raw", "48-planes", "keep"]))
    shard = data.draw(st.integers(0, 2))
    folder = prepared / form / "train"
    path = folder / f"train-{shard:06d}.tar"
    size = path.stat().st_size
    position = data.draw(
        st.one_of(st.integers(0, size - 1), st.integers(0, 2048), st.integers(size - 3000, size - 1))
    )
    before = changed(path, position, lambda byte: byte ^ data.draw(st.integers(1, 255)))
    try:
        said = verify(str(prepared), full=True)
    finally:
        path.write_bytes(before)
    assert not said["ok"]
    assert {problem["shard"] for problem in said["problems"]} == {f"{form}/train/{path.name}"}
    named = {problem["key"] for problem in said["problems"]}
    assert named & sample_at(read_index(folder), shard, position, size), (position, said["problems"])


@pytest.mark.parametrize("where", ["header", "image", "padding", "label header", "label", "end"])
def test_each_region_of_a_tar_is_covered_also_without_full(prepared: Path, where: str) -> None:
    folder = prepared / "64-jpeg" / "train"
    path = folder / "train-000001.tar"
    index = read_index(folder)
    row = next(row for row in range(len(index)) if index.shards_N[row] == 1 and index.lengths_N[row] % 512)
    start, length = int(index.offsets_N[row]), int(index.lengths_N[row])
    label = start + length + -length % 512
    position = {"header": start - 500, "image": start + length // 2, "padding": start + length,
                "label header": label + 3, "label": label + 512, "end": path.stat().st_size - 1}[where]  # fmt: skip
    before = changed(path, position, lambda byte: byte ^ 1)
    try:
        said = verify(str(prepared))
    finally:
        path.write_bytes(before)
    assert not said["ok"]
    expected = (
        index.keys[max(r for r in range(len(index)) if index.shards_N[r] == 1)] if where == "end" else index.keys[row]
    )
    assert (f"64-jpeg/train/{path.name}", expected) in {(p["shard"], p["key"]) for p in said["problems"]}


@pytest.mark.parametrize("change", ["cut", "emptied", "longer", "gone", "swapped"])
def test_shards_that_are_not_whole(prepared: Path, change: str) -> None:
    path = prepared / "64-jpeg" / "train" / "train-000001.tar"
    before = path.read_bytes()
    if change == "gone":
        path.unlink()
    elif change == "swapped":
        path.write_bytes(path.with_name("train-000000.tar").read_bytes())
    else:
        path.write_bytes({"cut": before[:-5000], "emptied": b"", "longer": before + b"\0" * 10240}[change])
    try:
        said = verify(str(prepared), full=change == "cut")
    finally:
        path.write_bytes(before)
    assert not said["ok"]
    assert said["problems"][0]["shard"] == "64-jpeg/train/train-000001.tar"
    if change != "swapped":  # one line for the shard and none for each of its samples
        assert len(said["problems"]) == 1 and said["problems"][0]["key"] == ""
        assert said["problems"][0]["what"].endswith(AGAIN)
    if change == "cut":
        assert "whole up to sample" in said["problems"][0]["what"]


def test_a_shard_too_many_is_named_with_what_to_do(prepared: Path) -> None:
    path = prepared / "64-jpeg" / "train" / "train-000009.tar"
    path.write_bytes(path.with_name("train-000001.tar").read_bytes())
    try:
        said = verify(str(prepared))
    finally:
        path.unlink()
    (problem,) = said["problems"]
    assert problem["shard"] == "64-jpeg/train/train-000009.tar" and problem["what"].endswith(": move it away")


def edited_manifest(prepared: Path, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    path = prepared / "64-jpeg" / "train" / "manifest.json"
    before = path.read_text()
    fields = json.loads(before)
    edit(fields)
    path.write_text(json.dumps(fields))
    try:
        return verify(str(prepared))
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields.update(samples=7),
        lambda fields: fields["shards"].pop(),
        lambda fields: fields["shards"][0].update(planned_samples=40),
        lambda fields: fields["shards"][1].update(sha256="0" * 64),
        lambda fields: fields["classes"].pop(),
        lambda fields: fields.update(plan_hash="0" * 64),
        lambda fields: fields.pop("seed"),
        lambda fields: fields["shards"][0].update(name="../train-000000.tar"),
    ],
)
def test_a_manifest_that_is_not_true(prepared: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    assert not edited_manifest(prepared, edit)["ok"]


def test_shards_of_two_encoders_are_a_mixture(prepared: Path) -> None:
    said = edited_manifest(prepared, lambda fields: fields["shards"][2].update(fingerprint="0" * 64))
    assert [problem["shard"] for problem in said["problems"]] == ["64-jpeg/train/train-000002.tar"]
    assert "another encoder than 32-raw/train/train-000000.tar" in said["problems"][0]["what"]


def test_an_index_with_other_labels_is_noticed(prepared: Path) -> None:
    path = prepared / "64-jpeg" / "train" / "index.parquet"
    before = path.read_bytes()
    table = pq.read_table(path)
    labels = table["label"].to_pylist()
    labels[3] = (labels[3] + 1) % 3
    table = table.set_column(1, table.schema.field("label"), pa.array(labels, pa.int32()))
    pq.write_table(table, path)
    try:
        said = verify(str(prepared), full=True)
    finally:
        path.write_bytes(before)
    keys = read_index(path.parent).keys
    assert any(problem["key"] == keys[3] and "label" in problem["what"] for problem in said["problems"])


def test_two_labels_swapped_under_a_new_hash_are_noticed_without_full(prepared: Path) -> None:
    folder = prepared / "64-jpeg" / "train"
    before = {name: (folder / name).read_bytes() for name in ("manifest.json", "index.parquet")}
    table = pq.read_table(folder / "index.parquet")
    labels = table["label"].to_pylist()
    other = next(n for n in range(3, len(labels)) if labels[n] != labels[2])
    labels[2], labels[other] = labels[other], labels[2]
    pq.write_table(
        table.set_column(1, table.schema.field("label"), pa.array(labels, pa.int32())), folder / "index.parquet"
    )
    fields = json.loads(before["manifest.json"])
    fields["index_sha256"] = hashlib.sha256((folder / "index.parquet").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    try:
        said = verify(str(folder))
    finally:
        for name, content in before.items():
            (folder / name).write_bytes(content)
    keys = read_index(folder).keys
    named = {problem["key"]: problem["what"] for problem in said["problems"]}
    assert set(named) == {keys[2], keys[other]}
    said = f"it says '{labels[other]}', the index {labels[2]}"
    assert named[keys[2]] == f"the label in the tar is not what was written: {said}"


def test_a_damaged_npy_is_no_advice_to_load_it_unsafely(prepared: Path) -> None:
    folder = prepared / "32-raw" / "train"
    index = read_index(folder)
    path = folder / "train-000000.tar"
    before = changed(path, int(index.offsets_N[0]), lambda byte: byte ^ 1)
    try:
        said = verify(str(folder))
    finally:
        path.write_bytes(before)
    texts = [problem["what"] for problem in said["problems"] if "decode" in problem["what"]]
    assert texts == ["does not decode (it is not a .npy member of version 1)"]


def test_quarantine_must_account_for_every_missing_sample(prepared: Path) -> None:
    report = prepared / "quarantine" / "report.jsonl"
    before = report.read_text()
    report.write_text("".join(before.splitlines(keepends=True)[1:]))
    try:
        assert not verify(str(prepared))["ok"]
    finally:
        report.write_text(before)
    file = prepared / "quarantine" / json.loads(before.splitlines()[1])["file"]
    content = file.read_bytes()
    file.unlink()
    try:
        assert not verify(str(prepared))["ok"]
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("name", ["train-000000.tar", "manifest.json"])
@pytest.mark.parametrize("instead", ["nothing", "a pipe", "a folder", "a link to itself", "a few bytes"])
def test_whatever_lies_in_a_file_s_place_is_one_line(prepared: Path, name: str, instead: str) -> None:
    path = prepared / "64-jpeg" / "train" / name
    aside = path.rename(path.with_name("aside"))
    try:
        match instead:
            case "nothing":
                path.touch()
            case "a pipe":
                os.mkfifo(path)
            case "a folder":
                path.mkdir()
            case "a link to itself":
                path.symlink_to(path)
            case _:
                path.write_bytes(b"\xff\xfe\0bad")
        said = verify(str(prepared), full=True)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        aside.rename(path)
    assert f"64-jpeg/train/{name}" in [problem["shard"] for problem in said["problems"]]


def test_labels_that_were_changed_in_the_index_are_noticed_without_reading_a_shard(prepared: Path) -> None:
    folder = prepared / "64-jpeg" / "train"
    before = (folder / "index.parquet").read_bytes()
    table = pq.read_table(folder / "index.parquet")
    rotated = pa.array([(label + 1) % 3 for label in table["label"].to_pylist()], pa.int32())
    pq.write_table(table.set_column(1, table.schema.field("label"), rotated), folder / "index.parquet")
    try:
        said = verify(str(prepared))
        with pytest.raises(DatasetError, match=r"not the index that manifest\.json names"):
            read_index(folder, read_manifest(folder))
    finally:
        (folder / "index.parquet").write_bytes(before)
    assert "64-jpeg/train/index.parquet" in [problem["shard"] for problem in said["problems"]]


def test_a_split_under_another_name_is_noticed(prepared: Path) -> None:
    folder = prepared / "64-jpeg"
    (folder / "train").rename(folder / "test")
    try:
        said = verify(str(prepared))
    finally:
        (folder / "test").rename(folder / "train")
    assert any("was the folder renamed?" in problem["what"] for problem in said["problems"])


def test_strays_are_noticed(prepared: Path) -> None:
    stray = prepared / "64-jpeg" / "train" / "train-000099.tar"
    stray.write_bytes(b"")
    try:
        said = verify(str(prepared))
    finally:
        stray.unlink()
    assert [problem["shard"] for problem in said["problems"]] == ["64-jpeg/train/train-000099.tar"]


def test_a_jpeg_that_is_not_crop_addressable_breaks_a_promise(prepared: Path) -> None:
    """Swapped for an ordinary JPEG of the same picture with every checksum put right."""
    folder = prepared / "64-jpeg" / "train"
    manifest, index = read_manifest(folder), read_index(folder)
    path = folder / manifest.shards[0].name
    before = {name: (folder / name).read_bytes() for name in (path.name, "manifest.json", "index.parquet")}
    start, length = int(index.offsets_N[0]), int(index.lengths_N[0])
    data = bytearray(before[path.name])
    file = io.BytesIO()
    Image.open(io.BytesIO(bytes(data[start : start + length]))).save(file, "JPEG", quality=20)
    data[start : start + length] = file.getvalue().ljust(length, b"\0")
    path.write_bytes(data)
    fields = json.loads(before["manifest.json"])
    fields["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    table = pq.read_table(folder / "index.parquet")
    sums = table["crc32"].to_pylist()
    sums[0] = zlib.crc32(bytes(data[start : start + length]))
    table = table.set_column(7, table.schema.field("crc32"), pa.array(sums, pa.uint32()))
    pq.write_table(table, folder / "index.parquet")
    try:
        said = verify(str(prepared), full=True)
    finally:
        for name, content in before.items():
            (folder / name).write_bytes(content)
    assert any("crop-addressable" in problem["what"] for problem in said["problems"])


@settings(max_examples=40)
@given(width=st.integers(16, 400), height=st.integers(16, 300), subsampling=st.sampled_from(["420", "444"]))
def test_a_right_cut_has_the_very_pixels_of_the_whole(width: int, height: int, subsampling: Any) -> None:
    data = jpeg.encode(photo(width * height, width, height), 90, subsampling)
    assert jpeg.check(data, width, height, {"crop_addressable": True}) == ""


def test_a_wrong_cut_of_a_smooth_picture_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiles beside each other hardly differ there."""
    slope = np.linspace(90, 95, 256).astype(np.uint8)
    data = jpeg.encode(Image.fromarray(np.tile(slope, (256, 1))).convert("RGB"), 90)
    whole = jpeg.cut
    assert jpeg.check(data, 256, 256, {"crop_addressable": True}) == ""
    monkeypatch.setattr(jpeg, "cut", lambda data, left, *rest: whole(data, left + 32, *rest))
    assert "a cut differs" in jpeg.check(data, 256, 256, {"crop_addressable": True})


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("manifest.json", "is not a feedline manifest (it is no JSON object): prepare the dataset again"),
        (
            "index.parquet",
            "cannot be read (No such file or directory): copy it again, or prepare the dataset again",
        ),
    ],
)
def test_what_cannot_be_read_is_named_once(prepared: Path, name: str, what: str) -> None:
    path = prepared / "64-jpeg" / "train" / name
    before = path.read_bytes()
    if name == "manifest.json":
        path.write_text("[]")
    else:
        path.unlink()
    try:
        said = verify(str(prepared))
    finally:
        path.write_bytes(before)
    assert (f"64-jpeg/train/{name}", what) in {(problem["shard"], problem["what"]) for problem in said["problems"]}


def test_no_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a prepared dataset"):
        verify(str(tmp_path))


def test_keys_with_long_names_are_covered_too(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / ("class " + "x" * 90)).mkdir(parents=True)
    for name in ("y" * 120, "é" * 30, "short"):
        (source / ("class " + "x" * 90) / f"{name}.jpg").write_bytes(saved(photo(5)))
    config = PrepareConfig(source=str(source), out=str(tmp_path / "out"), shards=1, metadata=True)
    door.prepare(config, engine=Here())
    said = verify(str(tmp_path / "out"), full=True)
    assert said["ok"], said["problems"]
    with tarfile.open(tmp_path / "out" / "train" / "train-000000.tar") as tar:
        assert len(tar.getnames()) == 9
