"""What the script iterates over: each of its `next` calls passes through here.

While the verdict's steps run, a batch is asked for, fetched and noted. In a diagnostic run the loop then stays where
it is: a loader that runs out is begun again underneath, and once enough was seen a director decides what is handed
out. Without one the script is ended, or runs on unwatched.
"""

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.facts import settings
from feedline.profiling.watch.passes import Pass
from feedline.profiling.watch.patches import Patches
from feedline.profiling.watch.rules import own_place
from feedline.profiling.watch.worker import WorkerEntry

Draw = Callable[[], Any]
DRAWS_SEEN = 3  # first batches of a pass, at which it is looked up who asks for them


class Director(Protocol):
    """`profiling.watch.legs.director.Director`."""

    directing: bool

    def hold(self, frame: FrameType) -> None: ...
    def take_over(self, feed: "Feed", why: str) -> None: ...
    def adopts(self, feed: "Feed") -> bool: ...
    def next(self, feed: "Feed") -> Any: ...


class WatchedLoader:
    """What the watch and the legs need of a kind of loader; `profiling.watch.loaders` has one class for each. This is
    one whose iterators are wrapped and whose batches are made without worker processes."""

    kind: str  # as `recording.LoaderSeen.kind`
    module: str  # patched as the script imports it
    loader = "Loader"  # its class in there

    def attach(self, module: Any, feeds: "Feeds") -> None:
        """Patch the module so that iterating over its loader goes through a feed."""
        feeds.patches.replace(getattr(module, self.loader), "__iter__", functools.partial(self._iter, feeds))

    def _iter(self, feeds: "Feeds", original: Any) -> Any:
        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            feed = feeds.open(self, loader, original) if self.is_watched(loader) else None
            if feed is None:
                return original(loader)
            if feed.directed:
                return FedIterator(feed, functools.partial(feed.begin_late, functools.partial(original, loader)))
            began_s = time.perf_counter()
            with feeds.capture.unwatched():
                iterator = original(loader)
                feed.begun(iterator, time.perf_counter() - began_s)
                return self.fed(feed, iterator)

        return __iter__

    def is_watched(self, loader: Any) -> bool:
        return True

    def fed(self, feed: "Feed", iterator: Any) -> Any:
        """What the script iterates over: the iterator, with its batches coming through the feed."""
        iterator = iter(iterator)
        return FedIterator(feed, lambda: iterator)

    def pin_thread(self, iterator: Any) -> Any:
        """The thread of this process that makes its batches ready; None without one."""
        return None

    def workers(self, loader: Any) -> int:
        """Processes (or threads) that prepare its batches; 0: the thread that asks for them does."""
        return settings(loader)["num_workers"] or 0

    def again(self, loader: Any, num_workers: int) -> Any:
        """A loader like it with so many fresh workers; None where that cannot be made."""
        return None


