"""The job without Spark: whole or nothing, resumed, refused, quarantined; the same bytes whatever happened."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
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
from feedline.pipeline.loader import Loader
from feedline.preprocess import commit, output, quarantine
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.engine import EngineRun, OnOutcome
from feedline.preprocess.fingerprint import Fingerprint, fingerprint
from feedline.preprocess.index_source import indexed, source_stats
from feedline.preprocess.inspect import inspect
from feedline.preprocess.picture import Output
from feedline.preprocess.store import WORK, LocalStore, open_store
from feedline.preprocess.verify import verify
from feedline.preprocess.write_shard import Order, ShardJob, ShardTask
from tests.preprocess.making import CLASSES, PER_CLASS, After, Here, off_by_one, photo, saved, write_images


def prepare(source: Path, out: Path | str, **said: Any) -> dict[str, Any]:
    said = {"max_bad": 0.2, "shards": 4} | said
    engine = said.pop("engine", None) or Here()
    return door.prepare(PrepareConfig(source=str(source), out=str(out), **said), engine=engine)


def digests(out: Path) -> dict[str, str]:
    """Every file but report.json, by relative name."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Killed(BaseException):
    """As if the process had died here."""


def dies_after(count: int) -> Here:
    return Here(count, dies=Killed())


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


def test_a_death_while_writing_leaves_nothing_behind(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(images, tmp_path / "calm")
    whole = ShardJob.publish
    calls: list[int] = []

    def dies_before_publishing(self: ShardJob) -> None:
        calls.append(1)
        if len(calls) == 3:
            (Path(self.order.address) / "train" / ".manifest.json.77.tmp").write_text("half")
            raise Killed
        whole(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardJob, "publish", dies_before_publishing)
        with pytest.raises(Killed):
            prepare(images, tmp_path / "out")
    left = tmp_path / "out" / ".feedline" / "attempts-dead"
    left.mkdir()
    (left / "half.tmp").write_bytes(b"x")
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_a_worker_killed_at_a_quarantined_file_leaves_no_part_of_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker does its shard again within the same job."""
    prepare(images, tmp_path / "calm")
    whole = ShardJob.publish

    def after_a_death(self: ShardJob) -> None:
        (Path(self.order.address) / "quarantine" / ".train-000000-00001-cut.bin.0a.77.tmp").write_text("half")
        whole(self)

    monkeypatch.setattr(ShardJob, "publish", after_a_death)
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_a_death_between_the_manifests_is_mended(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tuple(parse_output(text) for text in ("64:jpeg", "32:raw"))
    prepare(images, tmp_path / "calm", outputs=outputs)
    whole = commit.publish_manifests

    def dies_after_one(store: Any, manifests: dict[str, Any]) -> None:
        whole(store, dict(list(manifests.items())[:1]))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish_manifests", dies_after_one)
        with pytest.raises(Killed):
            prepare(images, tmp_path / "out", outputs=outputs)
    assert not verify(str(tmp_path / "out"))["ok"]
    prepare(images, tmp_path / "out", outputs=outputs)
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_a_report_that_was_being_written_when_it_died_goes_with_the_next_start(
    clean_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    left = [out / ".report.json.0123abcd.4194303.tmp", out / ".mine.txt.0123abcd.4194303.tmp"]
    for path in left:
        path.write_text("{")
    prepare(clean_images, out)
    assert [path.exists() for path in left] == [False, True]


def test_a_rerun_of_a_finished_job_does_nothing(images: Path, tmp_path: Path) -> None:
    first = prepare(images, tmp_path / "out")
    again = prepare(images, tmp_path / "out", engine=dies_after(0))
    assert again["already_complete"]
    assert again["output_samples"] == first["output_samples"]


def test_a_lost_shard_comes_back(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "train" / "train-000002.tar").unlink()
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "out") == before


def test_another_plan_is_refused_and_overwrite_takes_only_ours(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    before = digests(out)
    with pytest.raises(UsageError, match="another plan"):
        prepare(images, out, seed=1)
    assert digests(out) == before
    (out / "notes.txt").write_text("mine")
    prepare(images, out, seed=1, overwrite=True, shards=2)
    prepare(images, tmp_path / "fresh", seed=1, shards=2)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    assert digests(out) == digests(tmp_path / "fresh")


def test_overwriting_begins_anew_with_the_same_plan_too(images: Path, tmp_path: Path) -> None:
    """A shard of the right size with wrong bytes: only reading it all would tell."""
    out = tmp_path / "out"
    prepare(images, out)
    before = digests(out)
    for options in ({}, {"overwrite": True}):
        with (out / "train" / "train-000001.tar").open("r+b") as file:
            file.seek(5000)
            file.write(b"damage")
        assert not verify(str(out))["ok"]
        prepare(images, out, **options)
    assert digests(out) == before
    with pytest.raises(UsageError, match="remove the mended files"):
        prepare(images, out, overwrite=True, retry_quarantine=True)


def test_overwriting_keeps_what_was_unpacked_to_read_from(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([saved(photo(n)) for n in range(8)], pa.binary()), "label": [0, 1] * 4})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "train-0.parquet")
    for seed in (0, 0, 1):
        said = prepare(tmp_path / "in", tmp_path / "out", shards=2, seed=seed, overwrite=True)
        assert said["output_samples"] == 8
        assert names(tmp_path / "out") == ["report.json", "train"]


def test_an_unfinished_other_plan_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(1))
    with pytest.raises(UsageError, match="unfinished run of another plan"):
        prepare(images, tmp_path / "out", seed=1)
    prepare(images, tmp_path / "out", seed=1, overwrite=True)
    prepare(images, tmp_path / "fresh", seed=1)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_files_of_others_are_never_touched(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not feedline's"):
            prepare(images, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "train" / "thesis.tex").read_text() == "years of work"


def test_shards_of_others_are_not_taken_for_ours(images: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "out" / "train" / "train-000000.tar"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"another tool's, by the usual name")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not feedline's"):
            prepare(images, tmp_path / "out", overwrite=overwrite)
    assert theirs.read_bytes() == b"another tool's, by the usual name"
    prepare(images, tmp_path / "mine")
    (tmp_path / "mine" / "train" / "train-000077.tar").write_bytes(b"put there later")
    with pytest.raises(UsageError, match="not feedline's"):
        prepare(images, tmp_path / "mine", seed=1, overwrite=True)
    assert (tmp_path / "mine" / "train" / "manifest.json").exists()


def test_the_old_dataset_stays_until_the_new_one_is_whole(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    old = digests(out)

    does_not_start = Here(0, dies=FeedlineError("Spark did not start with master locl[1]"))
    with pytest.raises(FeedlineError, match="did not start"):
        prepare(images, out, seed=1, overwrite=True, engine=does_not_start)
    with pytest.raises(Killed):
        prepare(images, out, seed=1, overwrite=True, engine=dies_after(2))
    assert verify(str(out), full=True)["ok"]
    assert {name: digest for name, digest in digests(out).items() if not name.startswith(WORK)} == old
    with pytest.raises(UsageError, match="another plan"):
        prepare(images, out, seed=1)
    assert prepare(images, out, seed=1, overwrite=True)["resumed_samples"] == 27
    prepare(images, tmp_path / "fresh", seed=1)
    assert digests(out) == digests(tmp_path / "fresh")


def test_an_overwriting_that_was_given_up_leaves_nothing(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    before = digests(tmp_path / "out")
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", seed=1, overwrite=True, engine=dies_after(2))
    assert prepare(images, tmp_path / "out")["already_complete"]
    assert digests(tmp_path / "out") == before


def test_overwriting_says_what_room_it_needs(images: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), max_bad=0.2, overwrite=True)
    door.prepare(config, on_note=said.append, engine=Here())
    assert not [line for line in said if "MiB more" in line]
    door.prepare(config, on_note=said.append, engine=Here())
    assert [line for line in said if "stays until the new one is whole: until then about 2 MiB more" in line]


class Death:
    """The process dies at its `count`th change of the file system: no later one, no tidying, takes place."""

    CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")

    def __init__(self) -> None:
        self.count = -1
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: Any) -> None:
        if self.count >= 0 and (event in self.CHANGES or (event == "open" and arguments[2] & os.O_CREAT)):
            self.count -= self.count > 0
            if self.count == 0:
                raise Killed

    @contextmanager
    def at(self, count: int) -> Generator[None]:
        self.count = count
        try:
            yield
        finally:
            self.count = -1


DEATH = Death()


@pytest.mark.parametrize("atomic", [True, False])
def test_a_death_at_any_step_of_the_exchange_leaves_old_or_new_and_a_rerun_ends_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    """Also where the file system cannot exchange two folders: then a folder may be away, but never its bytes."""
    jpeg, raw, keep = (parse_output(text) for text in ("64:jpeg", "32:raw", "keep"))
    old: dict[str, Any] = {"outputs": (jpeg, raw), "shards": 2, "val_fraction": 0.25}
    new: dict[str, Any] = {"outputs": (jpeg, keep), "shards": 2, "seed": 1, "overwrite": True}
    prepare(images, tmp_path / "old", **old)
    prepare(images, tmp_path / "fresh", **(new | {"overwrite": False}))
    after = digests(tmp_path / "fresh")
    out, whole = tmp_path / "out", output.put_in_place
    if not atomic:
        monkeypatch.setattr("ctypes.CDLL", lambda *_: None)
    shutil.copytree(tmp_path / "old", tmp_path / "half")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(output, "put_in_place", lambda *_: 1 // 0)
        prepare(images, tmp_path / "half", **new)
    died, steps = True, 0
    while died:
        steps += 1
        shutil.copytree(tmp_path / "half", out)
        (out / "quarantine" / "mine.txt").write_text("kept")

        def dies(*arguments: Any, steps: int = steps) -> None:
            with DEATH.at(steps):
                whole(*arguments)

        try:
            with monkeypatch.context() as patch:
                patch.setattr(output, "put_in_place", dies)
                prepare(images, out, **new)
            died = False
        except Killed:
            if atomic:
                assert shards_of(out) in (shards_of(tmp_path / "old"), shards_of(tmp_path / "fresh"))
            if (out / WORK / "plan.json").exists():
                assert any("run its command again" in one["what"] for one in verify(str(out))["problems"])
            assert prepare(images, out, **new)["output_samples"] == 51
        assert (out / "quarantine" / "mine.txt").read_text() == "kept"
        (out / "quarantine" / "mine.txt").unlink()
        assert digests(out) == after
        assert not (out / WORK).exists()
        shutil.rmtree(out)
    assert steps > 20


def shards_of(out: Path) -> list[str]:
    """As a reader finds them, by the manifest."""
    split = out / "64-jpeg" / "train"
    return [hashlib.sha256((split / shard.name).read_bytes()).hexdigest() for shard in read_manifest(split).shards]


def test_a_death_while_an_unfinished_run_is_removed_is_mended(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(2))
    whole = LocalStore.delete

    def dies(self: LocalStore, name: str) -> None:
        whole(self, name)
        if name.endswith("train-000001.tar"):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", dies)
        with pytest.raises(Killed):
            prepare(images, tmp_path / "out", seed=1, overwrite=True)
    prepare(images, tmp_path / "out", seed=1, overwrite=True)
    prepare(images, tmp_path / "fresh", seed=1)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_the_output_is_no_source_of_itself(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out", outputs=(parse_output("keep"), parse_output("48:raw")))
    before = digests(tmp_path / "out")
    for source in ("keep", "keep/train", "48-raw/train/train-000000.tar"):
        with pytest.raises(UsageError, match="lie in each other"):
            prepare(tmp_path / "out" / source, tmp_path / "out", overwrite=True)
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize("name", [".feedline", "quarantine", "train", "64-jpeg/train"])
def test_links_where_our_folders_would_be_are_refused(images: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "train-000000.tar").write_bytes(b"precious")
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="is a link"):
            prepare(images, tmp_path / "out", overwrite=overwrite)
    assert names(victim) == ["train-000000.tar"]


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


@pytest.mark.parametrize(
    "change", [{"file": "../../secret"}, {"shard": [1]}, {"split": None, "more": 1}, {"key": {}}]
)
def test_a_crafted_quarantine_report_is_one_line(images: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    prepare(images, tmp_path / "out")
    report = tmp_path / "out" / "quarantine" / "report.jsonl"
    row = json.loads(report.read_text().splitlines()[0])
    report.write_text(json.dumps(row | change) + "\n")
    assert not verify(str(tmp_path / "out"))["ok"]
    with pytest.raises(FeedlineError, match=r"report\.jsonl is damaged"):
        prepare(images, tmp_path / "out", retry_quarantine=True)


def test_a_second_job_is_refused_while_the_first_runs(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another prepare is running"):
        prepare(images, tmp_path / "out")
    os.close(held)
    prepare(images, tmp_path / "out")


def test_output_and_source_must_lie_apart(images: Path, tmp_path: Path) -> None:
    for out in (images, images / "out"):
        with pytest.raises(UsageError, match="lie in each other"):
            prepare(images, out)


@pytest.mark.parametrize("where", ["file/out", "/proc/feedline/out"])
def test_an_output_that_cannot_be_written_is_one_line(images: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        prepare(images, tmp_path / where)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line_and_resumes(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.fsync
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(1)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FeedlineError, match="no space left") as caught:
            prepare(images, tmp_path / "out")
    assert caught.value.exit_status == 1
    assert not list((tmp_path / "out").rglob("manifest.json"))
    prepare(images, tmp_path / "out")
    prepare(images, tmp_path / "fresh")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_file_that_a_full_disk_cut_short_is_left_without_another_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.prepare(["train", f"{WORK}/attempts-run"])
    with store.attempt("run") as attempt, Path("/dev/full").open("wb") as full:
        attempt.write(b"x")
        os.dup2(full.fileno(), attempt.fileno())
        with pytest.raises(OSError, match="No space left"):
            store.publish(attempt, "train", "train-000000.tar", "")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_made_beside_a_shard_that_failed_is_not_published(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def full(self: LocalStore, attempt: Any, folder: str, name: str, sha256: str) -> str:
        tried.append(name)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalStore, "publish", full)
    with pytest.raises(FeedlineError, match="no space left while writing shard 0 of train"):
        prepare(images, tmp_path / "out")
    assert len(tried) == 1
    assert not [path.name for path in (tmp_path / "out").rglob("*") if path.suffix in (".tar", ".tmp", ".receipt")]


# --- quarantine ---------------------------------------------------------------------------------------


def test_quarantine_keeps_the_bytes_and_the_reason(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    lines = (tmp_path / "out" / "quarantine" / "report.jsonl").read_text().splitlines()
    rows = {row["reason"]: row for row in map(json.loads, lines)}
    cut = rows["truncated"]
    assert cut["source"] == str(images / "bear" / "cut.JPEG")
    assert (tmp_path / "out" / "quarantine" / cut["file"]).read_bytes() == (images / "bear" / "cut.JPEG").read_bytes()
    assert rows["empty"]["length"] == 0


def test_the_size_of_what_is_too_large_is_said(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "out", max_bad=1, max_pixels=16)
    lines = (tmp_path / "out" / "quarantine" / "report.jsonl").read_text().splitlines()
    assert all(re.match(r"\d+x\d+ is over the limit of 16 ", json.loads(line)["detail"]) for line in lines)


def test_links_to_nothing_and_images_without_a_class_are_quarantined(clean_images: Path, tmp_path: Path) -> None:
    source = shutil.copytree(clean_images, tmp_path / "in")
    (source / "apple" / "gone.jpg").symlink_to("nowhere")
    shutil.copy(source / "bear" / "bear_1.JPEG", source / "stray.jpg")
    said = prepare(source, tmp_path / "out", shards=1, max_bad=0.1)
    assert (said["output_samples"], said["reasons"]) == (48, {"broken link": 1, "no label": 1})
    rows = quarantine.read_report(open_store(str(tmp_path / "out")))
    assert {(row.key, row.source) for row in rows} == {
        ("apple/gone", str(source / "apple/gone.jpg")), ("stray", str(source / "stray.jpg")),
    }  # fmt: skip


def test_too_many_bad_samples_are_an_error_that_resumes(images: Path, tmp_path: Path) -> None:
    with pytest.raises(door.TooManyBad, match=r"--max-bad .*quarantine/report\.jsonl"):
        prepare(images, tmp_path / "out", max_bad=0.001)
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert reasons(tmp_path / "out")
    report = prepare(images, tmp_path / "out", max_bad=0.1)
    assert report["quarantined"] == 2


def reasons(out: Path) -> list[str]:
    lines = (out / "quarantine" / "report.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["reason"] for line in lines)


def test_what_was_too_much_can_be_mended_and_tried_again(images: Path, tmp_path: Path) -> None:
    """The reasons are there before the dataset is; too many left after a retry takes none of them away."""
    out = tmp_path / "out"
    for _ in range(2):  # the second finds nothing left to do but to commit
        with pytest.raises(door.TooManyBad):
            prepare(images, out, max_bad=0.001, shards=1)
        assert reasons(out) == ["empty", "truncated"]
    with pytest.raises(door.TooManyBad):
        prepare(images, out, max_bad=0.001, shards=1, retry_quarantine=True)
    assert reasons(out) == ["empty", "truncated"]
    for file in (out / "quarantine").glob("*.bin"):
        file.write_bytes(saved(photo(3)))
    assert prepare(images, out, max_bad=0.001, shards=1, retry_quarantine=True)["quarantined"] == 0
    assert verify(str(out), full=True)["ok"]


def test_mended_files_go_to_their_places(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    rows = [json.loads(line) for line in (out / "quarantine" / "report.jsonl").read_text().splitlines()]
    cut = next(row for row in rows if row["reason"] == "truncated")
    (out / "quarantine" / cut["file"]).write_bytes(saved(photo(3)))
    report = prepare(images, out, retry_quarantine=True)
    assert report["reasons"] == {"empty": 1}
    assert report["output_samples"] == 3 * PER_CLASS + 4
    assert cut["key"] in read_index(out / "train").keys
    assert verify(str(out), full=True)["ok"]
    assert len(names(out / "quarantine")) == 2
    empty = json.loads((out / "quarantine" / "report.jsonl").read_text())
    assert empty["source"].startswith(str(images))


def test_a_retry_that_dies_leaves_the_dataset_as_it_was(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(images, out)
    for file in (out / "quarantine").glob("*.bin"):
        file.write_bytes(saved(photo(3)))
    with pytest.raises(Killed):
        prepare(images, out, retry_quarantine=True, engine=dies_after(2))
    assert verify(str(out), full=True)["ok"]
    assert prepare(images, out, retry_quarantine=True)["quarantined"] == 0
    assert verify(str(out), full=True)["ok"]
    assert prepare(images, out, retry_quarantine=True)["already_complete"]


def test_nothing_bad_leaves_no_quarantine(clean_images: Path, tmp_path: Path) -> None:
    prepare(clean_images, tmp_path / "out")
    assert names(tmp_path / "out") == ["report.json", "train"]


def test_every_oddity_of_the_archives_adds_up(odd_ilsvrc: Path, tmp_path: Path) -> None:
    odd = json.loads((odd_ilsvrc / "synth.json").read_text())["oddities"]
    said = prepare(odd_ilsvrc, tmp_path / "out", outputs=(parse_output("48:jpeg"), parse_output("keep")), shards=2)
    assert said["input_samples"] == 48 == said["output_samples"] + said["quarantined"]
    assert said["quarantined"] == sum(what in ("truncated", "empty") for what in odd.values())
    found = verify(str(tmp_path / "out"), full=True)
    assert found["ok"], found["problems"]
    assert found["samples"] == 2 * said["output_samples"]


# --- forms --------------------------------------------------------------------------------------------


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


def test_an_object_store_gets_hashed_names_and_no_renames(images: Path, tmp_path: Path) -> None:
    import fsspec

    out = f"memory://{tmp_path.name}"
    with pytest.raises(Killed):
        prepare(images, out, engine=dies_after(2))
    report = prepare(images, out)
    assert report["resumed_samples"] == 27
    objects = [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find(out)]
    shards = sorted(name for name in objects if name.endswith(".tar"))
    assert len(shards) == 4
    assert all(len(name) == len("train-000000-0123456789abcdef.tar") for name in shards)
    assert not [name for name in objects if name.endswith(".receipt")]
    assert verify(out, full=True)["ok"]
    prepare(images, tmp_path / "local")
    local = read_manifest(tmp_path / "local" / "train")
    assert sorted(shard.sha256[:16] for shard in local.shards) == sorted(name[13:29] for name in shards)


def test_an_object_store_keeps_the_old_dataset_until_the_manifest_changes(images: Path, tmp_path: Path) -> None:
    import fsspec

    def objects(address: str) -> list[str]:
        found = fsspec.filesystem("memory").find(address)
        return sorted(path.partition(address.removeprefix("memory:/"))[2] for path in found)

    out, fresh = (f"memory://{tmp_path.name}/{name}" for name in ("out", "fresh"))
    prepare(images, out, val_fraction=0.25)
    with pytest.raises(Killed):
        prepare(images, out, seed=1, overwrite=True, engine=dies_after(2))
    problems = verify(out, full=True)["problems"]
    assert {problem["what"] for problem in problems} == {"a file that the manifest does not name"}
    assert prepare(images, out, seed=1, overwrite=True)["resumed_samples"] == 27
    prepare(images, fresh, seed=1)
    assert objects(out) == objects(fresh)
    assert verify(out, full=True)["ok"]


def test_what_was_unpacked_where_executors_do_not_see_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"image": pa.array([saved(photo(n)) for n in range(4)], pa.binary()), "label": [0, 1] * 2})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "train-0.parquet")
    out = f"memory://{tmp_path.name}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def on_another_machine() -> None:
        for folder in tmp_path.glob(f"{PREFIX}staging-*"):
            shutil.rmtree(folder)

    with pytest.raises(FeedlineError, match=r"does not see what .*: give an OUT folder that all executors share"):
        prepare(tmp_path / "in", out, shards=1, engine=After(on_another_machine))
    assert prepare(tmp_path / "in", out, shards=1)["output_samples"] == 4


def test_a_long_index_says_how_far_it_is(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.preprocess.index_source.NEWS_S", 0.0)
    said: list[str] = []
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), max_bad=0.2)
    door.prepare(config, on_note=said.append, engine=Here())
    assert "indexing: 1 of 1 pieces, 53 samples" in said


def test_pieces_are_indexed_beside_each_other_and_stay_in_order() -> None:
    """Each of the two waits for the other."""
    meeting = threading.Barrier(2, timeout=60)

    class Piece:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self) -> Any:
            meeting.wait()
            return [self.name]

    pieces: list[Any] = [Piece("one"), Piece("other")]
    assert indexed(pieces, 2, lambda _: None) == [["one"], ["other"]]


def test_progress_begins_with_what_was_done_before(images: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(2))
    seen: list[tuple[int, int]] = []
    config = PrepareConfig(source=str(images), out=str(tmp_path / "out"), shards=4, max_bad=0.2)
    door.prepare(config, on_progress=lambda done, total: seen.append((done, total)), engine=Here())
    assert (seen[0], seen[-1]) == ((27, 53), (53, 53))


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


def test_each_of_many_files_is_watched(tmp_path: Path) -> None:
    """Written anew with the same length, while the job runs."""
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    changes = After(lambda: os.utime(source / "bear" / "bear_1.JPEG", ns=(1, 1)))

    assert source_stats(["s3://bucket/x", str(source / "bear" / "bear_1.JPEG")])[:, 0].tolist()[0] == -1
    assert len(source_stats([str(source / "bear" / "bear_1.JPEG")] * 10_001)) == 10_001
    with pytest.raises(FeedlineError, match=r"bear_1\.JPEG changed while it was read"):
        prepare(source, tmp_path / "out", engine=changes, shards=1)
    with pytest.raises(FeedlineError, match="cannot be read any more"):
        source_stats([str(tmp_path / "gone")])


def test_a_source_that_changes_is_said(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    victim = source / "bear" / "bear_1.JPEG"
    changes = After(lambda: victim.write_bytes(victim.read_bytes() + b"more"))
    with pytest.raises(FeedlineError, match="changed while it was read"):
        prepare(source, tmp_path / "out", engine=changes, shards=1)


def test_a_source_file_that_vanishes_is_said(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", per_class=4, oddities=False)

    vanishes = After((source / "bear" / "bear_1.JPEG").unlink)
    with pytest.raises(FeedlineError, match="cannot be read any more"):
        prepare(source, tmp_path / "out", engine=vanishes, shards=1)


def test_an_executor_with_another_encoder_is_refused(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Fingerprint(encoder="0" * 64, formats={})
    monkeypatch.setattr("feedline.preprocess.write_shard.fingerprint", lambda outputs: other)
    with pytest.raises(FeedlineError, match="encodes differently"):
        prepare(images, tmp_path / "out")


@pytest.fixture
def other_libraries() -> Iterator[Callable[[], None]]:
    """To be called where the libraries change: what is known of them is forgotten, then and at the end."""
    fingerprint.cache_clear()
    yield fingerprint.cache_clear
    fingerprint.cache_clear()


def test_shards_name_the_encoder_that_made_them(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    manifest = read_manifest(tmp_path / "out" / "train")
    mine = fingerprint((Output(),))
    assert {shard.fingerprint for shard in manifest.shards} == {mine.encoder}
    assert (manifest.format_version, manifest.formats) == (2, mine.formats)


def test_a_job_is_not_resumed_with_another_pillow(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_libraries: Callable[[], None]
) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(2))
    with monkeypatch.context() as patch:
        off_by_one(patch)
        other_libraries()
        with pytest.raises(UsageError, match=r"unfinished run of another plan .* libraries"):
            prepare(images, tmp_path / "out")
    other_libraries()
    assert prepare(images, tmp_path / "out")["resumed_samples"] == 27
    assert verify(str(tmp_path / "out"), full=True)["ok"]


@pytest.mark.parametrize("ended", ["killed", "too many bad", "finished"])
def test_more_formats_are_taken_up_by_retrying_what_is_in_quarantine(
    ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_libraries: Callable[[], None]
) -> None:
    source, out = write_images(tmp_path / "in", oddities=False), tmp_path / "out"
    for number in range(3):
        (source / "cup" / f"moving_{number}.gif").write_bytes(saved(photo(200 + number).convert("P"), "GIF"))
    with monkeypatch.context() as lean:
        lean.setattr("feedline.preprocess.fingerprint.optional_files", lambda: [("GIF", saved(photo(7), "GIF"))])
        other_libraries()
        prepare(source, tmp_path / "calm")
        Image.init()
        with monkeypatch.context() as leaner:
            leaner.setitem(Image.OPEN, "GIF", (Image.OPEN["GIF"][0], lambda prefix: "GIF support not installed"))
            other_libraries()
            if ended == "finished":
                prepare(source, out)
                prepare(source, out)
            else:
                engine, error = {"killed": (dies_after(2), Killed), "too many bad": (Here(), FeedlineError)}[ended]
                with pytest.raises(error):
                    prepare(source, out, engine=engine, max_bad=0.0 if ended == "too many bad" else 0.2)
        other_libraries()
        with pytest.raises(UsageError, match=r"\(there no optional format; here GIF\): give --retry-quarantine"):
            prepare(source, out)
        prepare(source, out, retry_quarantine=True)
        assert digests(out) == digests(tmp_path / "calm")
        assert verify(str(out), full=True)["ok"]
        assert prepare(source, out)["already_complete"]


def test_fewer_formats_are_refused(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_libraries: Callable[[], None]
) -> None:
    files = [("GIF", saved(photo(7), "GIF"))]
    monkeypatch.setattr("feedline.preprocess.fingerprint.optional_files", lambda: files)
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(1))
    files.clear()
    other_libraries()
    for retry in (False, True):
        with pytest.raises(UsageError, match=r"there GIF; here no optional format.*use the libraries"):
            prepare(images, tmp_path / "out", retry_quarantine=retry)


def test_a_dataset_of_format_version_1_is_still_read(clean_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(clean_images, out, shards=2)
    manifest = json.loads((out / "train" / "manifest.json").read_text())
    for shard in manifest["shards"]:
        del shard["fingerprint"]
    del manifest["formats"]
    manifest["format_version"] = 1
    (out / "train" / "manifest.json").write_text(json.dumps(manifest))
    assert read_manifest(out / "train").format_version == 1
    assert verify(str(out), full=True)["ok"]
    assert inspect(out)["train"]["samples"] == 3 * PER_CLASS
    loader = Loader(out / "train", batch_size=8, image_size=32, num_workers=0)
    assert sum(len(labels) for _, labels in loader) == 3 * PER_CLASS
    loader.close()
    assert prepare(out, tmp_path / "again")["output_samples"] == 3 * PER_CLASS


def test_a_run_with_nothing_left_to_do_clears_what_a_killed_one_left(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(images, tmp_path / "out")
    (tmp_path / "tmp" / f"{PREFIX}spark-gone").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    prepare(images, tmp_path / "out")
    assert not names(tmp_path / "tmp")
