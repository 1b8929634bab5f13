"""What a script's loaders, model and settings look like, read off the objects without touching them.

It reads attributes of a user's objects inside the user's process: none of the user's code is called but properties,
and what these raise goes no further (`quietly`).
"""

import functools
import gc
import io
import os
import resource
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import Any, TypeVar

from feedline.profiling.record.journal import Compute
from feedline.profiling.watch import transforms
from feedline.profiling.watch.rules import is_library, made_by

T = TypeVar("T")
MOST_SAMPLES = 10**12
PATCH = 8  # side of a model's only kernel of pictures, from which it is taken to cut them into patches
NODES = 32  # of torchdata's behind each other are looked at
MOST_OPTIMIZERS = 16  # are looked at
WRAPPED = 8  # datasets inside each other are looked at
LOOKS = 512  # at a list's places
LEAST_BYTES = 512  # of what a dataset keeps; less is a name, a label or a shape
DRAW_SOME = ("WeightedRandomSampler", "SubsetRandomSampler")
FILES = (io.BufferedReader, io.BufferedRandom, io.FileIO, io.TextIOWrapper)
OPENED = ("zipfile.ZipFile", "tarfile.TarFile", "h5py.", "lmdb.", "sqlite3.Connection")
CACHED = type(functools.lru_cache(bool))


