"""Threads that read ahead: every byte once, bounded, gone when there is nothing to do."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.format.local import PIECE_BYTES
from feedline.pipeline.workers import read_threads
from feedline.pipeline.workers.read_threads import ReadThreads


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(bytes(3 * PIECE_BYTES))
    return path


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feedline-ahead"]


def test_what_is_given_is_read_though_its_file_is_closed_meanwhile(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    preadv = os.preadv

    def seen(descriptor: int, buffers: Any, offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        read.append((offset, count))
        return count

    monkeypatch.setattr(os, "preadv", seen)
    monkeypatch.setattr(read_threads, "IDLE_S", 0.05)
    threads = ReadThreads(4)
    descriptor = os.open(file, os.O_RDONLY)
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    threads.read(descriptor, 5, 2 * PIECE_BYTES)
    threads.read(descriptor, PIECE_BYTES, 10)
    os.close(descriptor)
    until(lambda: not ours())
    assert sorted(read) == [(5, PIECE_BYTES), (PIECE_BYTES, 10), (PIECE_BYTES + 5, PIECE_BYTES)]
    assert len(os.listdir("/proc/self/fd")) == open_before - 1  # noqa: PTH208


def test_no_more_than_so_many_wait_and_work(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that has stopped to answer costs neither all descriptors nor the caller's time."""
    answers, waiting = threading.Event(), threading.Semaphore(0)

    def stalled(descriptor: int, buffers: Any, offset: int) -> int:
        waiting.release()
        answers.wait()
        raise OSError(5, "gone")

    monkeypatch.setattr(os, "preadv", stalled)
    monkeypatch.setattr(read_threads, "IDLE_S", 0.05)
    monkeypatch.setattr(read_threads, "open_files_limit", lambda: 1024)
    threads = ReadThreads(3)
    descriptor, before = os.open(file, os.O_RDONLY), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(600):
        threads.read(descriptor, 0, 10)
    for _ in range(3):
        waiting.acquire()
    assert len(ours()) == 3
    assert len(os.listdir("/proc/self/fd")) < before + 256 + 100  # noqa: PTH208
    answers.set()
    until(lambda: not ours())
    os.close(descriptor)


def test_where_no_thread_can_be_started_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (tmp_path / "a").write_bytes(b"x" * 100)
    threads = ReadThreads()
    with (tmp_path / "a").open("rb") as file:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            threads.read(file.fileno(), 0, 100)
        assert threads._running == 0
        threads.read(file.fileno(), 0, 100)
        assert threads._running == 1
