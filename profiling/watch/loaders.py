"""The loaders that are watched, one adapter each (`feed.WatchedLoader`). Nothing of them is imported here.

A loader to be watched too: one more class like these, and its place in `LOADERS`.
"""

import functools
import sys
import threading
import time
from typing import Any

from feedline.profiling.watch.facts import innermost, quietly
from feedline.profiling.watch.feed import Feed, Feeds, WatchedLoader

FEED = "_feedline_feed"
ONLY_HERE = (
    "the loader's workers are fresh interpreters, which cannot import what a notebook defines: put the Dataset and "
    "what it uses into a file, or give the DataLoader multiprocessing_context='fork'"
)


class Torch(WatchedLoader):
    """torch's DataLoader: its iterators are patched, so that the script gets the very object."""

    kind = "torch"
    module = "torch.utils.data.dataloader"
    loader, iterator, with_workers = "DataLoader", "_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter"

    def attach(self, module: Any, feeds: Feeds) -> None:
        super().attach(module, feeds)
        replace, with_workers = feeds.patches.replace, getattr(module, self.with_workers)
        # A subclass may ask for its one iterator itself, as ultralytics' does; within `__iter__` it passes through.
        replace(getattr(module, self.loader), "_get_iterator", functools.partial(self._iter, feeds))
        home = module if hasattr(module, "_worker_loop") else module._utils.worker  # whose loop the workers run
        replace(getattr(module, self.iterator), "__next__", functools.partial(_next, feeds))
        replace(with_workers, "__init__", functools.partial(_start_workers, feeds, home))
        replace(with_workers, "_shutdown_workers", functools.partial(_end_workers, feeds))

    def fed(self, feed: Feed, iterator: Any) -> Any:
        try:
            setattr(iterator, FEED, feed)
        except AttributeError:  # a subclass that returns a generator: it calls us again from inside
            pass
        return iterator

    def pin_thread(self, iterator: Any) -> Any:
        return getattr(iterator, "_pin_memory_thread", None)

    def again(self, loader: Any, num_workers: int, *, persistent_workers: bool = False) -> Any:
        import torch.utils.data as data

        if not isinstance(loader, data.DataLoader):
            return None
        names = ("collate_fn", "pin_memory", "worker_init_fn", "generator", "timeout")
        wanted: dict[str, Any] = {name: getattr(loader, name) for name in names}
        if isinstance(loader.dataset, data.IterableDataset):
            wanted["batch_size"] = loader.batch_size
            wanted |= {} if loader.batch_size is None else {"drop_last": loader.drop_last}
        elif loader.batch_sampler is not None:
            wanted["batch_sampler"] = loader.batch_sampler
        else:
            wanted |= {"batch_size": None, "sampler": loader.sampler}
        if num_workers:
            wanted["multiprocessing_context"] = loader.multiprocessing_context
            wanted["persistent_workers"] = persistent_workers
            wanted |= {"prefetch_factor": loader.prefetch_factor} if loader.prefetch_factor else {}
        try:
            return data.DataLoader(loader.dataset, num_workers=num_workers, **wanted)
        except (TypeError, ValueError):
            return None


def _next(feeds: Feeds, original: Any) -> Any:
    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:
        feed = iterator.__dict__.get(FEED)
        if feed is None or feeds.capture.ours[threading.get_ident()]:
            return original(iterator)
        return feed.next(functools.partial(original, iterator))

    return __next__


def _start_workers(feeds: Feeds, home: Any, original: Any) -> Any:
    @functools.wraps(original)
    def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        loop = getattr(home._worker_loop, "original", home._worker_loop)  # another thread may start workers too
        entry = feeds.worker_entry(loop, _outer(loader)) or loop
        if quietly(lambda: _only_here(loader)):
            feeds.capture.journal.complain(ONLY_HERE)
        home._worker_loop = entry
        try:
            return original(iterator, loader, *args, **kwargs)
        finally:
            if home._worker_loop is entry:
                home._worker_loop = loop

    return __init__


def _only_here(loader: Any) -> bool:
    """Whether its workers are fresh interpreters, and what they need is defined in a notebook or a console."""
    import multiprocessing  # here: every interpreter of a run imports this file

    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    homes = {getattr(type(one), "__module__", "") for one in (loader.dataset, innermost(loader.dataset))}
    homes.add(getattr(loader.collate_fn, "__module__", ""))
    return method != "fork" and "__main__" in homes and not hasattr(sys.modules["__main__"], "__file__")


def _outer(loader: Any) -> Any:
    """The loader that the script iterates over: fastai's hands one inside it to torch's iterators."""
    outer = getattr(loader, "d", None)
    return outer if getattr(outer, "fake_l", None) is loader else loader


def _end_workers(feeds: Feeds, original: Any) -> Any:
    """Where a step begins an iterator of its own, the workers of the one before end in its time."""
    clock, capture = time.perf_counter, feeds.capture  # it is called by `__del__`, too, when modules may be gone

    @functools.wraps(original)
    def _shutdown_workers(iterator: Any) -> Any:
        if not capture.active:
            return original(iterator)
        began_s = clock()
        try:
            return original(iterator)
        finally:
            capture.ended_workers(clock() - began_s)

    return _shutdown_workers


def _unwatched(feeds: Feeds, original: Any) -> Any:
    @functools.wraps(original)
    def state_dict(loader: Any) -> Any:
        with feeds.capture.unwatched():  # it may begin an iterator to have something to tell of
            return original(loader)

    return state_dict


class Torchdata(Torch):
    """torchdata's StatefulDataLoader."""

    kind = "torchdata"
    module = "torchdata.stateful_dataloader.stateful_dataloader"
    loader, iterator = "StatefulDataLoader", "_StatefulBaseDataLoaderIter"
    with_workers = "_StatefulMultiProcessingDataLoaderIter"

    def attach(self, module: Any, feeds: Feeds) -> None:
        super().attach(module, feeds)
        feeds.patches.replace(module.StatefulDataLoader, "state_dict", functools.partial(_unwatched, feeds))


class Nodes(WatchedLoader):
    """torchdata's nodes."""

    kind = "torchdata.nodes"
    module = "torchdata.nodes.loader"

    def attach(self, module: Any, feeds: Feeds) -> None:
        super().attach(module, feeds)
        feeds.patches.replace(module.Loader, "state_dict", functools.partial(_unwatched, feeds))


class Webdataset(WatchedLoader):
    """A pipeline that the script iterates over itself: torch's loader around one is watched as torch's."""

    kind = "webdataset"
    module = "webdataset.pipeline"
    loader = "DataPipeline"

    def is_watched(self, loader: Any) -> bool:
        first = loader.pipeline[0] if loader.pipeline else None
        return not hasattr(first, "batch_sampler")  # that is a WebLoader


class Fastai(WatchedLoader):
    """fastai's DataLoader, which iterates over torch's iterators with a loader of its own inside."""

    kind = "fastai"
    module = "fastai.data.load"
    loader = "DataLoader"


class Feedline(WatchedLoader):
    """Our own Loader. Its workers count for themselves (`loader_stats`)."""

    kind = "feedline"
    module = "feedline.pipeline.loader"


LOADERS: tuple[WatchedLoader, ...] = (Torch(), Torchdata(), Nodes(), Webdataset(), Fastai(), Feedline())