class Feed:
    """One iteration of the script's over one loader."""

    def __init__(
        self, feeds: "Feeds", adapter: WatchedLoader, loader: Any, iterate: Callable[[Any], Iterator[Any]]
    ) -> None:
        """`iterate` is what `iter(loader)` was before it was patched."""
        self.adapter = adapter
        self.place = own_place(sys._getframe(1))  # where in the script the loop is
        self.directed = False
        self._feeds = feeds
        self._capture = feeds.capture
        # `for batch in DataLoader(…)` holds on to the iterator only; windows begin the loader again.
        self._loader: Callable[[], Any] = weakref.ref(loader) if feeds.director is None else lambda: loader
        self._iterate = iterate
        self._original: Draw | None = None
        self._again: Draw | None = None
        self._holds = self._empty = False  # empty: it was begun again, and nothing has come since
        self._pass = self._begin_pass() if self._capture.active else None
        if self._pass is not None:
            this = weakref.ref(self)
            self._capture.loaders.iterated(self._pass.loader, lambda: (one := this()) is not None and one.fresh)

    @property
    def fresh(self) -> bool:
        """Nothing has been drawn yet: what begins beside it does not take its place."""
        return self._pass is not None and not self._pass.over and not self._pass.batches

    @property
    def loader(self) -> Any:
        return self._loader()

    def next(self, original: Draw) -> Any:
        """The next batch; `original` draws from what the script itself iterates over."""
        director, capture, passed = self._feeds.director, self._capture, self._pass
        if self.directed and director is not None:
            self._original = original
            return director.next(self)
        if not capture.active or passed is None or passed.over:
            if passed is not None and (passed.trained or not capture.loop.any_trained):
                capture.trains_on()
            return (self._again or original)()
        if not passed.background and capture.trainer not in (None, threading.get_ident()):
            capture.to_background(passed)
        if passed.background:
            return self._next_in_background(passed, original)
        if _asks(capture):
            return (self._again or original)()
        if passed.done:
            passed = self._pass = capture.go_on(passed)
        if passed.batches < DRAWS_SEEN and capture.watch is not None:
            capture.watch.see_draw(sys._getframe(1))
        capture.ask(passed)
        trains = passed.loader in capture.loop.trained
        if director is not None and passed.trained and not self._holds:
            self._holds = True
            director.hold(sys._getframe(1))
        held = director is not None and (self._again is not None or passed.epoch > 0)
        if (director is None or trains or not capture.loop.any_trained) and (
            reason := capture.enough(passed.asked, held=held)
        ):
            capture.asking = None
            if director is None or reason == "apart":
                capture.end_watch(reason)
            else:
                director.take_over(self, reason)
            return self.next(original)
        try:
            batch = (self._again or original)()
        except BaseException as error:
            exhausted = isinstance(error, StopIteration)
            capture.end_pass(passed, exhausted=exhausted)
            if not (exhausted and director is not None and passed.trained):
                raise
            self._pass = self._begin_pass()
            self.begin_again()
            return self.next(original)
        capture.got(passed, batch)
        return batch

    def _next_in_background(self, passed: Pass, original: Draw) -> Any:
        """No loop of the script's waits here; the steps are those of the thread that trains."""
        director, capture = self._feeds.director, self._capture
        now, trained = time.perf_counter(), capture.loop.trained
        directs = director is not None and passed.loader in trained
        reason = capture.enough(now, held=self._again is not None) if directs else None
        if reason == "apart":
            capture.end_watch(reason)
        elif director is not None and reason:
            director.take_over(self, reason)
            return self.next(original)
        try:
            batch = (self._again or original)()
        except StopIteration:
            if director is None or passed.loader not in trained or self._empty:
                capture.end_in_background(passed)
                raise
            self._empty = True
            self.begin_again()
            return self.next(original)
        self._empty = False
        capture.got(passed, batch)
        return batch

    def draw(self) -> Any:
        """A batch of the loader itself. Raises StopIteration at the end of a pass."""
        draw = self._again or self._original
        assert draw is not None
        with self._capture.unwatched():
            return draw()

    def begin_again(self, loader: Any = None) -> Iterator[Any]:
        """From the first batch of the loader, or of one like it, whose iterator comes back."""
        with self._capture.unwatched():
            iterator = self._iterate(self.loader) if loader is None else iter(loader)
        self.see_thread(iterator)

        def again() -> Any:
            with self._capture.unwatched():
                return next(iterator)

        self._again = again
        return iterator

    def begin_late(self, begin: Callable[[], Any]) -> Iterator[Any]:
        """What the script iterates over itself."""
        with self._capture.unwatched():
            return iter(begin())

    def begun(self, iterator: Any, seconds: float) -> None:
        """What the script iterates over is there, which took so long."""
        self.see_thread(iterator)
        if self._pass is not None:
            self._pass.begin_s = seconds

    def see_thread(self, iterator: Any) -> None:
        if self._pass is not None:
            self._pass.pin_thread = self.adapter.pin_thread(iterator)

    def release(self) -> None:
        """Nothing more is drawn: the script alone holds its iterator, and the workers end with that."""
        self._original = self._again = None
        self._loader = lambda: None

    def go_on(self) -> None:
        """With what the script itself iterates over."""
        self._again = None

    def _begin_pass(self) -> Any:
        return self._capture.begin_pass(self.loader, self.adapter.kind, place=self.place)


class Feeds:
    """What adapters open as the script begins to iterate."""

    def __init__(self, capture: Capture, patches: Patches) -> None:
        self.capture = capture
        self.patches = patches
        self.director: Director | None = None  # in a diagnostic run
        self.worker_lines: Any = None
        """Picklable, while worker processes that start shall have their lines timed (`lines.time_lines`)."""

    def open(self, adapter: WatchedLoader, loader: Any, iterate: Callable[[Any], Any]) -> Feed | None:
        """None where the loader is not to be watched: no loop of the script's own asks it."""
        capture, director = self.capture, self.director
        if capture.ours[threading.get_ident()] or _asks(capture) or in_worker(sys._getframe(1)):
            return None
        if capture.active:
            return Feed(self, adapter, loader, iterate)
        if director is None or not director.directing:
            return None
        feed = Feed(self, adapter, loader, iterate)
        feed.directed = director.adopts(feed)
        return feed if feed.directed else None

    def worker_entry(self, loop: Any, loader: Any) -> Any:
        """What takes the place of a worker's loop; None where workers run as they are."""
        capture = self.capture
        if not capture.active and self.worker_lines is None:  # of a leg only rates count
            return None
        return WorkerEntry(
            original=loop, module=loop.__module__, folder=str(capture.journal.folder), rank=capture.rank,
            trainer=capture.pid, loader=capture.loaders.known(loader) or 0, lines=self.worker_lines,
            batch_size=settings(loader)["batch_size"],
        )  # fmt: skip


class FedIterator:
    """An iterator around one that cannot be patched itself, and that is begun once something of it is asked for: a
    pass that is handed kept batches starts no workers."""

    def __init__(self, feed: Feed, begin: Callable[[], Iterator[Any]]) -> None:
        self._feed, self._begin = feed, begin

    @functools.cached_property
    def _iterator(self) -> Iterator[Any]:
        return self._begin()

    def __iter__(self) -> "FedIterator":
        return self

    def __next__(self) -> Any:
        return self._feed.next(lambda: next(self._iterator))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _asks(capture: Capture) -> bool:
    """Whether this thread is being given a batch: what it iterates over meanwhile is no loop of the script's."""
    return capture.asking is not None and capture.asking.thread == threading.get_ident()


def in_worker(frame: FrameType | None) -> bool:
    """Whether it runs in a loader's worker: what a Dataset there iterates over is no loop of the script's."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.worker":
            return True
        frame = frame.f_back
    return False
