"""Shards that others wrote: indexed beside, read and verified like ours; and what inspect shows of any."""

import hashlib
import io
import shutil
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feedline.cli.inspect import page
from feedline.cli.main import app
from feedline.pipeline.base.errors import DatasetError, FeedlineError, UsageError
from feedline.pipeline.format.local import AGAIN, LocalFiles
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.index_tars import index_shards
from feedline.preprocess.inspect import histogram, inspect, thumbnails
from feedline.preprocess.verify import verify
from feedline.profiling.render.html import document
from tests.preprocess.making import Here, photo, saved


def write_tar(path: Path, samples: list[tuple[str, bytes, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key, image, label in samples:
            for name, data in ((f"{key}.cls", label), (f"{key}.png", image), (f"{key}.txt", b"a caption")):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), 12345
                tar.addfile(info, io.BytesIO(data))


def test_foreign_shards_become_readable_at_random(tmp_path: Path) -> None:
    pictures = [saved(photo(n, 60 + n, 40), "PNG") for n in range(6)]
    for shard in range(2):
        numbers = range(3 * shard, 3 * shard + 3)
        write_tar(tmp_path / f"data-{shard}.tar", [(f"s{n}", pictures[n], str(n % 2).encode()) for n in numbers])
    before = [hashlib.sha256(path.read_bytes()).digest() for path in sorted(tmp_path.glob("*.tar"))]
    index_shards(tmp_path)
    assert [hashlib.sha256(path.read_bytes()).digest() for path in sorted(tmp_path.glob("*.tar"))] == before
    manifest, index = read_manifest(tmp_path), read_index(tmp_path)
    assert (manifest.codec, manifest.samples, len(manifest.classes)) == ("keep", 6, 2)
    files = LocalFiles(tmp_path, manifest.shard_names)
    for sample in range(6):
        assert files.read(*index.place(sample)) == pictures[sample]
        assert zlib.crc32(pictures[sample]) == index.crc32_N[sample]
    files.close()
    assert index.widths_N.tolist() == [60, 61, 62, 63, 64, 65]
    assert verify(str(tmp_path), full=True)["ok"]
    data = bytearray((tmp_path / "data-1.tar").read_bytes())
    data[int(index.offsets_N[4]) + 50] ^= 1
    (tmp_path / "data-1.tar").write_bytes(data)
    problems = verify(str(tmp_path), full=True)["problems"]
    assert ("data-1.tar", "s4") in {(problem["shard"], problem["key"]) for problem in problems}


def test_verifying_takes_no_memory_for_a_whole_tar(tmp_path: Path) -> None:
    """Those of others may have gigabytes, and one for each core is looked at."""
    write_tar(tmp_path / "a.tar", [("s", saved(photo(1), "PNG"), b"0")])
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        info = tarfile.TarInfo("large.bin")
        info.size = 64 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    index_shards(tmp_path)
    tracemalloc.start()
    try:
        said = verify(str(tmp_path), full=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said["ok"], said["problems"]
    assert peak_bytes < 8 << 20


def test_where_the_index_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar")
    (tmp_path / "index.parquet").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        index_shards(tmp_path)


def test_what_is_no_image_is_left_out_and_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "a.tar", [("good", saved(photo(1), "PNG"), b"0"), ("bad", b"no picture", b"0")])
    said = index_shards(tmp_path)[str(tmp_path / "train")]
    assert (said["samples"], said["bad"]) == (1, 1)
    assert "bad" in said["left_out"][0]
    assert read_index(tmp_path / "train").keys == ["good"]
    done = CliRunner().invoke(app, ["index", str(tmp_path), "--overwrite"])
    assert done.exit_code == 1 and "1 sample left out, more than 0.1% of all" in done.output


def test_images_with_dots_in_their_names_are_counted_and_named_by_their_tar(tmp_path: Path) -> None:
    """webdataset takes what is behind the first dot for the extension."""
    good = saved(photo(1), "PNG")
    write_tar(tmp_path / "train" / "a.tar", [("one", good, b"0"), ("two.v2.1", good, b"0"), ("two.v2.2", good, b"1")])
    said = index_shards(tmp_path)[str(tmp_path / "train")]
    assert (said["samples"], said["bad"], said["not_named"]) == (1, 2, 0)
    assert said["left_out"][0].startswith("a.tar: 2 images whose extension has a dot")


def test_what_describes_a_tar_is_no_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "train" / "a.tar", [("one", saved(photo(1), "PNG"), b"0")])
    with tarfile.open(tmp_path / "train" / "a.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("metadata.json"), io.BytesIO())
    assert index_shards(tmp_path)[str(tmp_path / "train")]["bad"] == 0


def test_what_has_no_label_or_no_key_of_its_own_is_left_out(tmp_path: Path) -> None:
    picture = saved(photo(1), "PNG")
    write_tar(tmp_path / "train" / "a.tar", [("a", picture, b"1"), ("b", picture, b"0"), ("a", picture, b"0")])
    with tarfile.open(tmp_path / "train" / "a.tar", "a") as tar:
        info = tarfile.TarInfo("c.png")
        info.size = len(picture)
        tar.addfile(info, io.BytesIO(picture))
    said = index_shards(tmp_path)[str(tmp_path / "train")]
    assert (said["samples"], said["bad"]) == (2, 2)
    assert "duplicate key" in said["left_out"][0] and "no label" in said["left_out"][1]
    assert read_index(tmp_path / "train", read_manifest(tmp_path / "train")).labels_N.tolist() == [1, 0]


def test_what_a_job_would_quarantine_is_left_out_and_named(tmp_path: Path) -> None:
    picture = saved(photo(1), "PNG")
    write_tar(tmp_path / "a.tar", [("good", picture, b"0"), ("deep", picture, b"0")])
    members = [("link.jpg", b""), ("nest.png", picture), ("nest.json", b"[" * 100_000)]
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), tarfile.REGTYPE if data else tarfile.SYMTYPE
            tar.addfile(info, io.BytesIO(data))
    said = index_shards(tmp_path)[str(tmp_path)]
    assert said["left_out"] == ["a.tar: link: symbolic link", "a.tar: nest: label cannot be read"]
    assert read_index(tmp_path).keys == ["good", "deep"]


def test_odd_labels_are_indexed_as_told(tmp_path: Path) -> None:
    picture = saved(photo(1), "PNG")
    write_tar(tmp_path / "a.tar", [("a", picture, b"7"), ("b", picture, b"unknown")])
    with pytest.raises(FeedlineError, match=r"sample 'b\.png' of a\.tar has the label 'unknown'"):
        index_shards(tmp_path)
    index_shards(tmp_path, source_options={"labels": "words"})
    assert [entry["name"] for entry in read_manifest(tmp_path).classes] == ["7", "unknown"]


def test_a_failed_or_unwanted_index_takes_nothing_away(prepared: Path, tmp_path: Path) -> None:
    split = prepared / "64-jpeg" / "train"
    with pytest.raises(UsageError, match="written by `feedline prepare`"):
        index_shards(split, overwrite=True)
    assert read_manifest(split).codec == "jpeg"
    write_tar(tmp_path / "a.tar", [("a", saved(photo(1), "PNG"), b"0")])
    index_shards(tmp_path)
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:700])
    with pytest.raises(FeedlineError):
        index_shards(tmp_path, overwrite=True)
    assert read_manifest(tmp_path).samples == len(read_index(tmp_path)) == 1


