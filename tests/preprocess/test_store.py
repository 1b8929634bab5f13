"""Where files go: a disk that is full, and an object store (a real server of each kind: test_storage)."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from feedline.pipeline.base.errors import DatasetError, FeedlineError
from feedline.pipeline.format.manifest import read_manifest
from feedline.pipeline.format.remote import Remote
from feedline.pipeline.split import fetch_metadata
from feedline.preprocess.store import WORK, LocalStore, ObjectStore
from feedline.preprocess.verify import verify
from tests.preprocess.making import (
    Killed,
    dies_after,
    digests,
    photo,
    prepare,
    saved,
)


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
    assert {problem["what"] for problem in problems} == {"a file that the manifest does not name: move it away"}
    assert prepare(images, out, seed=1, overwrite=True)["resumed_samples"] == 27
    prepare(images, fresh, seed=1)
    assert objects(out) == objects(fresh)
    assert verify(out, full=True)["ok"]


def test_a_new_index_beside_the_old_manifest_is_refused(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill between the two leaves in an object store, until the rerun."""
    out = f"memory://{tmp_path.name}"
    prepare(images, out)
    whole = ObjectStore.write

    def dies(self: ObjectStore, name: str, data: bytes) -> None:
        if name.endswith("manifest.json"):
            raise Killed
        whole(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ObjectStore, "write", dies)
        prepare(images, out, seed=1, overwrite=True)
    with pytest.raises(DatasetError, match=r"index\.parquet is not the index that .* names"):
        fetch_metadata(Remote(f"{out}/train", {}), tmp_path / "cache")
    assert "not the index that the manifest names" in str(verify(out)["problems"])
    prepare(images, out, seed=1, overwrite=True)
    assert verify(out, full=True)["ok"]


def test_overwriting_in_an_object_store_takes_nothing_from_a_retry_that_died(images: Path, tmp_path: Path) -> None:
    import fsspec

    out, memory = f"memory://{tmp_path.name}", fsspec.filesystem("memory")
    assert prepare(images, out, shards=1)["quarantined"] == 2
    for name in memory.glob(f"{out}/quarantine/*.bin"):
        memory.pipe_file(name, saved(photo(3)))
    with pytest.raises(Killed):
        prepare(images, out, shards=1, retry_quarantine=True, engine=dies_after(1))
    assert prepare(images, out, shards=1, overwrite=True)["quarantined"] == 2
    assert verify(out, full=True)["ok"]


class SlowDown(Exception):
    """As a transport's own errors are: none of the file system's."""


def slowed(*_: Any, **__: Any) -> Any:
    raise SlowDown("reduce your rate")


ASKED: dict[str, Callable[[ObjectStore], Any]] = {
    "cat_file": lambda store: store.read("x"),
    "info": lambda store: store.size("x"),
    "ls": lambda store: store.list("x"),
    "pipe_file": lambda store: store.write("x", b""),
    "open": lambda store: store.publish(io.BytesIO(b"x"), "train", "train-000000.tar", "0" * 64),
    "rm_file": lambda store: store.delete("x"),
    "rm": lambda store: store.delete_tree("x"),
}
"""A transport's calls, and what makes a store do each."""


@pytest.mark.parametrize("call", ASKED)
def test_whatever_a_transport_raises_names_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = ObjectStore(f"memory://{tmp_path.name}")
    monkeypatch.setattr(MemoryFileSystem, call, slowed)
    with pytest.raises(OSError, match="SlowDown: reduce your rate") as caught:
        ASKED[call](store)
    assert caught.value.filename.startswith(store.address)


def test_a_store_that_gives_way_at_the_end_is_one_line(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MemoryFileSystem.pipe_file

    def gives_way(self: MemoryFileSystem, path: str, *more: Any, **options: Any) -> Any:
        return slowed() if path.endswith("manifest.json") else whole(self, path, *more, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", gives_way)
    with pytest.raises(FeedlineError, match="SlowDown: reduce your rate"):
        prepare(images, f"memory://{tmp_path.name}")
