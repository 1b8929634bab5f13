"""The job without Spark: whole or nothing, resumed; the same bytes whatever happened."""

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.scratch import PREFIX
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.engine import EngineRun
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.sources import staging
from feedline.preprocess.store import WORK
from feedline.preprocess.verify import verify
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome, ShardJob
from tests.preprocess.making import (
    CLASSES,
    PER_CLASS,
    Here,
    Killed,
    dies_after,
    digests,
    names,
    photo,
    prepare,
    saved,
)


def test_a_folder_becomes_a_dataset_that_others_read(images: Path, tmp_path: Path) -> None:
    report = prepare(images, tmp_path / "out")
    assert report["input_samples"] == 3 * PER_CLASS + 5
    assert report["output_samples"] == 3 * PER_CLASS + 3
    assert report["quarantined"] == 2
    assert report["reasons"] == {"empty": 1, "truncated": 1}
    assert {"cmyk": 1, "grey": 1, "png image": 1}.items() <= report["notes"].items()
    assert set(report["stage_s"]) >= {"read", "decode", "resize", "encode", "write", "commit"}
    manifest = read_manifest(tmp_path / "out" / "train")
    assert [entry["name"] for entry in manifest.classes] == list(CLASSES)
    assert [shard.planned_samples for shard in manifest.shards] == [14, 13, 13, 13]
    assert names(tmp_path / "out") == ["quarantine", "report.json", "train"]
    index = read_index(tmp_path / "out" / "train")
    with tarfile.open(tmp_path / "out" / "train" / manifest.shards[0].name) as tar:
        members = tar.getnames()
    assert members[:2] == [f"{index.keys[0]}.jpg", f"{index.keys[0]}.cls"]
    assert verify(str(tmp_path / "out"), full=True)["ok"]


