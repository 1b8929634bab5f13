"""The loaders that are watched, one adapter each (`loader_contract.WatchedLoader`). Nothing of them is imported here.

A loader to be watched too: one more class like these, and its place in `LOADERS`.
"""

import functools
import sys
from types import ModuleType
from typing import Any

from feedline.profiling.watch.facts import settings
from feedline.profiling.watch.feed import Watched
from feedline.profiling.watch.loader_contract import LoaderHooks, WatchedLoader

FEED = "_feedline_feed"


class Torch:
    """torch's DataLoader: its iterators are patched, so that the script gets the very object."""

    kind = "torch"
    module = "torch.utils.data.dataloader"
    loader, iterator, with_workers = "DataLoader", "_BaseDataLoaderIter", "_MultiProcessingDataLoaderIter"

    def attach(self, module: ModuleType, hooks: LoaderHooks) -> None:
        hooks.replace(getattr(module, self.loader), "__iter__", lambda original: self._iter(original, hooks))
        hooks.replace(getattr(module, self.iterator), "__next__", lambda original: _next(original, hooks))
        hooks.replace(
            getattr(module, self.with_workers),
            "__init__",
            lambda original: _start_workers(original, self._home(module), hooks),
        )

    def _home(self, module: Any) -> Any:
        """Whose `_worker_loop` the workers run."""
        return module._utils.worker

    def _iter(self, original: Any, hooks: LoaderHooks) -> Any:
        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            feed = hooks.open(self, loader, original)
            if feed is None:
                return original(loader)
            with hooks.unwatched():
                iterator = original(loader)
            try:
                setattr(iterator, FEED, feed)
            except AttributeError:  # a subclass that returns a generator: it calls us again from inside
                pass
            return iterator

        return __iter__

    def workers(self, loader: Any) -> int:
        return loader.num_workers

    def again(self, loader: Any, num_workers: int) -> Any:
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
            wanted |= {"prefetch_factor": loader.prefetch_factor} if loader.prefetch_factor else {}
        try:
            return data.DataLoader(loader.dataset, num_workers=num_workers, **wanted)
        except (TypeError, ValueError):
            return None


class Torchdata(Torch):
    """torchdata's StatefulDataLoader."""

    kind = "torchdata"
    module = "torchdata.stateful_dataloader.stateful_dataloader"
    loader, iterator = "StatefulDataLoader", "_StatefulBaseDataLoaderIter"
    with_workers = "_StatefulMultiProcessingDataLoaderIter"

    def _home(self, module: Any) -> Any:
        return module


def _next(original: Any, hooks: LoaderHooks) -> Any:
    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:
        feed = iterator.__dict__.get(FEED)
        if feed is None or hooks.is_ours():
            return original(iterator)
        return feed.next(functools.partial(original, iterator))

    return __next__


def _start_workers(original: Any, home: Any, hooks: LoaderHooks) -> Any:
    @functools.wraps(original)
    def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        loop = home._worker_loop
        entry = hooks.worker_entry(loop, loader)
        if entry is None:
            return original(iterator, loader, *args, **kwargs)
        home._worker_loop = entry
        try:
            return original(iterator, loader, *args, **kwargs)
        finally:
            home._worker_loop = loop

    return __init__


class Nodes:
    """torchdata's nodes."""

    kind = "torchdata.nodes"
    module = "torchdata.nodes.loader"

    def attach(self, module: Any, hooks: LoaderHooks) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(loader: Any) -> Any:
                feed = hooks.open(self, loader, original, in_trainer=not has_threads(loader.root))
                if feed is None:
                    return original(loader)
                with hooks.unwatched():
                    return Watched(feed, original(loader))

            return __iter__

        def quiet(original: Any) -> Any:
            @functools.wraps(original)
            def state_dict(loader: Any) -> Any:
                with hooks.unwatched():  # it may call iter() to have something to tell of
                    return original(loader)

            return state_dict

        hooks.replace(module.Loader, "__iter__", make)
        hooks.replace(module.Loader, "state_dict", quiet)

    def workers(self, loader: Any) -> int:
        return 0

    def again(self, loader: Any, num_workers: int) -> Any:
        return None


def has_threads(node: Any) -> bool:
    """Whether a torchdata node, or one it draws from, works outside the thread that asks it for batches."""
    for _ in range(32):
        if getattr(node, "num_workers", 0) or type(node).__name__ in ("Prefetcher", "PinMemory"):
            return True
        node = getattr(node, "source", None)
    return False


class Webdataset:
    """A pipeline that the script iterates over itself: torch's loader around one is watched as torch's."""

    kind = "webdataset"
    module = "webdataset.pipeline"

    def attach(self, module: Any, hooks: LoaderHooks) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(pipeline: Any) -> Any:
                first = pipeline.pipeline[0] if pipeline.pipeline else None
                inner = hasattr(first, "batch_sampler")  # a WebLoader
                if inner or "torch.utils.data._utils.worker" in _callers():
                    return original(pipeline)
                feed = hooks.open(self, pipeline, original, in_trainer=True)
                return original(pipeline) if feed is None else Watched(feed, iter(original(pipeline)))

            return __iter__

        hooks.replace(module.DataPipeline, "__iter__", make)

    def workers(self, loader: Any) -> int:
        return 0

    def again(self, loader: Any, num_workers: int) -> Any:
        return None


def _callers() -> set[str]:
    found: set[str] = set()
    frame = sys._getframe(1)
    while frame.f_back is not None:
        found.add(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return found


class Feedline:
    """Our own Loader. Its workers count for themselves (`loader_stats`)."""

    kind = "feedline"
    module = "feedline.pipeline.loader"

    def attach(self, module: Any, hooks: LoaderHooks) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(loader: Any) -> Any:
                feed = hooks.open(self, loader, original)
                return original(loader) if feed is None else Watched(feed, iter(original(loader)))

            return __iter__

        hooks.replace(module.Loader, "__iter__", make)

    def workers(self, loader: Any) -> int:
        return settings(loader)["num_workers"] or 0

    def again(self, loader: Any, num_workers: int) -> Any:
        return None


LOADERS: tuple[WatchedLoader, ...] = (Torch(), Torchdata(), Nodes(), Webdataset(), Feedline())
