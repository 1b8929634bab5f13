"""A script run as it is, except that its training DataLoader hands out what another loader would.

Settings of a subject of kind "script":
  argv       the script and its arguments; `-m MODULE …` runs a module
  how        none: as it is · workers: the same DataLoader with `num_workers` · webdataset: the same DataLoader over
             stock webdataset reading `split` · feedline: `Loader.like` over `split` · cached: its own first batches
             again and again, which is what the script would do if data were free; laid out as feedline's loader hands
             them over, and freed memory is kept, as there
  split, num_workers   where `how` needs them

The training DataLoader is the first that is iterated and does not go through its dataset in order. It never ends:
epochs follow each other until the window is full. The script leaves no trace: `torch.save` does nothing.
"""

import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.window import Meter, WindowDone, endless
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import keep_freed_memory
from feedline.profiling.watch.batches import sizes, tensors
from feedline.profiling.watch.legs.cached import KEPT_BATCHES, Cache

SHUFFLE_WINDOW = 1000  # samples; what webdataset's own examples use
Iterate = Callable[[Any], Iterator[Any]]
NO_BATCH = FeedlineError("an epoch gave no batch: the dataset is smaller than one batch")


def run_script(meter: Meter, settings: dict[str, Any]) -> None:
    """Runs the script until the meter is full. Raises what the script raises, FeedlineError where its loader cannot
    be swapped."""
    import torch
    from torch.utils.data import DataLoader, SequentialSampler

    kind: Any = DataLoader
    original: Iterate = kind.__iter__
    chosen: list[Any] = []

    def iterate(loader: Any) -> Iterator[Any]:
        sampler = getattr(loader.batch_sampler, "sampler", None) if loader.batch_size is None else loader.sampler
        if chosen or isinstance(sampler, SequentialSampler):
            return original(loader)
        chosen.append(loader)
        return metered(meter, swapped(loader, original, settings))

    kind.__iter__ = iterate
    torch.save = lambda *_, **__: None
    try:
        start(settings["argv"])
    except WindowDone:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise FeedlineError(f"the script left with {error.code!r}") from error
    if not chosen:
        raise FeedlineError("the script iterated no shuffled DataLoader: there is nothing to swap")


def start(argv: list[str]) -> None:
    """As `python ARGV…` would."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(argv)
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def metered(meter: Meter, batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        asked_s = time.perf_counter()
        batch = next(batches)
        samples = sizes(batch)[0] or 0
        if not meter.facts:
            first = next((tensor for tensor in tensors(batch) if len(tensor.shape)), None)
            if first is not None:
                meter.facts.update(dtype=str(first.dtype).removeprefix("torch."), shape=list(first.shape))
        meter.batch(samples, time.perf_counter() - asked_s)
        yield batch


def swapped(loader: Any, original: Iterate, settings: dict[str, Any]) -> Iterator[Any]:
    """Endless batches."""
    how = settings["how"]
    if how == "cached":
        return cached(original(loader))
    if how == "feedline":
        from feedline.pipeline.loader import Loader

        workers = settings["num_workers"]  # they persist: no epoch's start counts
        ours = Loader.like(loader, settings["split"], persistent_workers=True, num_workers=workers)
        return endless(ours.__iter__, NO_BATCH)
    another = {"none": lambda *_: loader, "workers": with_workers, "webdataset": over_webdataset}[how]
    return endless(lambda: original(another(loader, settings)), NO_BATCH)


def cached(batches: Iterator[Any]) -> Iterator[Any]:
    keep_freed_memory()
    cache = Cache()
    for _, batch in zip(range(KEPT_BATCHES), batches, strict=False):
        cache.keep(batch)
    if not cache.kept:
        raise NO_BATCH
    cache = cache.laid_out() or cache
    while True:
        yield cache.next()


def with_workers(loader: Any, settings: dict[str, Any]) -> Any:
    """The same loader with workers that stay; its random order goes on without an end, so no epoch's start counts."""
    from torch.utils.data import DataLoader, RandomSampler

    common = shared_arguments(loader, settings["num_workers"])
    if loader.batch_size is None:
        return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **common)
    sampler = loader.sampler
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        sampler = RandomSampler(loader.dataset, num_samples=1000 * len(loader.dataset), generator=loader.generator)
    common |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return DataLoader(loader.dataset, sampler=sampler, **common)


def over_webdataset(loader: Any, settings: dict[str, Any]) -> Any:
    """The same DataLoader over stock webdataset with the dataset's own transform: what its users write."""
    import webdataset
    from torch.utils.data import DataLoader

    transform = getattr(loader.dataset, "transform", None)
    if transform is None:
        raise FeedlineError("the script's dataset has no `transform` to apply to the samples of the shards")
    shards = sorted(str(path) for path in Path(settings["split"]).glob("*.tar"))
    kind: Any = webdataset
    dataset = kind.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(SHUFFLE_WINDOW).decode("pil")
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(transform, int).repeat()
    common = shared_arguments(loader, settings["num_workers"])
    return DataLoader(dataset, batch_size=loader.batch_size, **common)


def shared_arguments(loader: Any, workers: int) -> dict[str, Any]:
    names = ("collate_fn", "pin_memory", "worker_init_fn")
    return {
        "num_workers": workers,
        **{name: getattr(loader, name) for name in names},
        **({"prefetch_factor": 2, "persistent_workers": True} if workers else {}),
    }