def test_labels_are_those_of_the_folders(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    index = read_index(tmp_path / "out" / "train")
    assert len(index) > 0
    for key, label in zip(index.keys, index.labels_N.tolist(), strict=True):
        assert CLASSES[label] in key


def test_stock_webdataset_reads_it(clean_images: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")

    prepare(clean_images, tmp_path / "out", shards=2)
    urls = str(tmp_path / "out" / "train" / "train-{000000..000001}.tar")
    pil, torch = (
        list(webdataset.WebDataset(urls, shardshuffle=False).decode(how).to_tuple("jpg", "cls"))
        for how in ("pil", "torch")
    )
    assert len(pil) == len(torch) == 3 * PER_CLASS
    for (image, label), (tensor_CHW, same_label) in zip(pil, torch, strict=True):
        assert label == same_label in {0, 1, 2}
        pixels = np.asarray(image).transpose(2, 0, 1) / 255
        assert np.abs(pixels - tensor_CHW.numpy()).mean() < 0.5 / 255


def test_several_outputs_from_one_decode(images: Path, tmp_path: Path) -> None:
    outputs = tuple(parse_output(text) for text in ("64:jpeg", "32:raw:square", "48:planes", "keep"))
    report = prepare(images, tmp_path / "out", outputs=outputs, val_fraction=0.25)
    folders = sorted(str(path.parent.relative_to(tmp_path / "out")) for path in tmp_path.rglob("manifest.json"))
    assert folders == sorted(f"{form}/{split}" for form in ("64-jpeg", "32-raw", "48-planes", "keep")
                             for split in ("train", "val"))  # fmt: skip
    assert report["output_samples"] == 3 * PER_CLASS + 3
    assert verify(str(tmp_path / "out"), full=True)["ok"]
    alone = tmp_path / "alone"
    prepare(images, alone, outputs=outputs[:1], val_fraction=0.25)
    assert {name.removeprefix("64-jpeg/"): digest for name, digest in digests(tmp_path / "out").items()
            if name.startswith("64-jpeg") and name.endswith(".tar")} == {
        name: digest for name, digest in digests(alone).items() if name.endswith(".tar")}  # fmt: skip


def test_every_oddity_of_the_archives_adds_up(odd_ilsvrc: Path, tmp_path: Path) -> None:
    odd = json.loads((odd_ilsvrc / "synth.json").read_text())["oddities"]
    said = prepare(odd_ilsvrc, tmp_path / "out", outputs=(parse_output("48:jpeg"), parse_output("keep")), shards=2)
    assert said["input_samples"] == 48 == said["output_samples"] + said["quarantined"]
    assert said["quarantined"] == sum(what in ("truncated", "empty") for what in odd.values())
    found = verify(str(tmp_path / "out"), full=True)
    assert found["ok"], found["problems"]
    assert found["samples"] == 2 * said["output_samples"]


def test_the_bytes_do_not_depend_on_interruptions(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "calm")
    with pytest.raises(Killed):
        prepare(images, tmp_path / "stormy", engine=dies_after(1))
    with pytest.raises(FeedlineError, match="unfinished prepare"):
        verify(str(tmp_path / "stormy"))
    with pytest.raises(Killed):
        prepare(images, tmp_path / "stormy", engine=dies_after(2))
    report = prepare(images, tmp_path / "stormy")
    assert report["resumed_samples"] == 14 + 13 + 13
    assert digests(tmp_path / "calm") == digests(tmp_path / "stormy")


def test_a_source_that_changes_between_two_runs_is_not_mixed_with_the_old(tmp_path: Path) -> None:
    """Bitmaps of one size: other pixels, the same names and lengths, and with that the same plan."""

    def paint(value: int) -> None:
        for number in range(12):
            place = tmp_path / "bitmaps" / "class" / f"{number}.bmp"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (value, value, value)).save(place)

    options: dict[str, Any] = {"outputs": (parse_output("32:raw"),), "shards": 4}
    paint(10)
    with pytest.raises(Killed):
        prepare(tmp_path / "bitmaps", tmp_path / "out", engine=dies_after(2), **options)
    paint(200)
    told: list[str] = []
    report = prepare(tmp_path / "bitmaps", tmp_path / "out", on_note=told.append, **options)
    assert report["resumed_samples"] == 0
    for shard in (tmp_path / "out" / "train").glob("*.tar"):
        with tarfile.open(shard) as tar:
            data = [tar.extractfile(name) for name in tar.getnames() if name.endswith(".npy")]
            assert {int(np.load(io.BytesIO(file.read())).max()) for file in data if file} == {200}
    notes: list[str] = []
    prepare(tmp_path / "bitmaps", tmp_path / "out", on_note=notes.append, **options)
    assert not any("other sizes or times" in note for note in notes)
    paint(10)
    again = prepare(tmp_path / "bitmaps", tmp_path / "out", on_note=notes.append, **options)
    assert any(note.startswith("1 class: ") and note.endswith("same label: is that meant?") for note in told)
    assert again["already_complete"] and any("other sizes or times" in note for note in notes)


def test_a_death_while_writing_leaves_nothing_behind(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(images, tmp_path / "calm")
    whole = ShardJob.publish
    calls: list[int] = []

    def dies_before_publishing(self: ShardJob) -> Outcome:
        calls.append(1)
        if len(calls) == 3:
            (Path(self.order.address) / "train" / ".manifest.json.77.tmp").write_text("half")
            raise Killed
        return whole(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardJob, "publish", dies_before_publishing)
        with pytest.raises(Killed):
            prepare(images, tmp_path / "out")
    left = tmp_path / "out" / ".feedline" / "attempts-dead"
    left.mkdir()
    (left / "half.tmp").write_bytes(b"x")
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_a_rerun_of_a_finished_job_does_nothing(images: Path, tmp_path: Path) -> None:
    first = prepare(images, tmp_path / "out")
    again = prepare(images, tmp_path / "out", engine=dies_after(0))
    assert again["already_complete"]
    counts = ("input_samples", "output_samples", "quarantined", "reasons", "shards", "bytes_in", "bytes_out")
    assert [again[name] for name in counts] == [first[name] for name in counts]


def test_a_rerun_of_a_finished_job_has_no_rates_of_its_own(images: Path, tmp_path: Path) -> None:
    outputs = tuple(parse_output(text) for text in ("64:jpeg", "32:raw"))
    first = prepare(images, tmp_path / "out", outputs=outputs)
    rates = {"samples_per_s": 99.0, "samples_per_s_per_core": 50.0, "imagenet": {"samples": 1}, "hosts": ["a"]}
    (tmp_path / "out" / "report.json").write_text(json.dumps(first | rates))
    again = prepare(images, tmp_path / "out", outputs=outputs)
    assert again["samples_per_s"] is again["samples_per_s_per_core"] is again["imagenet"] is None
    assert not any(again["stage_s"].values()) and not again["hosts"] and set(again["seconds"]) == {"index", "plan"}
    assert again["resumed_samples"] == again["input_samples"] == first["input_samples"]


@pytest.mark.parametrize("name", ["train-000002.tar", "index.parquet"])
def test_a_lost_shard_or_index_comes_back(images: Path, tmp_path: Path, name: str) -> None:
    prepare(images, tmp_path / "out")
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "train" / name).unlink()
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "out") == before