def test_indexing_refuses_what_it_cannot_mean(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.tar files"):
        index_shards(tmp_path)
    with pytest.raises(UsageError, match="not a folder"):
        index_shards(tmp_path / "nothing")
    write_tar(tmp_path / "a.tar", [("good", saved(photo(1), "PNG"), b"0")])
    index_shards(tmp_path)
    with pytest.raises(UsageError, match="manifest already"):
        index_shards(tmp_path)
    index_shards(tmp_path, overwrite=True)


def test_folders_are_splits_and_share_their_classes(tmp_path: Path) -> None:
    picture = saved(photo(1), "PNG")
    words = {"a": b"ant", "b": b"bee", "c": b"cat"}
    write_tar(tmp_path / "train" / "000.tar", [(key, picture, word) for key, word in words.items()])
    write_tar(tmp_path / "val" / "000.tar", [("a", picture, b"cat")])
    write_tar(tmp_path / "val" / "old" / "000.tar", [("z", picture, b"bee")])
    index_shards(tmp_path)
    train, val = (read_manifest(tmp_path / split) for split in ("train", "val"))
    assert (train.split, val.split, val.samples) == ("train", "val", 1)
    assert train.classes == val.classes and len(val.classes) == 3
    assert read_index(tmp_path / "val").labels_N.tolist() == [2]
    assert verify(str(tmp_path), full=True)["ok"]


def test_the_folder_s_name_is_the_split_from_inside_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = saved(photo(1), "PNG")
    write_tar(tmp_path / "val" / "train-val-0.tar", [("a", picture, b"0")])
    write_tar(tmp_path / "val" / "old" / "more" / "1.tar", [("z", picture, b"0")])
    (tmp_path / "val" / "old" / "x.tar.gz").touch()
    monkeypatch.chdir(tmp_path / "val")
    assert index_shards(Path()) == {".": {"samples": 1, "shards": 1, "left_out": [], "not_named": 0, "bad": 0}}
    assert read_manifest(tmp_path / "val").split == "val"


def test_one_folder_with_two_splits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_tar(tmp_path / f"birds-{split}-0.tar", [(split, saved(photo(1), "PNG"), b"0")])
    with pytest.raises(UsageError, match=r"holds shards of train, val: give each split a folder"):
        index_shards(tmp_path)


# --- inspect ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inspected") / "out"
    outputs = tuple(parse_output(text) for text in ("64:jpeg", "32:raw", "48:planes", "keep"))
    config = PrepareConfig(
        source=str(images), out=str(out), outputs=outputs, shards=2, max_bad=0.2, val_fraction=0.25
    )
    door.prepare(config, engine=Here())
    return out


def test_inspect_counts_what_is_there(prepared: Path) -> None:
    found = inspect(prepared)
    assert len(found) == 8
    train = found["64-jpeg/train"]
    assert sum(entry["samples"] for entry in train["classes"]) == train["samples"] == sum(train["width_px"]["counts"])
    assert [entry["name"] for entry in train["classes"]] == ["apple", "bear", "cup"]
    assert train["height_px"]["min"] == 64


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("train-000001.tar", None, f"train-000001.tar is missing: {AGAIN}"),
        ("train-000001.tar", b"", "train-000001.tar is 0 bytes long, manifest.json says "),
        ("train-000001.tar", b"\0" * 512, "train-000001.tar is 512 bytes long, manifest.json says "),
        ("train-000009.tar", b"", "train-000009.tar is none of its shards: move it away"),
    ],
    ids=["missing", "emptied", "cut", "one too many"],
)
def test_inspect_says_which_shard_is_not_whole(
    prepared: Path, tmp_path: Path, name: str, data: bytes | None, says: str
) -> None:
    split = shutil.copytree(prepared / "64-jpeg" / "train", tmp_path / "train")
    whole = CliRunner().invoke(app, ["inspect", str(split)])
    assert whole.exit_code == 0 and "not whole" not in whole.output
    (split / name).unlink(missing_ok=True) if data is None else (split / name).write_bytes(data)
    told = CliRunner().invoke(app, ["inspect", str(split)])
    assert told.exit_code == 1 and says in " ".join(told.output.split())
    assert len(inspect(split)["train"]["problems"]) == 1


