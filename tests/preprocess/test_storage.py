"""Prepare over real servers: sources behind nginx with ranges, sources and outputs on an S3-speaking server."""

import errno
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.format.manifest import read_manifest
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from feedline.preprocess.sources.reading import Where, fetch, grouped, read_all
from feedline.preprocess.store import ObjectStore
from feedline.preprocess.verify import verify
from tests.commands import Commands
from tests.preprocess.making import Here, photo, saved
from tests.preprocess.raw import DEVKIT, TRAIN, VAL, class_tars, write_tar

NGINX = shutil.which("nginx")
CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ root {root}; autoindex on; }} }}
}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for_port(port: int, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server never listened")


@pytest.fixture(scope="module")
def shards(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Original images in tars, as a source for others."""
    out = tmp_path_factory.mktemp("served") / "out"
    config = PrepareConfig(source=str(images), out=str(out), outputs=(parse_output("keep"),), shards=2, max_bad=0.2)
    door.prepare(config, engine=Here())
    return out


@pytest.fixture(scope="module")
def web(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    """An address that serves the shards, and the server's access log."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    port = free_port()
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, root=shards))
    os.chmod(folder, 0o755)  # noqa: PTH101
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "user root;"])
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}", folder / "access.log"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    """Storage options for an S3-speaking server with an empty bucket named `bucket`."""
    pytest.importorskip("moto.server")
    import s3fs

    port = free_port()
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    program = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '%d'])" % port  # noqa: UP031
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdout=log, stderr=log)
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    try:
        wait_for_port(port, process)
        s3fs.S3FileSystem(**options).mkdir("bucket")
        yield options
    finally:
        process.terminate()
        process.wait()
        log.close()


def shard_hashes(out: Path) -> list[str]:
    return [shard.sha256 for shard in read_manifest(out / "train").shards]


def prepare(source: str, out: str, **said: Any) -> dict[str, Any]:
    config = PrepareConfig(source=source, out=out, shards=3, outputs=(parse_output("48:jpeg"),), **said)
    return door.prepare(config, engine=Here())


def test_a_source_on_the_web_is_read_by_ranges(shards: Path, web: tuple[str, Path], tmp_path: Path) -> None:
    address, log = web
    prepare(f"{address}/train/train-{{000000..000001}}.tar", str(tmp_path / "web"))
    prepare(str(shards / "train"), str(tmp_path / "local"))
    assert shard_hashes(tmp_path / "web") == shard_hashes(tmp_path / "local")
    requests = log.read_text().splitlines()
    assert any(" 206 " in line for line in requests)
    assert len([line for line in requests if " 206 " in line]) < 51  # neighbours share a request
    assert verify(str(tmp_path / "web"), full=True)["ok"]


def test_a_server_without_ranges_is_said(shards: Path, tmp_path: Path) -> None:
    """It answers with whole files, of which every piece would be taken for a damaged image."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(shards))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(FeedlineError, match="range"):
            prepare(f"http://127.0.0.1:{server.server_port}/train", str(tmp_path / "out"))
        server.shutdown()


