"""An output folder: whose it is, what is refused, and what replaces a finished dataset."""

import fcntl
import hashlib
import math
import os
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feedline.pipeline.base.errors import DatasetError, FeedlineError, UsageError
from feedline.pipeline.format.manifest import MANIFEST, Manifest, read_manifest
from feedline.preprocess import output
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.store import WORK, LocalStore
from feedline.preprocess.verify import verify
from tests.preprocess.making import (
    Here,
    Killed,
    dies_after,
    digests,
    names,
    photo,
    prepare,
    saved,
)


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


def test_an_unfinished_other_plan_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(1))
    with pytest.raises(UsageError, match="unfinished run of another plan"):
        prepare(images, tmp_path / "out", seed=1)
    prepare(images, tmp_path / "out", seed=1, overwrite=True)
    prepare(images, tmp_path / "fresh", seed=1)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_picture_of_another_length_is_another_plan_and_said_to_be(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in "ab":
        (source / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(source / name / "x.bmp")
    with pytest.raises(Killed):
        prepare(source, tmp_path / "out", engine=dies_after(1), shards=2)
    Image.new("RGB", (64, 32)).save(source / "a" / "x.jpg")
    with pytest.raises(UsageError, match=r"encoder .*, but of other files, lengths, labels or shards\): choose"):
        prepare(source, tmp_path / "out", shards=2)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_dataset_of_ours_whose_manifest_is_damaged_can_be_prepared_again(
    images: Path, tmp_path: Path, damage: str
) -> None:
    prepare(images, tmp_path / "out")
    manifest = tmp_path / "out" / "train" / "manifest.json"
    if damage == "cut":
        manifest.write_text(manifest.read_text()[:100])
    else:
        manifest.unlink()
    with pytest.raises(UsageError, match=r"not feedline's|another plan"):
        prepare(images, tmp_path / "out")
    theirs = tmp_path / "out" / "val" / "val-000000.tar"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_bytes(b"somebody's")
    if (tmp_path / "out" / "val" / "manifest.json").exists():
        theirs.unlink()
    prepare(images, tmp_path / "out", overwrite=True)
    prepare(images, tmp_path / "fresh")
    assert not theirs.exists() or theirs.read_bytes() == b"somebody's"
    assert digests(tmp_path / "out" / "train") == digests(tmp_path / "fresh" / "train")


def test_files_of_others_are_never_touched(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not feedline's"):
            prepare(images, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "train" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["report.json", "quarantine/report.jsonl", "quarantine/mended.jsonl"])
def test_a_report_of_others_is_not_replaced(images: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('{"theirs": 1}')
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=f"{name} is not feedline's: choose another folder"):
            prepare(images, out, overwrite=overwrite)
    assert (out / name).read_text() == '{"theirs": 1}'


def test_a_report_that_a_removed_dataset_left_is_ours(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    before = digests(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "train")
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "out") == before


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


def test_a_second_job_is_refused_while_the_first_runs(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another prepare is running"):
        prepare(images, tmp_path / "out")
    os.close(held)
    prepare(images, tmp_path / "out")


@pytest.mark.parametrize("where", ["file/out", "/proc/feedline/out"])
def test_an_output_that_cannot_be_written_is_one_line(images: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        prepare(images, tmp_path / where)
    assert "\n" not in str(caught.value)


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


def test_overwriting_several_outputs_resumes(images: Path, tmp_path: Path) -> None:
    said: dict[str, Any] = {"outputs": tuple(parse_output(text) for text in ("64:jpeg", "32:raw"))}
    prepare(images, tmp_path / "out", **said)
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", seed=1, overwrite=True, engine=dies_after(2), **said)
    assert prepare(images, tmp_path / "out", seed=1, overwrite=True, **said)["resumed_samples"] == 27


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


def test_overwriting_needs_the_room_that_the_same_plan_took(tmp_path: Path) -> None:
    """An estimate is of photographs as usual, which a panorama is not."""
    (tmp_path / "in/a").mkdir(parents=True)
    Image.new("RGB", (3600, 900)).save(tmp_path / "in/a/wide.png")
    outputs, said = (parse_output("900:raw"),), list[str]()
    prepare(tmp_path / "in", tmp_path / "out", outputs=outputs, shards=1)
    config = PrepareConfig(
        source=str(tmp_path / "in"), out=str(tmp_path / "out"), outputs=outputs, shards=1, overwrite=True
    )
    door.prepare(config, on_note=said.append, engine=Here())
    size = (tmp_path / "out/train/train-000000.tar").stat().st_size
    assert [line for line in said if f"about {math.ceil(size / 2**20)} MiB more" in line]


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
            prepare(images, tmp_path / "out", seed=1, shards=1, overwrite=True)
    prepare(images, tmp_path / "out", seed=1, shards=1, overwrite=True)
    prepare(images, tmp_path / "fresh", seed=1, shards=1)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


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


@pytest.mark.slow
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


def test_a_signal_waits_until_the_exchange_is_over(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    prepare(images, out, shards=2, val_fraction=0.25)
    new: dict[str, Any] = {"shards": 2, "val_fraction": 0.25, "seed": 1}
    prepare(images, tmp_path / "fresh", **new)
    exchange = output.exchange

    def interrupted(*places: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        exchange(*places)

    monkeypatch.setattr(output, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(images, out, overwrite=True, **new)
    assert digests(out) == digests(tmp_path / "fresh")
    assert verify(str(out), full=True)["ok"]


def test_half_an_exchange_is_not_read(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new train beside the old val, after a kill: both may look whole."""
    out = tmp_path / "out"
    prepare(images, out, shards=2, val_fraction=0.25)
    exchange, exchanged = output.exchange, list[Path]()

    def dies(new: Path, old: Path) -> None:
        if exchanged:
            raise Killed
        exchanged.append(old)
        exchange(new, old)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(output, "exchange", dies)
        prepare(images, out, shards=2, val_fraction=0.25, seed=1, overwrite=True)
    with pytest.raises(DatasetError, match="put a new dataset in place of the old: run its command again"):
        read_manifest(exchanged[0])
    assert "run its command again" in verify(str(exchanged[0]))["problems"][0]["what"]
    prepare(images, out, shards=2, val_fraction=0.25, seed=1, overwrite=True)
    assert {read_manifest(out / split).seed for split in ("train", "val")} == {1}


def shards_of(out: Path) -> list[str]:
    """As a reader finds them, by the manifest."""
    split = out / "64-jpeg" / "train"
    return [
        hashlib.sha256((split / shard.name).read_bytes()).hexdigest()
        for shard in Manifest.from_json((split / MANIFEST).read_text(), "").shards
    ]