def quietly(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # a user's property may raise anything
        return None


def settings(one: Any) -> dict[str, Any]:
    """Keys of `recording.LoaderSeen` that a loader tells itself, or the one inside it that has its workers."""

    def of(home: Any, name: str) -> Any:
        return quietly(lambda: getattr(home, name, None))

    dataset, sampler = of(one, "dataset"), of(one, "batch_sampler")
    config = of(one, "config")
    steps = quietly(lambda: transforms.steps_of(held_by(innermost(config if dataset is None else dataset)))) or []
    homes = [of(one, "fake_l"), one, config]  # fastai's, and of feedline's

    def told(name: str) -> Any:
        return next((value for home in homes if (value := of(home, name)) is not None), None)

    workers = told("num_workers")
    return {
        "num_workers": _int(node_workers(one) if workers is None else workers),
        "batch_size": _int(told("batch_size") or told("bs") or of(sampler, "batch_size")),
        "prefetch_factor": _int(told("prefetch_factor")),
        "pin_memory": _bool(told("pin_memory")),
        "persistent_workers": _bool(told("persistent_workers")),
        "dataset": quietly(lambda: type(innermost(dataset)).__name__) if dataset is not None else None,
        "dataset_samples": _length(dataset),
        "folder": quietly(lambda: _folder(dataset)),
        "sampler": quietly(lambda: _own_sampler(one)),
        "transforms": quietly(lambda: transforms.names(steps)) or [],
        "normalize": quietly(lambda: transforms.normalize(steps)) or [],
        "augment": quietly(lambda: transforms.crops(steps)) or quietly(lambda: transforms.crops_of(config)) or {},
    }


def node_workers(loader: Any) -> int | None:
    """Threads or processes in which torchdata's nodes make batches, 0 where they do it in the thread that asks; None
    for a loader of another kind."""
    node = quietly(lambda: getattr(loader, "root", None))
    nodes = [node] if hasattr(node, "reset") else []
    while nodes and len(nodes) < NODES and (source := held_by(nodes[-1]).get("source")) is not None:
        nodes.append(source)
    ahead = any(type(one).__name__ in ("Prefetcher", "PinMemory") for one in nodes)
    return max([int(ahead), *(_int(held_by(one).get("num_workers")) or 0 for one in nodes)]) if nodes else None


def own_code(loader: Any) -> str | None:
    """What of a dataset is code of its own, which `Loader.like` therefore refuses; None where it is torchvision's."""
    dataset = getattr(loader, "dataset", None)
    for name in (*(["__iter__"] if iterates(dataset) else []), "__getitems__", "__getitem__"):
        home = str(getattr(getattr(type(dataset), name, None), "__module__", None) or "torchvision.")
        if not home.startswith(("torchvision.", "torch.utils.data.dataset")):
            return f"{type(dataset).__name__}.{name} is code of its own"
    return None


def iterates(dataset: Any) -> bool:
    """By torch's own rule: others are asked for indices."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(dataset).__mro__)
    return ("torch", "IterableDataset") in kinds


def refused(loader: Any) -> str | None:
    """Why `Loader.like` does not take a torch DataLoader's settings over, "" where it does. None where that cannot be
    asked. The user's own transforms are not called: the script's random numbers are its own."""
    from feedline.pipeline.base.errors import UsageError

    try:
        from feedline.pipeline.like import options_like

        options_like(loader, try_steps=False)
    except UsageError as error:
        return str(error)
    except Exception:  # an extra is missing; a user's object may raise anything, torch's SIGCHLD handler anywhere
        return None
    return ""


def innermost(dataset: Any) -> Any:
    """The dataset inside Subset and the like."""
    for _ in range(WRAPPED):
        inner = held_by(dataset).get("dataset")
        if inner is None:
            return dataset
        dataset = inner
    return dataset


def is_child() -> bool:
    """Of a process that has started it by multiprocessing."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def held_by(one: Any) -> dict[str, Any]:
    return vars(one) if hasattr(one, "__dict__") else {}


def _folder(dataset: Any) -> str | None:
    """That of torchvision's folders of classes, all of it, which `feedline prepare` reads as they do."""
    homes = (getattr(type(dataset), name).__module__ for name in ("find_classes", "make_dataset"))
    known = all(home == "torchvision.datasets.folder" for home in homes)
    path = PurePath(dataset.samples[0][0]).relative_to(dataset.root)
    return os.fsdecode(dataset.root) if known and path.parts[0] in dataset.class_to_idx else None


def _own_sampler(loader: Any) -> str | None:
    """The name of what draws the samples, where it is the script's own, or torch's that weighs or leaves some out."""
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    draws = type(batches), type(getattr(batches, "sampler", batches))
    homes = [(kind, getattr(sys.modules.get(kind.__module__), "__file__", None) or "") for kind in draws]
    own = (kind.__name__ for kind, file in homes if kind.__name__ in DRAW_SOME or not is_library(file))
    return next(own, None)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bool(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | int) else None


def _length(value: Any) -> int | None:
    """None too for `sys.maxsize` and the like, by which a dataset says that it has no end."""
    length = _int(quietly(lambda: len(value)))
    return length if length is not None and length < MOST_SAMPLES else None


def role(place: str, loader: Any) -> tuple[str, dict[str, Any]]:
    """What a loader has in common with the one that it was built anew for: the loop at `place`, and its settings."""
    return place, settings(loader)


class Keeps:
    """What a dataset keeps of the samples that it makes in this process, in a dict or a list of its own, or by
    `functools.cache`. The dataset itself is not held: the script may let it go."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = quietly(lambda: weakref.ref(dataset))
        self._before = _held(dataset)

    def is_of(self, dataset: Any) -> bool:
        """Whether it is the same object, as far as is known."""
        return self._dataset is None or self._dataset() is dataset

    def grown(self) -> dict[str, int]:
        """How many samples more than at first, by where."""
        dataset = self._dataset() if self._dataset is not None else None
        return {name: count - self._before.get(name, 0) for name, count in _held(dataset).items()
                if count > self._before.get(name, 0)}  # fmt: skip


def _held(dataset: Any) -> dict[str, int]:
    return quietly(lambda: dict(one for each in _inside(dataset) for one in _of(each))) or {}


def _inside(dataset: Any) -> list[Any]:
    """A dataset, and those that it wraps."""
    found = [] if dataset is None else [dataset]
    for one in found:
        held = held_by(one)
        more = [held.get("dataset"), *(held.get("datasets") or ())]
        found += [each for each in more if each is not None][: WRAPPED - len(found)]
    return found


def _opened(dataset: Any) -> list[str]:
    """What it holds open: processes that are forked would share its place in a file."""
    held = [(f"{type(one).__name__}.{name}", type(value))
            for one in _inside(dataset) for name, value in held_by(one).items()]  # fmt: skip
    return [name for name, kind in held
            if issubclass(kind, FILES) or f"{kind.__module__}.{kind.__name__}".startswith(OPENED)]  # fmt: skip


def _of(dataset: Any) -> list[tuple[str, int]]:
    kind, module = type(dataset), sys.modules.get(type(dataset).__module__)
    found = [(f"{kind.__name__}.{name}", _count(value)) for name, value in held_by(dataset).items()]
    library = kind.__module__.partition(".")[0] in ("torch", "torchvision")
    homes = [] if library else [(f"{kind.__name__}.", vars(kind)), ("", vars(module) if module is not None else {})]
    for before, home in homes:
        for name, value in home.items():
            if isinstance(value, CACHED) and _is_data(_last_result(value)):
                found.append((f"{before}{name}", value.cache_info().currsize))
    return found


def _last_result(cached: Any) -> Any:
    """Of `functools.cache`, without asking it. One with a bound has its results where nobody sees them."""
    return next(reversed(next(one for one in gc.get_referents(cached) if isinstance(one, dict) and one).values()))


def _count(value: Any) -> int:
    """Of a dict or a list of samples; of a list that was made with places for all, those that are filled."""
    if type(value).__module__ not in ("builtins", "collections"):  # whose own code would be asked
        return 0
    if isinstance(value, dict):
        return len(value) if value and _is_data(next(reversed(value.values()))) else 0
    if not isinstance(value, list) or not value:
        return 0
    looks = value[:: max(1, len(value) // LOOKS)]
    filled = [one for one in looks if one is not None]
    if not filled or not _is_data(filled[-1]):
        return 0
    return len(value) * len(filled) // len(looks)


def _is_data(value: Any) -> bool:
    """Whether it is, or holds first, an array, a tensor, a picture or encoded bytes."""
    for _ in range(3):
        if isinstance(value, tuple | list) and value:
            value = value[0]
        elif isinstance(value, dict) and value:
            value = next(iter(value.values()))
    if isinstance(value, bytes | bytearray):
        return len(value) >= LEAST_BYTES
    width, height = (getattr(value, name, 0) for name in ("width", "height"))
    size = getattr(value, "nbytes", None) or (width * height if isinstance(width, int) else 0)
    return isinstance(size, int) and size >= LEAST_BYTES


class Loaders:
    """Loaders of this process, numbered as they are first iterated. One that takes the place of another that is gone,
    as `for batch in DataLoader(…)` has it in every epoch, takes its number."""

    def __init__(self) -> None:
        self.about: list[dict[str, Any]] = []  # by number: keys of `recording.LoaderSeen`
        self._roles: list[tuple[str, dict[str, Any]]] = []
        self._keeps: dict[int, Keeps] = {}
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._fresh: dict[int, Callable[[], bool]] = {}

    def alive(self) -> list[tuple[int, Any]]:
        """Loaders that the script still has, by number."""
        return [(number, one) for one, number in list(self._numbers.items())]

    def told(self) -> list[dict[str, Any]]:
        """`about`, with what their datasets keep in this process."""
        return [one | {"keeps": self._keeps[one["id"]].grown() if one["id"] in self._keeps else {}}
                for one in self.about]  # fmt: skip

    def iterated(self, number: int, fresh: Callable[[], bool]) -> None:
        """By an iterator that may be all the script still has of it, as in `a = iter(DataLoader(…))`; `fresh`:
        whether the script has it, and nothing was drawn from it."""
        self._fresh[number] = fresh

    def known(self, one: Any) -> int | None:
        with suppress(TypeError):  # not hashable
            return self._numbers.get(one)
        return None

    def unwatched(self) -> int:
        """The number of what feeds a loop that asks no loader of a known kind."""
        self.about.append({"id": len(self.about), "kind": "unwatched", **settings(None)})
        self._roles.append(("", {}))
        return len(self.about) - 1

    def number(self, one: Any, kind: str, place: str) -> int:
        number = self.known(one)
        if number is None:
            its, alive = role(place, one), set(self._numbers.values())
            alive |= {number for number, fresh in self._fresh.items() if fresh()}
            former = (before for before, of in enumerate(self._roles) if of == its and before not in alive)
            number = next(former, len(self.about))
            if number == len(self.about):
                self.about.append({"id": number, "kind": kind, "made": 0, "datasets": 0, **its[1]})
                self.about[number]["opened"] = quietly(lambda: _opened(getattr(one, "dataset", None))) or []
                self.about[number]["made_by"] = made_by(sys._getframe(1), one)
                if kind == "torch" and (own := own_code(one)):
                    self.about[number]["refused"] = own
                self._roles.append(its)
            dataset = quietly(lambda: getattr(one, "dataset", None))
            if number not in self._keeps or not self._keeps[number].is_of(dataset):
                self._keeps[number] = Keeps(dataset)
                self.about[number]["datasets"] += 1
            self.about[number]["made"] += 1
            with suppress(TypeError):
                self._numbers[one] = number
        return number


class Facts(Compute):
    """What is seen of the model and its steps, as it is seen."""

    def __init__(self) -> None:
        super().__init__()
        self._optimizers, self._largest = dict[int, tuple[weakref.ref[Any], dict[int, int]]](), 0
        """By their ids, and the sizes of weights by theirs; what the largest optimiser has."""

    def see_usage(self, before: resource.struct_rusage) -> None:
        """A training step has ended; `before` is what the kernel said as it began."""
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.user_cpu_s += after.ru_utime - before.ru_utime
        self.kernel_cpu_s += after.ru_stime - before.ru_stime
        self.page_faults += after.ru_minflt - before.ru_minflt
        self.faulty_steps += 1

    def on_device(self) -> bool:
        """Whether this process computes on more than the CPU, as far as was seen."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return self.device != "cpu" or (cuda is not None and bool(quietly(cuda.is_initialized)))

    def look(self) -> None:
        if (distributed := _distributed()) is not None:
            self.world_size = int(quietly(distributed.get_world_size) or 1)
        else:  # WORLD_SIZE without a rank is left over from another job
            self.world_size = 1 if rank() is None else _number("WORLD_SIZE") or 1
        threads = getattr(sys.modules.get("torch"), "get_num_threads", None)
        self.threads = None if threads is None else quietly(threads)

    def see_optimizer(self, optimizer: Any) -> None:
        """Called before an optimiser's steps: what it trains tells the device and the size of the model; the largest
        of several does, and the weights of all that live count. Nothing of its own is called."""
        seen = self._optimizers.get(id(optimizer))
        if (seen is not None and seen[0]() is optimizer) or len(self._optimizers) >= MOST_OPTIMIZERS:
            return
        weights = [one for group in getattr(optimizer, "param_groups", []) for one in group.get("params", [])]
        sizes = {id(one): int(quietly(one.numel) or 0) for one in weights}
        size = sum(sizes.values())
        self._optimizers[id(optimizer)] = weakref.ref(optimizer), sizes
        alive = (of for ref, of in self._optimizers.values() if ref() is not None)
        self.parameters = sum({key: count for of in alive for key, count in of.items()}.values())
        if weights and size >= self._largest:
            self._largest, self.optimizer = size, type(optimizer).__name__
            self.device = str(getattr(weights[0], "device", "cpu"))
            if str(getattr(weights[0], "dtype", "")) in ("torch.bfloat16", "torch.float16"):
                self.autocast = True  # it computes in that anyway
            kernels = [one for one in weights if getattr(one, "ndim", 0) == 4 and one.shape[1] > 1][:16]
            if len(kernels) == 1 and kernels[0].shape[-1] >= PATCH:
                kernels = []
            layout = getattr(sys.modules.get("torch"), "channels_last", None)
            apart = (one.is_contiguous(memory_format=layout) and not one.is_contiguous() for one in kernels)
            self.channels_last = quietly(lambda: any(apart)) if kernels else None
        self.look()


def rank() -> int | None:
    """Of this process: torch.distributed's where it is initialised (processes of `mp.spawn` have nothing else to tell
    them apart), else what a launcher has put into the environment; None without either."""
    if (distributed := _distributed()) is not None:
        return quietly(lambda: int(distributed.get_rank()))
    number = _number("RANK")
    return _number("LOCAL_RANK") if number is None else number  # Lightning sets only the second


def _distributed() -> Any:
    """torch.distributed, once the script has initialised it."""
    module = sys.modules.get("torch.distributed")
    ready = module is not None and quietly(lambda: module.is_available() and module.is_initialized())
    return module if ready else None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable)
    return int(text) if text and text.isdigit() else None