def test_a_web_source_that_vanishes_is_one_line(web: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = web
    places = [Where(f"{address}/train/nothing.tar", 0, 100)]
    with pytest.raises(FeedlineError, match="cannot be read"):
        list(read_all(places, {}, {}))
    with pytest.raises(FeedlineError):
        prepare(f"{address}/train/nothing.tar", str(tmp_path / "out"))


def test_s3_takes_the_output_and_gives_it_back(shards: Path, s3: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    prepare(str(shards / "train"), "s3://bucket/out", storage_options=s3)
    names = [path.rpartition("/")[2] for path in s3fs.S3FileSystem(**s3).find("bucket/out")]
    prepare(str(shards / "train"), str(tmp_path / "local"))
    expected = [f"train-{n:06d}-{sha[:16]}.tar" for n, sha in enumerate(shard_hashes(tmp_path / "local"))]
    assert sorted(names) == sorted([*expected, "manifest.json", "index.parquet", "report.json"])
    assert verify("s3://bucket/out", full=True, storage_options=s3)["ok"]
    assert prepare(str(shards / "train"), "s3://bucket/out", storage_options=s3)["already_complete"]


def test_the_official_archives_are_read_from_a_store(s3: dict[str, Any], tiny_ilsvrc: Path, tmp_path: Path) -> None:
    import s3fs

    fs = s3fs.S3FileSystem(**s3)
    for name in (TRAIN, VAL, DEVKIT):
        fs.put_file(str(tiny_ilsvrc / name), f"bucket/official/{name}")
    fs.put_file(str(tiny_ilsvrc / TRAIN), "bucket/renamed/mine.tar")
    for source in ("", f"/{VAL}"):
        remote, local = (tmp_path / f"{where}{len(source)}" for where in ("remote", "local"))
        prepare(f"s3://bucket/official{source}", str(remote), storage_options=s3)
        prepare(f"{tiny_ilsvrc}{source}", str(local))
        for split in ("val",) if source else ("train", "val"):
            one, other = read_manifest(remote / split), read_manifest(local / split)
            assert (one.shards, one.classes) == (other.shards, other.classes)
    with pytest.raises(FeedlineError, match=r"mine\.tar holds class tars \(n.*: name it ILSVRC2012_img_train\.tar"):
        prepare("s3://bucket/renamed", str(tmp_path / "renamed"), storage_options=s3)


def test_class_tars_are_read_from_a_store(s3: dict[str, Any], tiny_ilsvrc: Path, tmp_path: Path) -> None:
    import s3fs

    fs = s3fs.S3FileSystem(**s3)
    for tar in class_tars(tiny_ilsvrc, tmp_path / "tars").iterdir():
        fs.put_file(str(tar), f"bucket/unpacked/train/{tar.name}")
    prepare(str(tiny_ilsvrc), str(tmp_path / "local"))
    remote = tmp_path / "alone"
    prepare("s3://bucket/unpacked", str(remote), storage_options=s3)
    assert read_manifest(remote / "train").shards == read_manifest(tmp_path / "local" / "train").shards
    for name in (VAL, DEVKIT):
        fs.put_file(str(tiny_ilsvrc / name), f"bucket/unpacked/{name}")
    prepare("s3://bucket/unpacked", str(tmp_path / "whole"), storage_options=s3)
    for split in ("train", "val"):
        one, other = read_manifest(tmp_path / "whole" / split), read_manifest(tmp_path / "local" / split)
        assert (one.shards, one.classes) == (other.shards, other.classes)


def test_s3_shows_what_other_processes_wrote_there(s3: dict[str, Any]) -> None:
    """Executors upload; the driver has listed the folders before."""
    driver = ObjectStore("s3://bucket/seen", s3)
    driver.write("train/first", b"1")
    assert driver.list("train") == ["first"]
    script = "import json, sys; from feedline.preprocess.store import ObjectStore; " + (
        "ObjectStore('s3://bucket/seen', json.loads(sys.argv[1])).write('train/second', b'22')"
    )
    subprocess.run([sys.executable, "-c", script, json.dumps(s3)], check=True)
    assert driver.size("train/second") == 2
    assert driver.list("train") == ["first", "second"]
    subprocess.run([sys.executable, "-c", script.replace("second", "third"), json.dumps(s3)], check=True)
    assert driver.read("train/third") == b"22"


class BreaksOff(io.BytesIO):
    """A file whose disk fails after some parts."""

    def __init__(self, parts: int) -> None:
        super().__init__(bytes(parts << 22))
        self.parts = parts

    def read(self, size: int | None = -1) -> bytes:
        self.parts -= 1
        if self.parts < 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(size)


@pytest.mark.parametrize("parts", [1, 10])
def test_a_shard_that_breaks_off_on_its_way_becomes_no_object(s3: dict[str, Any], parts: int) -> None:
    import s3fs

    store = ObjectStore(f"s3://bucket/broken{parts}", s3)
    with pytest.raises(OSError, match="Input/output error"):
        store.publish(BreaksOff(parts), "train", "train-000000.tar", "0" * 64)
    assert store.list("train") == []
    assert not s3fs.S3FileSystem(**s3).list_multipart_uploads("bucket")


def test_an_empty_image_in_a_remote_tar_goes_to_quarantine(s3: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    members = [(f"{n}.{end}", data) for n in range(9) for end, data in (("jpg", saved(photo(n))), ("cls", b"0"))]
    far = [("pad", bytes(200_000)), ("9.jpg", b""), ("9.cls", b"0")]  # too far away to share a request
    local = write_tar(tmp_path / "train.tar", [*members, *far])
    s3fs.S3FileSystem(**s3).put_file(str(local), "bucket/empty/train.tar")
    said = prepare("s3://bucket/empty", str(tmp_path / "out"), storage_options=s3, max_bad=0.2)
    assert said["reasons"] == {"empty": 1}
    assert said["output_samples"] == 9


def test_s3_is_a_source_too(s3: dict[str, Any], shards: Path, tmp_path: Path) -> None:
    import s3fs

    fs = s3fs.S3FileSystem(**s3)
    for path in sorted((shards / "train").glob("*.tar")):
        fs.put_file(str(path), f"bucket/raw/{path.name}")
    prepare(str(shards / "train"), str(tmp_path / "local"))
    for number, source in enumerate(("s3://bucket/raw", "s3://bucket/raw/train-{000000..000001}.tar")):
        prepare(source, str(tmp_path / f"out{number}"), storage_options=s3)
        assert shard_hashes(tmp_path / f"out{number}") == shard_hashes(tmp_path / "local")


def test_a_store_that_is_not_there_is_one_line(s3: dict[str, Any], shards: Path, tmp_path: Path) -> None:
    gone = s3 | {"endpoint_url": "http://127.0.0.1:1", "config_kwargs": {"retries": {"max_attempts": 0}}}
    for source, out in (("s3://bucket/raw", str(tmp_path / "out")), (str(shards / "train"), "s3://bucket/x")):
        with pytest.raises(UsageError, match=r"s3://bucket/.* cannot be (read|listed|reached|opened)") as caught:
            prepare(source, out, storage_options=gone)
        assert "\n" not in str(caught.value)


def test_an_output_on_a_server_that_is_not_there_is_one_line(shards: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be reached: Cannot connect"):
        prepare(str(shards / "train"), "http://127.0.0.1:1/out")


def test_from_the_web_to_s3_each_end_has_its_own_options(
    web: tuple[str, Path], s3: dict[str, Any], shards: Path, tmp_path: Path
) -> None:
    prepare(f"{web[0]}/train", "s3://bucket/web", storage_options=s3)
    assert verify("s3://bucket/web", full=True, storage_options=s3)["ok"]
    again = {"source_options": {"storage_options": s3}}
    prepare("s3://bucket/web", str(tmp_path / "out"), **again)
    assert verify(str(tmp_path / "out"), full=True)["ok"]


def test_mended_files_are_read_from_the_store(s3: dict[str, Any], images: Path) -> None:
    import s3fs

    out = "s3://bucket/mended"
    bad = prepare(str(images), out, storage_options=s3, max_bad=0.2)["quarantined"]
    fs = s3fs.S3FileSystem(**s3)
    for name in fs.glob("bucket/mended/quarantine/*.bin"):
        fs.pipe_file(name, saved(photo(3)))
    report = prepare(str(images), out, storage_options=s3, max_bad=0.2, retry_quarantine=True)
    assert bad and report["quarantined"] == 0
    assert verify(out, full=True, storage_options=s3)["ok"]


# --- ranges -------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 300_000), st.integers(0, 5_000)), min_size=1),
)
def test_coalesced_reads_give_the_same_bytes(wanted: list[tuple[int, int, int]]) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    contents = [hashlib.sha256(bytes([n])).digest() * 10_000 for n in range(2)]
    for n, content in enumerate(contents):
        memory.pipe_file(f"/ranges/{n}", content)
    places = [Where(f"memory:///ranges/{n}", offset, length) for n, offset, length in wanted]
    found = list(read_all(places, {}, {}))
    assert found == [contents[n][offset : offset + length] for n, offset, length in wanted]
    whole, asked = memory.cat_ranges, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            memory, "cat_ranges", lambda paths, *given, **how: asked.append(len(paths)) or whole(paths, *given, **how)
        )
        for group in grouped(places):
            asked.clear()
            fetch(group, {})
            assert sum(asked) <= len(set(group))


def test_a_remote_file_that_is_too_short_is_noticed() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/short", b"x" * 100)
    with pytest.raises(FeedlineError):
        list(read_all([Where("memory:///short", 50, 100)], {}, {}))


def test_no_bytes_are_asked_for_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a web server, [100, 100) would be asked for as bytes=100-99."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/empty", b"x" * 100)
    asked: list[int] = []
    whole = memory.cat_ranges

    def cat_ranges(paths: Any, starts: list[int], ends: list[int], **how: Any) -> Any:
        asked.extend(end - start for start, end in zip(starts, ends, strict=True))
        return whole(paths, starts, ends, **how)

    monkeypatch.setattr(type(memory), "cat_ranges", lambda _, *given, **how: cat_ranges(*given, **how))
    places = [Where("memory:///empty", 100, 0), Where("memory:///empty", 7, 3)]
    assert list(read_all(places, {}, {})) == [b"", b"xxx"]
    assert list(read_all(places[:1], {}, {})) == [b""]
    assert all(length > 0 for length in asked)


def test_samples_stay_in_order_over_many_groups() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/order", bytes(range(250)) * 4)
    places = [Where("memory:///order", (7 * n) % 250, 1) for n in range(600)]
    assert [data[0] for data in read_all(places, {}, {})] == [(7 * n) % 250 for n in range(600)]


class Elsewhere(SimpleHTTPRequestHandler):
    """Answers whatever it is asked as `server.answer` says: a status, or an address to go to."""

    server: Any

    def do_GET(self) -> None:
        answer = self.server.answer
        self.send_response(302 if isinstance(answer, str) else answer)
        if isinstance(answer, str):
            self.send_header("Location", answer)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("answer", ["file:///etc/passwd", "http://[", 500, 403])
def test_a_server_that_answers_with_something_else_is_one_line(feedline: Commands, answer: str | int) -> None:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    server.answer = answer
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = feedline("verify", f"http://127.0.0.1:{server.server_address[1]}/out")
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("feedline: http://127.0.0.1"), done.stderr
    assert done.stderr.count("\n") == 1
