"""The slow HTTP server: the very bytes, counted, and never sooner than it was told."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from feedline.pipeline.loader import Loader
from tests.lab import tiny_split
from tests.lab.slow_http import served


def get(address: str, headers: Mapping[str, str] | None = None) -> bytes:
    with urlopen(Request(address, headers=dict(headers or {}))) as answer:
        return answer.read()


def epoch(loader: Loader) -> list[list[int]]:
    with closing(loader):
        return [labels_N.tolist() for _, labels_N in loader]


def test_ranges_and_whole_files_come_late_and_share_the_line(tmp_path: Path) -> None:
    data = bytes(range(256)) * 2048
    (tmp_path / "file").write_bytes(data)
    with served(tmp_path, latency_s=0.05, bytes_per_s=8e6) as slow:
        began_s = time.monotonic()
        assert get(f"{slow.address}/file", {"Range": "bytes=1000-2999"}) == data[1000:3000]
        assert time.monotonic() - began_s >= 0.05
        assert slow.sent_bytes == 2000
        began_s = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            assert {*threads.map(get, [f"{slow.address}/file"] * 4)} == {data}
        assert time.monotonic() - began_s >= 4 * len(data) / 8e6
        with pytest.raises(HTTPError, match="404") as refused:
            get(f"{slow.address}/none")
        refused.value.close()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_an_epoch_from_there_is_the_one_from_disk(cache_bytes: int, tmp_path: Path) -> None:
    tiny_split.write(tmp_path / "data" / "train", 48, 3)
    options: dict[str, Any] = {"batch_size": 8, "image_size": 16, "num_workers": 1, "window_shards": 2}
    with served(tmp_path / "data", latency_s=0.002) as slow:
        address = f"{slow.address}/train"
        there = epoch(Loader(address, cache_dir=tmp_path / "cache", cache_bytes=cache_bytes, **options))
        assert slow.sent_bytes > 0
    assert there == epoch(Loader(tmp_path / "data" / "train", **options))
