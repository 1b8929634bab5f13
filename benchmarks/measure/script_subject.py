"""A script run as it is, except that its training DataLoader hands out what another loader would.

Settings of a subject of kind "script":
  argv       the script and its arguments; `-m MODULE …` runs a module
  how        none: as it is · workers: the same DataLoader with `num_workers` · webdataset: the same DataLoader over
             stock webdataset reading `split` · feedline: `Loader.like` over `split` · cached: its own first batches
             again and again, which is what the script would do if data were free
  split, num_workers, prefetch_factor   where `how` needs them
  layout     channels_last: of the cached batches, as feedline's loader hands them over; like it, freed memory is kept

The training DataLoader is the first that is iterated and does not go through its dataset in order. It never ends:
epochs follow each other until the window is full. The script leaves no trace: `torch.save` does nothing.
"""

import itertools
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.window import Meter, WindowDone
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import keep_freed_memory

CACHED_BATCHES = 8
SHUFFLE_WINDOW = 1000  # samples; what webdataset's own examples use


class SwapError(FeedlineError):
    """A script whose loader cannot be swapped in this way; says why."""


def run_script(meter: Meter, settings: dict[str, Any]) -> None:
    """Runs the script until the meter is full. Raises what the script raises, or SwapError."""
    watch = _Watch(meter, settings)
    watch.install()
    hold_back_traces()
    argv: list[str] = settings["argv"]
    try:
        start(argv)
    except WindowDone:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise SwapError(f"the script left with {error.code!r}") from error
    if not watch.seen:
        raise SwapError("the script iterated no shuffled DataLoader: there is nothing to swap")


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


def hold_back_traces() -> None:
    import torch

    def nothing(*_: Any, **__: Any) -> None: ...

    torch.save = nothing


class _Watch:
    def __init__(self, meter: Meter, settings: dict[str, Any]) -> None:
        self.seen = False
        self._meter = meter
        self._settings = settings
        self._chosen: Any = None

    def install(self) -> None:
        import torch.utils.data

        kind: Any = torch.utils.data.DataLoader
        original: Callable[[Any], Iterator[Any]] = kind.__iter__

        def iterate(loader: Any) -> Iterator[Any]:
            if self._chosen is None and is_shuffled(loader):
                self._chosen, self.seen = loader, True
                return self._metered(loader, original)
            return original(loader)

        kind.__iter__ = iterate

    def _metered(self, loader: Any, original: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        batches = swapped(loader, original, self._settings)
        while True:
            asked = time.perf_counter()
            batch = next(batches)
            samples = count_samples(batch)
            if not self._meter.facts:
                self._meter.facts.update(describe(batch), batch_size=samples)
            self._meter.batch(samples, time.perf_counter() - asked)
            yield batch


def is_shuffled(loader: Any) -> bool:
    from torch.utils.data import SequentialSampler

    inner = getattr(loader.batch_sampler, "sampler", None) if loader.batch_size is None else loader.sampler
    return not isinstance(inner, SequentialSampler)


def swapped(loader: Any, original: Callable[[Any], Iterator[Any]], settings: dict[str, Any]) -> Iterator[Any]:
    """Endless batches."""
    how = settings["how"]
    if how == "none":
        return epochs(lambda: original(loader))
    if how == "cached":
        if settings.get("layout"):
            keep_freed_memory()
        batches = list(itertools.islice(original(loader), CACHED_BATCHES))
        return itertools.cycle([laid_out(batch, settings.get("layout")) for batch in batches])
    if how == "workers":
        return epochs(lambda: original(with_workers(loader, settings)))
    if how == "webdataset":
        return epochs(lambda: original(over_webdataset(loader, settings)))
    if how == "feedline":
        ours = like(loader, settings)
        return epochs(lambda: iter(ours))
    raise SwapError(f"unknown swap {how!r}")


def laid_out(batch: Any, layout: str | None) -> Any:
    """The batch with its image tensors in this memory format."""
    import torch

    if isinstance(batch, list | tuple):
        return [laid_out(item, layout) for item in batch]
    if layout == "channels_last" and isinstance(batch, torch.Tensor) and batch.ndim == 4:
        return batch.contiguous(memory_format=torch.channels_last)
    return batch


def epochs(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """One epoch after the other. Raises SwapError for an epoch without a batch."""
    while True:
        count = 0
        for count, batch in enumerate(begin(), 1):  # noqa: B007  used after the loop
            yield batch
        if not count:
            raise SwapError("an epoch gave no batch: the dataset is smaller than one batch")


def with_workers(loader: Any, settings: dict[str, Any]) -> Any:
    """The same loader with workers that stay; its random order goes on without an end, so no epoch's start counts."""
    from torch.utils.data import DataLoader, RandomSampler

    common = shared_arguments(loader, settings)
    if loader.batch_size is None:
        return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **common)
    sampler = loader.sampler
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        sampler = RandomSampler(loader.dataset, num_samples=1000 * len(loader.dataset), generator=loader.generator)
    return DataLoader(
        loader.dataset, batch_size=loader.batch_size, sampler=sampler, drop_last=loader.drop_last, **common
    )


def shared_arguments(loader: Any, settings: dict[str, Any]) -> dict[str, Any]:
    workers = settings["num_workers"]
    more = {"prefetch_factor": settings.get("prefetch_factor") or 2, "persistent_workers": True} if workers else {}
    return {
        "num_workers": workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        **more,
    }


def over_webdataset(loader: Any, settings: dict[str, Any]) -> Any:
    """The same DataLoader over stock webdataset with the dataset's own transform: what its users write."""
    import webdataset
    from torch.utils.data import DataLoader

    transform = getattr(loader.dataset, "transform", None)
    if transform is None:
        raise SwapError("the script's dataset has no `transform` to apply to the samples of the shards")
    shards = sorted(str(path) for path in Path(settings["split"]).glob("*.tar"))
    kind: Any = webdataset
    dataset = (
        kind.WebDataset(shards, shardshuffle=len(shards), seed=0)
        .shuffle(SHUFFLE_WINDOW)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .repeat()
    )
    return DataLoader(dataset, batch_size=loader.batch_size, **shared_arguments(loader, settings))


def like(loader: Any, settings: dict[str, Any]) -> Any:
    from feedline.pipeline.loader import Loader

    options = {name: settings[name] for name in ("num_workers", "prefetch_factor") if settings.get(name) is not None}
    return Loader.like(loader, settings["split"], persistent_workers=True, **options)  # no epoch's start counts


def count_samples(batch: Any) -> int:
    """Length of the first tensor or array found; a list of samples counts as such."""
    found = first_tensor(batch)
    return len(found) if found is not None else len(batch)


def first_tensor(batch: Any) -> Any:
    if hasattr(batch, "shape") and getattr(batch, "ndim", 0) > 0:
        return batch
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for item in batch if (found := first_tensor(item)) is not None), None)
    return None


def describe(batch: Any) -> dict[str, Any]:
    found = first_tensor(batch)
    if found is None:
        return {}
    return {"dtype": str(found.dtype).removeprefix("torch."), "shape": list(found.shape)}
