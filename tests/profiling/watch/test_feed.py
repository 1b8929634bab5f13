"""Passes that a diagnostic run begins by itself."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.record.journal import Journal, StudyConfig
from feedline.profiling.watch import stop
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


def passes(feeds: Feeds, loader: Any, batches: int, *, trains: bool = True) -> None:
    """Over a loader to its end."""
    feed = feeds.open(Adapter(), loader, iter)
    assert feed is not None
    made = iter([[[1, 2]]] * batches)
    with pytest.raises(StopIteration):
        while True:
            feed.next(lambda: next(made))
            if trains:
                feeds.capture.backward(0.001)


def test_a_run_without_windows_is_watched_on_behind_its_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "HELD_S", 0.0)
    capture = Capture(Journal(tmp_path), StudyConfig())
    feeds, loader = Feeds(capture, Patches(print)), SlowStart()
    for _ in range(3):
        passes(feeds, loader, 4)
    assert (capture.active, capture.loop.train_steps) == (True, 12)
    capture.leave("itself")


def test_an_evaluation_between_two_epochs_says_nothing_of_how_steady_the_training_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, added = Capture(Journal(tmp_path), StudyConfig(steady=False)), list[float]()
    monkeypatch.setattr(capture.stop.steadiness, "add", lambda _now, _samples, seconds: added.append(seconds))
    feeds = Feeds(capture, Patches(print))
    training = SlowStart()
    passes(feeds, training, 3)
    passes(feeds, SlowStart(), 3, trains=False)
    passes(feeds, training, 3)
    capture.leave("itself")
    assert len(added) == 6


def test_a_loop_of_passes_of_one_batch_is_watched_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "LONGEST_S", 0.0)
    capture = Capture(Journal(tmp_path), StudyConfig())
    feeds, loader = Feeds(capture, Patches(print)), SlowStart()
    for _ in range(5):
        feed = feeds.open(Adapter(), loader, iter)
        if feed is not None:
            feed.next(lambda: [[1, 2]])
            capture.backward(0.001)
    assert not capture.active


class Once:
    """A stream: what was drawn is gone."""

    def __init__(self) -> None:
        self.stream = iter([[[1, 2]]] * 3)

    def __iter__(self) -> Iterator[Any]:
        return self.stream


def test_a_stream_that_a_thread_draws_to_its_end_has_ended(tmp_path: Path) -> None:
    capture, loader = Capture(Journal(tmp_path), StudyConfig(steady=False)), Once()
    capture.trainer = -1  # another thread
    feeds = Feeds(capture, Patches(print))
    feeds.director = NeverDirects()
    feed = feeds.open(Adapter(), loader, iter)
    assert feed is not None
    capture.loop.trained.add(0)
    for _ in range(3):
        feed.next(lambda: next(loader.stream))
    with pytest.raises(StopIteration):
        feed.next(lambda: next(loader.stream))
    capture.leave("itself")


def test_what_works_for_us_in_one_thread_does_not_hide_the_loader_of_another(tmp_path: Path) -> None:
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    feeds, working, over = Feeds(capture, Patches(print)), threading.Event(), threading.Event()

    def work() -> None:
        with capture.unwatched():
            working.set()
            over.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    seen = feeds.open(Adapter(), SlowStart(), iter)
    over.set()
    thread.join()
    capture.leave("itself")
    assert seen is not None


def test_two_threads_that_begin_together_are_looked_at_by_one_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capture, "_see_rank", lambda _: time.sleep(0.2))
    capture = Capture(Journal(tmp_path), StudyConfig(steady=False))
    feeds, before = Feeds(capture, Patches(print)), set(threading.enumerate())
    threads = [threading.Thread(target=feeds.open, args=(Adapter(), SlowStart(), iter)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samplers = [one for one in set(threading.enumerate()) - before if one.name == "feedline-sampler"]
    capture.leave("itself")
    capture.end()
    assert len(samplers) == 1
