"""A script run as it is, except that its training DataLoader hands out what another loader would.

Settings of a subject of kind "script":
  argv       the script and its arguments; `-m MODULE …` runs a module
  loader     which of its DataLoaders trains: its place among them as they are first iterated; 0 where it is not given
  how        none: as it is · workers: the same DataLoader with `num_workers` · webdataset: the same DataLoader over
             stock webdataset reading `split` · feedline: `Loader.like` over `split`; of floats, on the GPU where the
             script uses one · cached: its own first batches again and again, which is what the script would do if
             data were free; laid out, and there, as feedline's loader hands them over, and freed memory is kept
  split, num_workers   where `how` needs them; workers live on from epoch to epoch

The training DataLoader never ends: epochs follow each other until the window is full. From its first batch on the
script saves no model (`profiling.watch.saves`).
"""

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.window import Meter, endless
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import keep_freed_memory
from feedline.profiling.watch.batches import sizes, tensors
from feedline.profiling.watch.legs.cached import KEPT_BATCHES, Cache
from feedline.profiling.watch.loaders import Torch
from feedline.profiling.watch.patches import Patches
from feedline.profiling.watch.saves import Saves

SHUFFLE_WINDOW = 1000  # samples; what webdataset's own examples use
Iterate = Callable[[Any], Iterator[Any]]
NO_BATCH = FeedlineError("an epoch gave no batch: the dataset is smaller than one batch")


def run_script(meter: Meter, settings: dict[str, Any]) -> None:
    """Runs the script until the meter is full. Raises what the script raises before that, FeedlineError where its
    loader cannot be swapped."""
    from torch.utils.data import DataLoader

    kind: Any = DataLoader
    original: Iterate = kind.__iter__
    met: list[Any] = []
    """Its DataLoaders, as they are first iterated."""
    handed_out: list[Iterator[Any]] = []
    refused: list[str] = []
    wanted, before = settings.get("loader", 0), threads()
    patches = Patches(lambda line: print(line, file=sys.stderr))
    saves = Saves(patches)
    patches.install()

    def iterate(loader: Any) -> Iterator[Any]:
        if not handed_out and not any(loader is one for one in met):
            met.append(loader)
        if len(met) <= wanted or loader is not met[wanted]:
            return original(loader)
        if not handed_out:
            saves.hold(refused.append)
            heed_threads(before)
            handed_out.append(metered(meter, swapped(loader, original, settings), loader.batch_size))
        return handed_out[0]

    kind.__iter__ = iterate
    try:
        start(settings["argv"])
    except SystemExit as error:
        if meter.window is None and error.code not in (None, 0):
            raise FeedlineError(f"the script left with {error.code!r}") from error
    except BaseException:
        if meter.window is None:  # else it was told to end, and took it in its own way
            raise
    if meter.window is None and refused:
        raise FeedlineError(f"{refused[0]}, so it was ended before its window was full")
    if not handed_out:
        raise FeedlineError(f"the script iterated {len(met)} DataLoaders, not the one that trains: nothing to swap")


def threads() -> tuple[str, int]:
    """Of a model's operations: as the environment asks for them, and as they are."""
    import torch

    return os.environ.get("OMP_NUM_THREADS", ""), torch.get_num_threads()


def heed_threads(before: tuple[str, int]) -> None:
    """What a script asks for in the environment before it imports torch came too late: torch was there already."""
    import torch

    asked, there = threads()
    if asked != before[0] and there == before[1] and asked.isdigit():
        torch.set_num_threads(max(1, int(asked)))


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


def metered(meter: Meter, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
    while True:
        asked_s = time.perf_counter()
        batch = next(batches)
        samples = sizes(batch, batch_size)[0] or 0
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
        return endless(ours(loader, settings).__iter__, NO_BATCH)
    another = {"none": lambda *_: loader, "workers": with_workers, "webdataset": over_webdataset}[how]
    chosen = another(loader, settings)
    return endless(lambda: original(chosen), NO_BATCH)


def ours(loader: Any, settings: dict[str, Any]) -> Any:
    """As the remedy's line has it: floats are made on the GPU that the script uses, not by the trainer's threads."""
    from feedline.pipeline.loader import Loader

    # No epoch's start counts, and no first epoch's checksums.
    options = {"persistent_workers": True, "num_workers": settings["num_workers"], "checksums": False}
    like = Loader.like(loader, settings["split"], **options)
    if like.device is None or not cuda_in_use():
        return like
    return Loader.like(loader, settings["split"], device="cuda", **options)


def cuda_in_use() -> bool:
    import torch

    return torch.cuda.is_initialized()


def cached(batches: Iterator[Any]) -> Iterator[Any]:
    keep_freed_memory()
    cache = Cache()
    for _, batch in zip(range(KEPT_BATCHES), batches, strict=False):
        cache.keep(batch)
    if not cache.kept:
        raise NO_BATCH
    floats = any(getattr(tensor.dtype, "is_floating_point", False) for tensor in tensors(cache.kept[0].batch))
    cache = cache.laid_out("cuda" if floats and cuda_in_use() else None) or cache
    while True:
        yield cache.next()


def with_workers(loader: Any, settings: dict[str, Any]) -> Any:
    another = Torch().again(loader, settings["num_workers"], persistent_workers=True)
    if another is None:
        raise FeedlineError(f"the script's DataLoader cannot be had with num_workers={settings['num_workers']}")
    return another


def over_webdataset(loader: Any, settings: dict[str, Any]) -> Any:
    """The same DataLoader over stock webdataset with the dataset's own transform: what its users write."""
    import webdataset
    from torch.utils.data import DataLoader

    transform = getattr(loader.dataset, "transform", None)
    if transform is None:
        raise FeedlineError("the script's dataset has no `transform` to apply to the samples of the shards")
    batch_size = getattr(loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        raise FeedlineError("the script's DataLoader has no `batch_size`: the same cannot be made over the shards")
    shards = sorted(str(path) for path in Path(settings["split"]).glob("*.tar"))
    kind: Any = webdataset
    # With more workers than shards some have nothing to do: no error here.
    dataset = kind.WebDataset(shards, shardshuffle=len(shards), seed=0, empty_check=False)
    dataset = dataset.shuffle(SHUFFLE_WINDOW).decode("pil").to_tuple("jpg", "cls").map_tuple(transform, int).repeat()
    own = {name: getattr(loader, name) for name in ("collate_fn", "pin_memory", "worker_init_fn")}
    if workers := settings["num_workers"]:
        own |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": True}
    return DataLoader(dataset, batch_size=batch_size, num_workers=workers, **own)