def write_parquet(folder: Path) -> Path:
    """A source that must be unpacked."""
    table = pa.table({"image": pa.array([saved(photo(n)) for n in range(8)], pa.binary()), "label": [0, 1] * 4})
    folder.mkdir()
    pq.write_table(table, folder / "train-0.parquet")
    return folder


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_resumed_job_does_not_unpack_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    source, out = write_parquet(tmp_path / "in"), tmp_path / "out"
    if overwrite:
        prepare(source, out, seed=1)
    with pytest.raises(Killed):
        prepare(source, out, overwrite=overwrite, engine=dies_after(2))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_tars", lambda *_: 1 // 0)
        assert prepare(source, out, overwrite=overwrite)["resumed_samples"] == 4
    assert names(out) == ["report.json", "train"]


def test_what_was_unpacked_for_a_job_that_is_refused_goes(tmp_path: Path) -> None:
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not feedline's"):
        prepare(write_parquet(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out" / WORK).exists()


def test_a_report_and_a_plan_that_are_damaged_are_no_crash(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    (tmp_path / "out" / "report.json").write_text("[1]")
    again = prepare(images, tmp_path / "out")
    assert again["already_complete"] and again["output_samples"] and "reasons" not in again
    with pytest.raises(Killed):
        prepare(images, tmp_path / "begun", engine=dies_after(2))
    (tmp_path / "begun" / WORK / "plan.json").write_text("[1]")
    with pytest.raises(UsageError, match="unfinished run of another plan"):
        prepare(images, tmp_path / "begun")


def test_progress_begins_with_what_was_done_before(images: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(2))
    seen: list[tuple[int, int]] = []
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), shards=4, max_bad=0.2)
    door.prepare(config, on_progress=lambda done, total: seen.append((done, total)), engine=Here())
    assert (seen[0], seen[-1]) == ((27, 53), (53, 53))


def test_output_and_source_must_lie_apart(images: Path, tmp_path: Path) -> None:
    source = shutil.copytree(images, tmp_path / "in")
    for name in (source, f"file://{source}"):
        for out in (source, source / "out", f"file://{source}/out"):
            with pytest.raises(UsageError, match="lie in each other"):
                prepare(name, out)


@pytest.mark.parametrize(
    ("source", "out", "apart"),
    [
        ("s3://b/data", "s3://b/data/out", False),
        ("s3://b/data", "s3://b/data2", True),
        ("s3://b/out/train", "s3://b/out", False),
        ("s3://b/out/quarantine-kept", "s3://b/out", True),
        ("data/*/*.tar", "data", False),
        ("data/{train,more}/*.tar", "data", False),
        ("data/raw-*/*.tar", "data", True),
        ("data/*.tar", "data/out", True),
        ("/", "/data/out", False),
    ],
)
def test_addresses_and_patterns_lie_apart_too(source: str, out: str, apart: bool) -> None:
    config = PrepareConfig(source=source, out=out)
    with nullcontext() if apart else pytest.raises(UsageError, match="lie in each other"):
        door.check_apart(config)


def test_the_output_is_no_source_of_itself(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out", outputs=(parse_output("keep"), parse_output("48:raw")))
    before = digests(tmp_path / "out")
    for source in ("keep", "keep/train", "48-raw/train/train-000000.tar"):
        with pytest.raises(UsageError, match="lie in each other"):
            prepare(tmp_path / "out" / source, tmp_path / "out", overwrite=True)
    assert digests(tmp_path / "out") == before


def test_damage_in_a_prepared_source_is_not_given_a_fresh_checksum(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "first", outputs=(parse_output("keep"),))
    split = tmp_path / "first" / "train"
    index = read_index(split)
    shard = split / read_manifest(split).shards[int(index.shards_N[3])].name
    with shard.open("r+b") as file:
        file.seek(int(index.offsets_N[3]) + int(index.lengths_N[3]) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    said = prepare(tmp_path / "first", tmp_path / "second")
    assert said["reasons"] == {"damaged": 1}
    assert said["input_samples"] == said["output_samples"] + 1


@pytest.mark.parametrize("kind", ["folder", "shards", "parquet"])
def test_relative_paths_mean_the_same_to_executors_that_run_elsewhere(
    clean_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    if kind == "folder":
        (tmp_path / "in").symlink_to(clean_images)
    elif kind == "shards":
        prepare(clean_images, tmp_path / "in")
    else:
        (tmp_path / "in").mkdir()
        table = pa.table({"image": pa.array([saved(photo(n)) for n in range(8)], pa.binary()), "label": [0, 1] * 4})
        pq.write_table(table, tmp_path / "in" / "train-0.parquet")
    monkeypatch.chdir(tmp_path)

    class Elsewhere(Here):
        def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path / "elsewhere")
                return super().run(order, tasks, on_outcome)

    prepare(Path("in"), "out", engine=Elsewhere())
    prepare(tmp_path / "in", tmp_path / "whole")
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert not names(tmp_path / "elsewhere")


def test_metadata_says_where_a_sample_came_from(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "out", metadata=True, shards=1)
    with tarfile.open(tmp_path / "out" / "train" / "train-000000.tar") as tar:
        member = tar.extractfile(tar.getmembers()[2])
        assert member is not None
        assert json.load(member)["source"].startswith(str(clean_images))
    assert verify(str(tmp_path / "out"), full=True)["ok"]


def test_samples_that_were_unpacked_are_said_to_be_from_the_source(tmp_path: Path) -> None:
    """Where they were unpacked is gone when the job ends, and must not show in any byte."""
    images = [saved(photo(number)) for number in range(6)] + [b"no image"]
    table = pa.table({"image": pa.array(images, pa.binary()), "label": [number % 2 for number in range(7)]})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "train-0.parquet")
    for out in ("one", "other"):
        prepare(tmp_path / "in", tmp_path / out, metadata=True, shards=1)
    assert digests(tmp_path / "one") == digests(tmp_path / "other")
    bad = json.loads((tmp_path / "one" / "quarantine" / "report.jsonl").read_text())
    assert (bad["source"], bad["key"]) == (str(tmp_path / "in"), "00000006")


def test_what_came_from_elsewhere_is_another_plan_only_where_that_is_written(images: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(images)
    for metadata in (False, True):
        out = tmp_path / f"out{metadata}"
        with pytest.raises(Killed):
            prepare(images, out, engine=dies_after(2), metadata=metadata)
        if metadata:
            with pytest.raises(UsageError, match="another plan"):
                prepare(tmp_path / "link", out, metadata=True)
        else:
            assert prepare(tmp_path / "link", out)["resumed_samples"] == 27


def test_a_run_with_nothing_left_to_do_clears_what_a_killed_one_left(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(images, tmp_path / "out")
    (tmp_path / "tmp" / f"{PREFIX}spark-gone").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    prepare(images, tmp_path / "out")
    assert not names(tmp_path / "tmp")