def test_the_right_pictures_are_shown(prepared: Path) -> None:
    """All forms of the same sample look alike."""
    assert len(thumbnails(prepared, 16, seed=3)) == 16
    by_form = [thumbnails(prepared / form / "train", 4, seed=3) for form in ("64-jpeg", "48-planes", "keep")]
    for same in zip(*by_form, strict=True):
        assert len({key for key, _, _ in same}) == len({name for _, name, _ in same}) == 1
        images = [Image.open(io.BytesIO(jpeg)) for _, _, jpeg in same]
        assert all(max(image.size) <= 112 for image in images)
        small = [np.asarray(image.resize((16, 16)), np.int16) for image in images]
        assert np.abs(small[0] - small[1]).mean() < 8
        assert np.abs(small[0] - small[2]).mean() < 8


def test_the_page_is_whole_and_escaped(prepared: Path) -> None:
    found = inspect(prepared)
    found["64-jpeg/train"]["classes"][0]["name"] = "<script>alert(1)</script>"
    text = document(page("<b>", found, thumbnails(prepared, 8)))
    assert text.count("data:image/jpeg;base64,") == 8
    assert "<script>" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_histograms_of_little(tmp_path: Path) -> None:
    assert histogram(np.array([], np.int32))["counts"] == []
    assert histogram(np.array([5, 5, 5]))["counts"] == [3]
    assert sum(histogram(np.arange(1000))["counts"]) == 1000
    with pytest.raises(DatasetError):
        inspect(tmp_path)
