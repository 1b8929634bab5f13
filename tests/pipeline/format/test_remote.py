"""Shards behind HTTP servers that are fast, slow, or drop connections; and the cache that all workers share."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline import split as split_module
from feedline.pipeline.base.errors import DatasetError, SampleError
from feedline.pipeline.format import remote as storage
from feedline.pipeline.format.manifest import ShardInfo, read_manifest
from feedline.pipeline.format.remote import Prefetcher, ShardCache, locked
from feedline.pipeline.loader import Loader

MakeSplit = Callable[..., Path]
SMALL: dict[str, Any] = {"batch_size": 8, "image_size": 16, "num_workers": 2, "policy": "pad", "rank": 0,
                         "world_size": 1}  # fmt: skip


class Server(ThreadingHTTPServer):
    """Serves a folder on the loopback interface, with range requests and with the failures a test asks for."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.requests: list[tuple[str, str]] = []
        self.drop_every = 0
        self.silent_s = 0.0
        self.ranges = True
        super().__init__(("127.0.0.1", 0), lambda *a: Handler(*a, directory=str(folder)))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away is part of these tests


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append((self.path, wanted))
        if self.server.silent_s:
            time.sleep(self.server.silent_s)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data, status = path.read_bytes(), 200
        whole = len(data)
        if wanted and self.server.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            data, status = data[int(first) : int(last) + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{whole}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.server.drop_every and len(self.server.requests) % self.server.drop_every == 0:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            self.connection.close()
            return None
        self.wfile.write(data)
        return None


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    servers: list[Server] = []

    def start(folder: Path) -> Server:
        servers.append(Server(folder))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def labels(loader: Loader) -> list[int]:
    return [int(label) for _, labels_N in loader for label in labels_N if label >= 0]


def test_an_epoch_over_http_is_the_same_as_from_disk(split: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(split.parent)
    options = SMALL | {"cache_dir": tmp_path / "cache", "window_shards": 2}
    remote = Loader(f"{server.address}/train", **options)
    assert sorted(labels(remote)) == list(range(60))
    remote.set_epoch(0)
    assert labels(remote) == labels(Loader(split, **SMALL | {"window_shards": 2}))
    remote.close()


def test_the_first_batch_comes_by_ranges_and_later_epochs_from_the_cache(
    split: Path, serve: Any, tmp_path: Path
) -> None:
    server = serve(split.parent)
    loader = Loader(f"{server.address}/train", **SMALL | {"cache_dir": tmp_path, "num_workers": 0})
    labels(loader)
    assert any(wanted for path, wanted in server.requests if path.endswith(".tar"))
    cached = wait_for(lambda: len(list(tmp_path.glob("*/train-*.tar"))) == 3)
    assert cached, "the prefetcher got all of them"
    before = len(server.requests)
    labels(loader)
    assert len(server.requests) == before


def test_without_a_cache_everything_is_a_range_request(split: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(split.parent)
    loader = Loader(f"{server.address}/train", **SMALL | {"cache_dir": tmp_path, "cache_bytes": 0, "num_workers": 1})
    assert len(labels(loader)) == 60
    assert not list(tmp_path.glob("*/*.tar"))
    assert sum(bool(wanted) for path, wanted in server.requests if path.endswith(".tar")) == 60


def test_dropped_connections_are_tried_again(split: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(split.parent)
    server.drop_every = 7
    loader = Loader(f"{server.address}/train", **SMALL | {"cache_dir": tmp_path, "num_workers": 1})
    assert len(labels(loader)) == 60


def test_a_server_without_ranges_still_works(split: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(split.parent)
    server.ranges = False
    assert len(labels(Loader(f"{server.address}/train", **SMALL | {"cache_dir": tmp_path, "num_workers": 0}))) == 60


def test_a_silent_server_is_one_line_and_no_hang(
    split: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "SILENCE_S", 0.2)
    monkeypatch.setattr(storage, "FIRST_PAUSE_S", 0.01)
    server = serve(split.parent)
    loader = Loader(f"{server.address}/train", **SMALL | {"cache_dir": tmp_path, "num_workers": 0, "cache_bytes": 0})
    server.silent_s = 1.0
    with pytest.raises(DatasetError, match=r"sample 's000\d\d': http://.*tar failed 4 times"):
        labels(loader)
    with pytest.raises(DatasetError, match=r"failed 4 times"):
        Loader(f"{server.address}/train", cache_dir=tmp_path)


def test_a_missing_shard_follows_the_policy(make_split: MakeSplit, serve: Any, tmp_path: Path) -> None:
    folder = make_split(name="gone")
    (folder / "train-000001.tar").unlink()
    address = f"{serve(folder.parent).address}/gone"
    options = SMALL | {"cache_dir": tmp_path / "cache"}
    with pytest.raises(
        DatasetError, match=r"train-000001.tar is not there .*: look at the address, or copy it there again"
    ):
        labels(Loader(address, **options))
    assert len(labels(Loader(address, **options | {"on_bad": "skip"}))) == 40
    with pytest.raises(DatasetError, match=r"manifest.json is not there"):
        Loader(f"{address}er", **options)


def test_what_another_host_is_writing_in_the_shared_cache_stays(split: Path, serve: Any, tmp_path: Path) -> None:
    """Its process is none of ours, so nothing here can tell whether it is alive."""
    address, options = f"{serve(split.parent).address}/train", SMALL | {"cache_dir": tmp_path}
    [index] = [Loader(address, **options).split.folder / "index.parquet"]
    dead = subprocess.Popen(["true"])
    dead.wait()
    theirs = index.with_name(f".{index.name}.0123abcd.{dead.pid}.tmp")
    theirs.touch()
    index.unlink()
    Loader(address, **options)
    assert theirs.exists() and index.exists()


# --- the cache ----------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
    return condition()


def shard(number: int, size: int = 1000) -> ShardInfo:
    sha256 = hashlib.sha256(bytes([number]) * size).hexdigest()
    return ShardInfo(name=f"train-{number:06d}.tar", samples=1, planned_samples=1, bytes=size, sha256=sha256)


def write(shard: ShardInfo, path: Path) -> None:
    path.write_bytes(bytes([int(shard.name[6:12])]) * shard.bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cache" / "one").mkdir(parents=True)
    return tmp_path / "cache" / "one"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.tar"))


def test_the_cache_never_outgrows_its_bound_and_drops_what_was_used_longest_ago(folder: Path) -> None:
    most: list[int] = []

    def fetch(shard: ShardInfo, path: Path) -> None:
        write(shard, path)
        most.append(sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".tar", ".part")))

    cache = ShardCache(folder, 3500, fetch)
    for number in (0, 1, 2):
        cache.ensure(shard(number))
    assert names(folder) == [shard(n).name for n in (0, 1, 2)]
    cache.ensure(shard(0))
    cache.ensure(shard(3))
    assert names(folder) == [shard(n).name for n in (0, 2, 3)]
    assert max(most) <= 3500
    cache.ensure(shard(4, size=4000))
    assert names(folder) == [shard(n).name for n in (0, 2, 3)], "it is larger than the whole cache"


def test_what_others_keep_beside_the_cache_is_theirs(folder: Path) -> None:
    """`cache_dir` may be any folder: archives in it, older than all else, were removed to make room."""
    theirs = folder.parent / "imagenet" / "ILSVRC2012_img_train.tar"
    theirs.parent.mkdir()
    theirs.write_bytes(bytes(5000))
    os.utime(theirs, (1, 1))
    (theirs.parent / ".other.lock").write_text("held by another program")
    another = folder.parent / ("0" * 20)  # a split that was cached before
    another.mkdir()
    (another / shard(9).name).write_bytes(bytes(1000))
    cache = ShardCache(folder, 1500, write)
    cache.ensure(shard(0))
    assert names(folder) == [shard(0).name] and not names(another)
    assert theirs.stat().st_size == 5000
    assert (theirs.parent / ".other.lock").read_text() == "held by another program"


def test_a_shard_that_lost_its_end_is_fetched_anew(folder: Path) -> None:
    cache = ShardCache(folder, 9999, write)
    cache.ensure(shard(1))
    path = folder / shard(1).name
    os.truncate(path, 400)
    cache.ensure(shard(1))
    assert path.read_bytes() == bytes([1]) * 1000


def test_a_shard_s_bytes_are_on_the_disk_before_it_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, (folder / shard(1).name).exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    ShardCache(folder, 9999, write).ensure(shard(1))
    assert synced == [(f".{shard(1).name}.part", False)]


def test_what_is_being_fetched_counts_too(folder: Path) -> None:
    fetched: list[str] = []

    def fetch(shard_: ShardInfo, path: Path) -> None:
        write(shard_, path)
        fetched.append(shard_.name)
        if len(fetched) == 1:
            cache.ensure(shard(1, size=1500))
            cache.ensure(shard(2))

    cache = ShardCache(folder, 2400, fetch)
    cache.ensure(shard(0))
    assert fetched == names(folder) == [shard(n).name for n in (0, 2)]


def test_a_fetch_that_fails_leaves_nothing(folder: Path) -> None:
    def fetch(shard: ShardInfo, path: Path) -> None:
        path.write_bytes(b"half")
        raise DatasetError("the network is gone")

    cache = ShardCache(folder, 9999, fetch)
    with pytest.raises(DatasetError):
        cache.ensure(shard(0))
    assert not [path for path in folder.iterdir() if path.suffix != ".lock"]


def test_one_process_fetches_and_the_others_go_on(folder: Path) -> None:
    fetched: list[str] = []
    cache = ShardCache(folder, 9999, lambda shard, _: fetched.append(shard.name))
    with locked(folder / f".{shard(0).name}.lock"):
        cache.ensure(shard(0))
    assert not fetched


def test_a_fetcher_killed_in_the_middle_is_cleaned_up_after(folder: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from feedline.pipeline.format.manifest import ShardInfo
from feedline.pipeline.format.remote import ShardCache
folder = Path({str(folder)!r})
def fetch(shard, path):
    path.write_bytes(b"x" * 400)
    print("fetching", flush=True)
    time.sleep(60)
shard = ShardInfo(name="train-000009.tar", samples=1, planned_samples=1, bytes=1900, sha256="")
ShardCache(folder, 2000, fetch).ensure(shard)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "fetching\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    cache = ShardCache(folder, 2000, write)
    cache.ensure(shard(1))
    cache.ensure(shard(2))
    assert names(folder) == [shard(1).name, shard(2).name], "what the dead one had reserved is free again"
    assert not list(folder.glob(".*.part"))


def test_what_a_dead_fetcher_of_the_same_shard_had_reserved_is_free_again(folder: Path) -> None:
    (folder / f".{shard(9).name}.lock").write_text("1900")
    ShardCache(folder, 2000, write).ensure(shard(9, size=1900))
    assert names(folder) == [shard(9).name]


def test_the_prefetcher_stays_a_few_ahead(folder: Path) -> None:
    cache = ShardCache(folder, 99999, write)
    prefetcher = Prefetcher(cache, [shard(n) for n in range(8)], [n * 100 for n in range(8)], ahead=2)
    prefetcher.reached(0)
    assert wait_for(lambda: len(names(folder)) == 3)
    for position in range(0, 99, 10):  # batches of the same shard
        prefetcher.reached(position)
    prefetcher.reached(350)
    assert wait_for(lambda: len(names(folder)) >= 6)
    time.sleep(0.2)
    assert len(names(folder)) == 6
    prefetcher.reached(700)
    assert wait_for(lambda: len(names(folder)) == 8)
    prefetcher.close()


def test_nobody_waits_at_the_end_for_shards_that_were_to_be_fetched(folder: Path) -> None:
    script = f"""
import threading, time
from pathlib import Path
from feedline.pipeline.format.manifest import ShardInfo
from feedline.pipeline.format.remote import Prefetcher, ShardCache
begun = threading.Semaphore(0)
def fetch(shard, path):
    begun.release()
    time.sleep(30)
shards = [ShardInfo(name=f"train-{{n}}.tar", samples=1, planned_samples=1, bytes=1, sha256="") for n in range(8)]
Prefetcher(ShardCache(Path({str(folder)!r}), 9999, fetch), shards, range(8), ahead=8).reached(0)
begun.acquire()
begun.acquire()
raise ValueError("mine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert "ValueError: mine" in done.stderr


def test_a_shard_with_other_bytes_than_the_manifest_says_is_not_kept(split: Path, serve: Any, tmp_path: Path) -> None:
    remote = storage.Remote(f"{serve(split).address}", {})
    with pytest.raises(DatasetError, match=r"are not the 10 that were written"):
        remote.download(shard(0, size=10), tmp_path / "x")


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("name", ["manifest.json", "index.parquet"])
def test_a_manifest_or_index_that_has_no_end_is_one_line(
    make_split: MakeSplit, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ranges: bool
) -> None:
    folder = make_split(name="vast")
    monkeypatch.setattr(split_module, "MANIFEST_BYTES", 2 << 20)
    with (folder / name).open("ab") as file:
        file.truncate(3 << 20)
    server = serve(folder.parent)
    server.ranges = ranges
    with pytest.raises(DatasetError, match=rf"/vast/{name} is larger than \d MiB"):
        Loader(f"{server.address}/vast", **SMALL | {"cache_dir": tmp_path / "cache"})
    assert not list((tmp_path / "cache").glob("*/*"))


@pytest.mark.parametrize("address", ["http://", "s3:///"])
def test_an_address_without_a_folder_is_one_line(address: str) -> None:
    with pytest.raises(DatasetError, match="names no folder"):
        Loader(address)


def test_a_disk_is_not_filled_to_the_last_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have left of it bounds the cache, too; a cached shard gives way, and nothing of somebody else's."""
    free = [2100]
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(20_000, 0, free[0]))
    cache = ShardCache(folder, 1 << 30, write)
    cache.ensure(shard(0))  # a twentieth of the disk stays free
    assert names(folder) == [shard(0).name]
    free[0] = 1100
    cache.ensure(shard(1))
    assert names(folder) == [shard(1).name]
    free[0] = 0
    with pytest.raises(DatasetError, match=r"no room in .* \(0.0 GB free\): set cache_dir or FEEDLINE_CACHE"):
        cache.ensure(shard(2))
    assert names(folder) == [shard(1).name]


def test_where_no_thread_can_be_started_the_epoch_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    cache = ShardCache(folder, 1 << 30, lambda one, path: (write(one, path), fetched.append(1))[0])
    prefetcher = Prefetcher(cache, [shard(0), shard(1)], [0, 1], ahead=2)
    with monkeypatch.context() as patch:
        patch.setattr(storage.threading.Thread, "start", no_thread)
        prefetcher.reached(0)
    prefetcher.reached(1)
    assert wait_for(lambda: len(fetched) == 2)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_shard_that_cannot_be_fetched_ahead_is_said(folder: Path) -> None:
    def fail(one: ShardInfo, path: Path) -> None:
        raise DatasetError("the server is on fire")

    prefetcher = Prefetcher(ShardCache(folder, 1 << 30, fail), [shard(0)], [0], ahead=1)
    prefetcher.reached(0)
    assert wait_for(lambda: prefetcher.trouble == "not fetched ahead: the server is on fire")


def test_a_cache_that_is_whole_need_not_be_written(split: Path, serve: Any, tmp_path: Path) -> None:
    """It may be somebody else's."""
    address, options = serve(split).address, {**SMALL, "num_workers": 0, "cache_dir": tmp_path / "cache"}
    list(Loader(address, **options))
    before = {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("manifest.json")}
    list(Loader(address, **options))
    assert {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("manifest.json")} == before


@pytest.mark.parametrize("cache_bytes", [0, 20_000])
def test_a_split_that_was_prepared_anew_at_its_address_is_not_read_by_its_old_index(
    make_split: MakeSplit, serve: Any, tmp_path: Path, cache_bytes: int
) -> None:
    split = make_split(codec="raw")
    options = SMALL | {"cache_dir": tmp_path / "cache", "cache_bytes": cache_bytes}
    loader = Loader(f"{serve(split.parent).address}/train", **options)
    assert sorted(labels(loader)) == list(range(60))
    manifest = split / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DatasetError, match="was prepared anew or taken away meanwhile: make a new Loader"):
        labels(loader)
    loader.close()


def test_what_comes_by_ranges_is_checked_each_time(make_split: MakeSplit, serve: Any, tmp_path: Path) -> None:
    split = make_split(codec="raw")
    loader = Loader(
        f"{serve(split.parent).address}/train",
        **SMALL | {"cache_dir": tmp_path / "cache", "cache_bytes": 0, "num_workers": 0},
    )
    labels(loader)
    shard = split / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    data[2000:2400] = bytes(400)
    shard.write_bytes(data)
    with pytest.raises(SampleError, match="wrong CRC"):
        labels(loader)


def test_a_shard_that_is_damaged_in_the_cache_is_read_from_where_it_came(
    split: Path, serve: Any, tmp_path: Path
) -> None:
    server = serve(split.parent)
    address, options = f"{server.address}/train", SMALL | {"cache_dir": tmp_path, "num_workers": 1}
    loader = Loader(address, **options)
    labels(loader)
    assert wait_for(lambda: len(list(tmp_path.glob("*/train-*.tar"))) == 3)
    loader.close()
    shard = sorted(tmp_path.glob("*/train-*.tar"))[1]
    data = bytearray(shard.read_bytes())
    data[3000:6000] = bytes(3000)
    shard.write_bytes(data)
    again = Loader(address, **options)
    assert sorted(labels(again)) == list(range(60))
    assert not shard.exists() or shard.read_bytes() != bytes(data)
    again.close()


@pytest.mark.parametrize("name", ["manifest.json", "index.parquet"])
def test_what_describes_a_split_is_fetched_again_where_it_is_damaged_in_the_cache(
    split: Path, serve: Any, tmp_path: Path, name: str
) -> None:
    index = hashlib.sha256((split / "index.parquet").read_bytes()).hexdigest()
    (split / "manifest.json").write_text(replace(read_manifest(split), index_sha256=index).to_json())
    address, options = f"{serve(split.parent).address}/train", SMALL | {"cache_dir": tmp_path, "num_workers": 0}
    Loader(address, **options).close()
    (kept,) = tmp_path.glob(f"*/{name}")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9] + bytes(9))
    again = Loader(address, **options)
    assert sorted(labels(again)) == list(range(60)) and kept.read_bytes() == whole
    again.close()
