"""One shard on an executor: what goes wrong there."""

import errno
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.scratch import PREFIX
from feedline.preprocess.engine import EngineRun
from feedline.preprocess.fingerprint import Fingerprint
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.store import LocalStore
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome, ShardJob, write_shards
from tests.preprocess.making import (
    After,
    Here,
    digests,
    photo,
    prepare,
    saved,
)


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


def test_where_a_disk_cannot_be_read_is_said(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    said = r"(\w+)\.JPEG cannot be read \(at byte 0, sample '(\w+/)?\1'\): Input/output error"
    with pytest.raises(FeedlineError, match=said):
        prepare(images, tmp_path / "out")


def test_a_worker_killed_at_a_quarantined_file_leaves_no_part_of_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker does its shard again within the same job."""
    prepare(images, tmp_path / "calm")
    whole = ShardJob.publish

    def after_a_death(self: ShardJob) -> Outcome:
        (Path(self.order.address) / "quarantine" / ".train-000000-00001-cut.bin.0a.77.tmp").write_text("half")
        return whole(self)

    monkeypatch.setattr(ShardJob, "publish", after_a_death)
    prepare(images, tmp_path / "out")
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")


def test_an_executor_with_another_encoder_is_refused(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Fingerprint(encoder="0" * 64, formats={})
    monkeypatch.setattr("feedline.preprocess.write_shard.fingerprint", lambda outputs: other)
    with pytest.raises(FeedlineError, match="encodes differently"):
        prepare(images, tmp_path / "out")


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


class Streams(Here):
    """One stream of tasks; each but the first is given when the one before was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        def wanted() -> Generator[ShardTask]:
            for task in tasks:
                yield task
                self.seen.append("wanted")
                assert told_of.wait(60)
                told_of.clear()

        def told(outcome: Outcome) -> None:
            self.seen.append("told")
            told_of.set()
            on_outcome(outcome)

        told_of = Event()

        write_shards(order, wanted(), told)
        return EngineRun(master="none")


def test_a_stream_of_tasks_is_told_of_shard_by_shard(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Streams()
    prepare(images, tmp_path / "out", engine=engine, shards=3)
    assert sorted(engine.seen) == ["told"] * 3 + ["wanted"] * 3
    prepare(images, tmp_path / "calm", shards=3)
    assert digests(tmp_path / "calm") == digests(tmp_path / "out")
    engine = Streams()
    other = Fingerprint(encoder="0" * 64, formats={})
    monkeypatch.setattr("feedline.preprocess.write_shard.fingerprint", lambda outputs: other)
    with pytest.raises(FeedlineError, match="encodes differently"):
        prepare(images, tmp_path / "refused", engine=engine)
    assert engine.seen.count("told") == 1
