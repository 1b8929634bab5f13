"""What the script iterates over: each of its `next` calls passes through here.

While the verdict's steps run, a batch is asked for, fetched and noted. In a diagnostic run the loop then stays where
it is: a loader that runs out is begun again underneath, and once enough was seen a director decides what is handed
out. Without one the script is ended, or runs on unwatched.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.loader_contract import WatchedLoader
from feedline.profiling.watch.rules import own_place

Draw = Callable[[], Any]
Iterate = Callable[[Any], Iterator[Any]]
"""What `iter(loader)` was before it was patched."""


class Director(Protocol):
    """`profiling.watch.legs.director.Director`."""

    @property
    def directing(self) -> bool: ...
    def take_over(self, feed: "Feed", why: str) -> None:
        """The verdict's steps are over."""
        ...

    def adopts(self, feed: "Feed") -> bool:
        """A pass begins while it directs: whether over the training loader, which it goes on with."""
        ...

    def next(self, feed: "Feed") -> Any:
        """Raises Finished when there is nothing more to measure."""
        ...


class Feed:
    """One iteration of the script's over one loader."""

    def __init__(
        self,
        feeds: "Feeds",
        adapter: WatchedLoader,
        loader: Any,
        iterate: Iterate,
        *,
        in_trainer: bool | None = None,
        place: str = "",
    ) -> None:
        self.adapter = adapter
        self.place = place
        """Where in the script the loop is; known in a diagnostic run."""
        self.directed = False
        self._feeds = feeds
        self._capture = feeds.capture
        # `for batch in DataLoader(…)` holds on to the iterator only; windows begin the loader again.
        self._loader: Callable[[], Any] = weakref.ref(loader) if feeds.director is None else lambda: loader
        self._iterate = iterate
        self._in_trainer = in_trainer
        self._original: Draw | None = None
        self._again: Draw | None = None
        self.passed = self._begin_pass() if self._capture.active else None

    @property
    def loader(self) -> Any:
        return self._loader()

    def next(self, original: Draw) -> Any:
        """The next batch; `original` draws from what the script itself iterates over."""
        director, capture, passed = self._feeds.director, self._capture, self.passed
        if self.directed and director is not None:
            self._original = original
            return director.next(self)
        if not capture.active or capture.asking is not None or passed is None or passed.done:
            return (self._again or original)()
        asked = capture.ask(passed)
        if (director is None or passed.trained or not capture.loop.any_trained) and (
            reason := capture.enough(asked, held=self._again is not None)
        ):
            capture.asking = None
            if director is None:
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
            self.begin_again()
            self.passed = self._begin_pass()
            return self.next(original)
        capture.got(passed, asked, batch)
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

        def again() -> Any:
            with self._capture.unwatched():
                return next(iterator)

        self._again = again
        return iterator

    def release(self) -> None:
        """Nothing more is drawn: the script alone holds its iterator, and the workers end with that."""
        self._original = self._again = None
        self._loader = lambda: None

    def go_on(self) -> None:
        """With what the script itself iterates over."""
        self._again = None

    def _begin_pass(self) -> Any:
        return self._capture.begin_pass(self.loader, self.adapter.kind, in_trainer=self._in_trainer)


class Feeds:
    """What adapters open as the script begins to iterate."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.director: Director | None = None
        """In a diagnostic run."""

    def open(
        self, adapter: WatchedLoader, loader: Any, iterate: Iterate, *, in_trainer: bool | None = None
    ) -> Feed | None:
        """None where the loader is not to be watched."""
        capture, director = self.capture, self.director
        directing = director is not None and director.directing and not capture.ours
        if not (capture.watching or directing):
            return None
        place = own_place(sys._getframe(1)) if director is not None else ""
        feed = Feed(self, adapter, loader, iterate, in_trainer=in_trainer, place=place)
        if director is not None and directing:
            feed.directed = director.adopts(feed)
            return feed if feed.directed else None
        return feed


class Watched:
    """An iterator around one that cannot be patched itself."""

    def __init__(self, feed: Feed, iterator: Iterator[Any]) -> None:
        self._feed, self._iterator = feed, iterator

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        return self._feed.next(self._iterator.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
