"""What a script's loaders, model and settings look like, read off the objects without touching them.

Nothing here may raise or have an effect: it reads attributes of a user's objects inside the user's process.
"""

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def quietly(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # a user's property may raise anything
        return None


def settings(one: Any) -> dict[str, Any]:
    """Keys of `recording.LoaderSeen` that the loader object itself tells."""
    dataset = getattr(one, "dataset", None)
    sampler, config = getattr(one, "batch_sampler", None), getattr(one, "config", None)

    def told(name: str) -> Any:
        found = getattr(one, name, None)
        return getattr(config, name, None) if found is None else found

    batch_size = told("batch_size") or getattr(sampler, "batch_size", None)
    return {
        "num_workers": _int(told("num_workers")),
        "batch_size": _int(batch_size),
        "prefetch_factor": _int(told("prefetch_factor")),
        "pin_memory": _bool(told("pin_memory")),
        "persistent_workers": _bool(told("persistent_workers")),
        "start_method": start_method(one),
        "drop_last": _bool(told("drop_last")),
        "dataset": type(innermost(dataset)).__name__ if dataset is not None else None,
        "dataset_samples": _length(dataset),
        "batches_per_epoch": None if getattr(one, "_dataset_kind", 0) else _length(one),
        "transforms": transforms(dataset),
    }


def start_method(one: Any) -> str | None:
    if not getattr(one, "num_workers", 0):
        return None
    context = getattr(one, "multiprocessing_context", None)
    if context is None:
        context = sys.modules.get("multiprocessing")
    return quietly(context.get_start_method) if context is not None else None


def innermost(dataset: Any) -> Any:
    """The dataset inside Subset and the like."""
    for _ in range(8):
        inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
        if inner is None:
            return dataset
        dataset = inner
    return dataset


def transforms(dataset: Any) -> list[str]:
    """Names of the members of a Compose (or of the one callable) the dataset holds."""
    source = innermost(dataset)
    held = vars(source) if hasattr(source, "__dict__") else {}
    found = next(
        (held[name] for name in ("transform", "transforms", "preprocess") if held.get(name) is not None), None
    )
    if found is None:
        return []
    inner = getattr(found, "transform", None) if type(found).__name__ == "StandardTransform" else None
    found = inner if inner is not None else found
    members = getattr(found, "transforms", None)
    if not isinstance(members, list | tuple):
        members = [found]
    return [getattr(member, "__name__", None) or type(member).__name__ for member in members][:32]


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bool(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | int) else None


def _length(value: Any) -> int | None:
    return _int(quietly(lambda: len(value))) if hasattr(value, "__len__") else None


class Loaders:
    """Loaders of this process, numbered as they are first iterated."""

    def __init__(self) -> None:
        self.about: list[dict[str, Any]] = []
        """By number: keys of `recording.LoaderSeen`."""
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def known(self, one: Any) -> int | None:
        with suppress(TypeError):  # not hashable
            return self._numbers.get(one)
        return None

    def number(self, one: Any, kind: str) -> int:
        known = self.known(one)
        if known is not None:
            return known
        number = len(self.about)
        self.about.append({"id": number, "kind": kind, **settings(one)})
        with suppress(TypeError):
            self._numbers[one] = number
        return number


@dataclass
class Facts:
    """Keys of `recording.Compute`."""

    device: str = "cpu"
    autocast: bool | None = None
    channels_last: bool | None = None
    parameters: int | None = None
    optimizer: str | None = None
    world_size: int = 1
    threads: int | None = None
    user_cpu_s: float = 0.0
    kernel_cpu_s: float = 0.0
    page_faults: int = 0
    faulty_steps: int = 0

    def see_usage(self, before: Any, after: Any) -> None:
        """`resource.getrusage` as a training step began and ended."""
        self.user_cpu_s += after.ru_utime - before.ru_utime
        self.kernel_cpu_s += after.ru_stime - before.ru_stime
        self.page_faults += after.ru_minflt - before.ru_minflt
        self.faulty_steps += 1

    def look(self) -> None:
        if (distributed := _distributed()) is not None:
            self.world_size = int(quietly(distributed.get_world_size) or 1)
        else:
            self.world_size = _number(os.environ.get("WORLD_SIZE")) or 1
        torch = sys.modules.get("torch")
        if torch is not None:
            self.threads = quietly(lambda: int(torch.get_num_threads()))

    def see_optimizer(self, optimizer: Any) -> None:
        """Called at an optimiser's first step: what it trains tells the device and the size of the model."""
        self.optimizer = type(optimizer).__name__
        groups = getattr(optimizer, "param_groups", [])
        found = [one for group in groups for one in group.get("params", [])]
        self.parameters = sum(int(quietly(one.numel) or 0) for one in found)
        if found:
            self.device = str(getattr(found[0], "device", "cpu"))
            weights = [one for one in found if getattr(one, "ndim", 0) == 4 and one.shape[1] > 1]
            self.channels_last = quietly(lambda: _channels_last(weights))
        self.look()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rank() -> int | None:
    """Of this process: torch.distributed's where it is initialised (processes of `mp.spawn` have nothing else to tell
    them apart), else what a launcher has put into the environment; None without either."""
    if (distributed := _distributed()) is not None:
        return quietly(lambda: int(distributed.get_rank()))
    told = (_number(os.environ.get(name)) for name in ("RANK", "LOCAL_RANK"))  # Lightning sets only the second
    return next((number for number in told if number is not None), None)


def _distributed() -> Any:
    """torch.distributed, once the script has initialised it."""
    module = sys.modules.get("torch.distributed")
    ready = module is not None and quietly(lambda: module.is_available() and module.is_initialized())
    return module if ready else None


def usage() -> Any:
    """CPU time and page faults of this process so far; None where the system does not count them."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF)


def _channels_last(weights: list[Any]) -> bool | None:
    if not weights:
        return None
    torch = sys.modules["torch"]
    return any(
        one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous() for one in weights[:16]
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
