"""Passes that a diagnostic run begins by itself."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.feed import Feed, Feeds, WatchedLoader
from feedline.profiling.watch.patches import Patches

STARTING_S = 0.05


class Adapter(WatchedLoader):
    kind = "torch"


class SlowStart:
    def __iter__(self) -> Iterator[Any]:
        time.sleep(STARTING_S)
        return iter([[[1, 2]]] * 3)


class NeverDirects:
    directing = False

    def hold(self, frame: Any) -> None: ...

    def take_over(self, feed: Feed, why: str) -> None: ...

    def adopts(self, feed: Feed) -> bool:
        return False

    def next(self, feed: Feed) -> Any: ...


def test_a_pass_begins_before_its_workers_start(tmp_path: Path) -> None:
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    feeds = Feeds(capture, Patches(print))
    feeds.director = NeverDirects()
    feed = feeds.open(Adapter(), SlowStart(), iter)
    assert feed is not None
    first = iter([[[1, 2]]] * 3)
    for _ in range(8):  # two passes end and are begun again underneath
        feed.next(lambda: next(first))
        capture.backward(0.001)
    capture.leave("itself")
    assert [one["start_s"] for one in capture.loop.passes()][1:] == pytest.approx([STARTING_S] * 2, abs=0.04)
