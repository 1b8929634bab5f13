"""`Loader.like(dataloader, split)`: the settings of a user's own torch DataLoader, in the loader's words.

Understood are torchvision's usual transforms, v1 and v2: RandomResizedCrop, Resize(N) or Resize((N, N)) and behind it
CenterCrop or RandomCrop, flip, ToTensor and its v2 spellings, Normalize; what comes between crop and ToTensor and
works on PIL images or uint8 tensors (ColorJitter, RandAugment, …) is kept and runs in the workers. What is not
understood is refused by name, not dropped.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.ranks import which_rank

if TYPE_CHECKING:
    from feedline.pipeline.format.manifest import Manifest  # pyarrow: a script that is profiled needs none

_TO_FLOAT = {"ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype"}
_SAME_PIXELS = {"ToImage", "PILToTensor", "ToPureTensor", "ToImageTensor", "Identity", "ToImagePIL", "RGB"}
_CROPS = {"RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop"}
LOOKS = 10_000
SHARDS = "Shards(split, transform=...) of feedline.pipeline.shards_dataset"
KEEP = f"keep your transforms and read the shards by {SHARDS}"
PART = f"prepare with --val-fraction, or take all parts from {SHARDS}"
"""`subset` would draw other samples: some of the user's validation among them."""
_OURS = {
    "interpolation": ("bilinear", 2),
    "antialias": (True, None, "warn"),
    "max_size": (None,),
    "padding": (None, 0),
}
"""How the loader resizes and crops; 2 is Pillow's number of bilinear."""


def options_like(
    dataloader: Any, given: Mapping[str, Any] = MappingProxyType({}), *, try_steps: bool = True
) -> dict[str, Any]:
    """LoaderConfig fields that give what `dataloader` gives; those that are `given` win. Raises UsageError for what
    cannot be carried over; `try_steps`: transforms of the user's own are called for that.

    Left out is what only says how torch runs its own workers: `timeout`, `multiprocessing_context`,
    `pin_memory_device`, `in_order` (batches always come in order), and `persistent_workers` (these hold no dataset
    that must be handed to them anew).
    """
    if type(dataloader) is not DataLoader:
        raise _refused(f"a {_name(dataloader)}, which is no plain DataLoader,")
    batches: Any = dataloader.batch_sampler
    dataset: Any = dataloader.dataset
    if type(batches) is not BatchSampler:
        raise _refused("batch_size=None" if batches is None else f"the batch_sampler {_name(batches)}")
    if dataloader.collate_fn is not torch.utils.data.default_collate:
        raise _refused(f"the collate_fn {_name(dataloader.collate_fn)}", "call it on the batches in your loop")
    if dataloader.worker_init_fn is not None:
        raise _refused(f"the worker_init_fn {_name(dataloader.worker_init_fn)}", "randomness follows `seed` anyway")
    _check_code(dataset)
    options: dict[str, Any] = {
        "batch_size": batches.batch_size,
        "num_workers": dataloader.num_workers,
    }
    if dataloader.num_workers and dataloader.prefetch_factor:
        options["prefetch_factor"] = dataloader.prefetch_factor
    if dataloader.pin_memory:
        options["pin_memory"] = True
    options |= _order(batches.sampler, len(dataset), dataloader.generator) | _place(batches.sampler, given)
    ranks = which_rank(options["rank"], options["world_size"])[1]
    options |= _end(batches.drop_last, ranks, given.get("policy"))
    return options | _Recipe(_flatten(dataset.transform)).options(try_steps=try_steps) | dict(given)


def check_same_data(dataset: Any, manifest: "Manifest", labels_N: npt.NDArray[np.int32], *, whole: bool) -> None:
    """Raises UsageError where the shards cannot hold the dataset's samples with the dataset's labels.

    `labels_N` are the shards' own. Compared are the number of samples, the class names, how many samples each class
    has, and in a folder dataset the label of a path with its class folder (of LOOKS paths at most). `whole`: it shows
    whole pictures, of which some shards have only the middle.
    """
    if whole and not manifest.shows(whole=True):
        raise UsageError("the shards hold the middle square of each picture, Resize((N, N)) shows all of it: "
                         "prepare with --resize stretch --filter bilinear")  # fmt: skip
    if not manifest.shows(whole=whole):
        raise UsageError("the shards hold pictures stretched to squares, and crops of those have another aspect: "
                         "prepare without --resize stretch")  # fmt: skip
    if len(dataset) not in (manifest.samples, sum(shard.planned_samples for shard in manifest.shards)):
        raise UsageError(
            f"the DataLoader's dataset has {len(dataset):,} samples, the shards {manifest.samples:,}: were they made "
            "from it? Else use Loader(split, ...)"
        )
    names = getattr(dataset, "wnids", None) or getattr(dataset, "classes", None)
    if names is None:
        warnings.warn(f"a {_name(dataset)} names no classes: nothing shows that the shards hold its samples",
                      stacklevel=3)  # fmt: skip
        return
    numbers: dict[str, int] = getattr(dataset, "class_to_idx", {})
    _check_folders(getattr(dataset, "samples", None), getattr(dataset, "root", None), numbers)
    names = [name if isinstance(name, str) else ", ".join(name) for name in names]
    known = [[str(entry.get(key)) for entry in manifest.classes] for key in ("wnid", "name")]
    if names in known and all(numbers.get(name, label) == label for label, name in enumerate(names)):
        targets = getattr(dataset, "targets", None)
        if targets is not None and len(targets) == len(dataset):
            theirs = np.bincount(np.asarray(targets), minlength=len(names))
            if (np.bincount(labels_N, minlength=len(theirs)) > theirs).any():
                raise UsageError("the DataLoader's dataset has fewer samples of a class than the shards: were its "
                                 "labels changed? Change them on the batches in your loop")  # fmt: skip
    elif sorted(names) in map(sorted, known):
        raise UsageError("the DataLoader's dataset numbers its classes in another order than the shards do")
    elif known[1] != [str(label) for label in range(len(known[1]))]:  # numbers are no names to compare
        raise UsageError("the DataLoader's dataset has other classes than the shards: were they made from it?")


def _check_folders(samples: Any, root: Any, numbers: Any) -> None:
    """A path's label is that of its class folder, unless the list of samples was edited or made by other code."""
    if not isinstance(samples, list) or not isinstance(numbers, dict) or root is None:
        return
    for path, label in samples[:: max(1, len(samples) // LOOKS)]:
        try:
            folder = Path(path).relative_to(root).parts[0]
        except (ValueError, TypeError):
            continue
        if numbers.get(folder, label) != label:
            raise UsageError(f"the DataLoader's dataset has the label {label} for {path}, whose class {folder!r} is "
                             f"{numbers[folder]}: labels of its own cannot be carried over")  # fmt: skip


def _order(sampler: Any, samples: int, generator: torch.Generator | None) -> dict[str, Any]:
    kind = type(sampler)
    if kind not in (SequentialSampler, RandomSampler, DistributedSampler):
        hint = "use Loader(split, class_balanced=True)" if kind.__name__ == "WeightedRandomSampler" else ""
        raise _refused(f"the sampler {_name(sampler)}", hint)
    if getattr(sampler, "replacement", False):
        raise _refused("the sampler RandomSampler with replacement")
    drawn = len(sampler.dataset if kind is DistributedSampler else sampler)
    if drawn != samples:
        raise _refused(f"a {kind.__name__} of {drawn} of {samples} samples", PART)
    if kind is DistributedSampler:
        return {"shuffle": sampler.shuffle, "seed": sampler.seed}
    generator = getattr(sampler, "generator", None) or generator
    return {"shuffle": kind is RandomSampler} | ({"seed": generator.initial_seed()} if generator else {})


def _place(sampler: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Rank and world size. Any sampler but a DistributedSampler gives every rank all samples: that is kept where they
    come in order. Raises UsageError where each rank would have shuffled them for itself."""
    if given.keys() & {"rank", "world_size"}:
        return {"rank": given.get("rank"), "world_size": given.get("world_size")}
    if type(sampler) is DistributedSampler:
        return {"rank": sampler.rank, "world_size": sampler.num_replicas}
    _, ranks = which_rank(None, None)
    if type(sampler) is RandomSampler and ranks > 1:
        raise _refused(
            f"a RandomSampler, which gives each of the {ranks} ranks all samples in an order of its own,",
            "take a DistributedSampler, or say rank=..., world_size=... to Loader.like (0 and 1: all samples)",
        )
    return {"rank": 0, "world_size": 1}


def _end(drop_last: bool, ranks: int, asked: str | None) -> dict[str, Any]:
    """What becomes of the last batch: several ranks share it, as a DistributedSampler has it. Of a padded one without
    its padding some would have nothing; who asks for wrapping wants whole batches."""
    if asked == "wrap":
        return {"policy": "wrap", "short_last_batch": False}
    if drop_last or (asked == "pad" and ranks > 1):
        return {"policy": "drop", "short_last_batch": False}
    return {"policy": "wrap" if ranks > 1 else "pad", "short_last_batch": True}


def _check_code(dataset: Any) -> None:
    """Only torchvision's own datasets are known to give what the shards hold: (image, class)."""
    if getattr(dataset, "dataset", None) is not None:  # Subset and its kind: the shards are the whole
        raise _refused(f"a {_name(dataset)} of a dataset", PART)
    if isinstance(dataset, IterableDataset):
        raise _refused(f"{_name(dataset)}, an IterableDataset,")
    for name in ("__getitem__", "__getitems__"):
        method = getattr(type(dataset), name, None)
        if method is not None and not str(getattr(method, "__module__", "")).startswith("torchvision."):
            raise _refused(f"{type(dataset).__name__}.{name}, which is not torchvision's,")
    loader = getattr(dataset, "loader", None)
    if loader is not None and loader.__module__ != "torchvision.datasets.folder":
        raise _refused(f"the loader {_name(loader)}")
    if getattr(dataset, "target_transform", None) is not None:
        raise _refused("a target_transform", "call it on the labels in your loop")
    if getattr(dataset, "transform", None) is None:
        raise UsageError("the DataLoader's dataset has no `transform` to take crop and size from")


def _refused(what: str, instead: str = "") -> UsageError:
    return UsageError(f"{what} cannot be carried over: {instead or KEEP}")


def _name(thing: Any) -> str:
    """Of a class, a function or an object's class; with the module where it is neither torch's nor torchvision's."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    known = f"{named.__module__}.".startswith(("torch.", "torchvision.", "builtins."))
    return named.__name__ if known else f"{named.__module__}.{named.__qualname__}"


def _flatten(transform: Any) -> list[Any]:
    if _name(transform) == "Compose":
        return [step for inner in transform.transforms for step in _flatten(inner)]
    return [transform]


class _Recipe:
    """Reads transforms in order and collects what they amount to."""

    def __init__(self, steps: list[Any]) -> None:
        self._options: dict[str, Any] = {}
        self._augment: dict[str, Any] = {"train": False, "flip": 0.0}
        self._resize_px: int | None = None
        self._crop, self._px = "", 0
        self._flips, self._own, self._float = True, False, False
        self._flip: Any = None
        self._tail: list[Any] = []
        for step in steps:
            self._read(step, _name(step))

    def options(self, *, try_steps: bool) -> dict[str, Any]:
        if not self._crop:
            crops = "RandomResizedCrop, CenterCrop, RandomCrop or Resize((N, N))"
            raise UsageError(f"the DataLoader's transforms have no {crops}, which tell the image size: {KEEP}")
        augment = Augment(**self._augment)
        options = self._options | {"image_size": self._px, "augment": augment, "train": augment.train}
        if self._float:
            options = {"device": "cpu", "dtype": torch.float32, "mean": (0.0,) * 3, "std": (1.0,) * 3} | options
        if self._own:
            options["transform"] = tail = Tail(self._tail)
            if try_steps and (culprit := tail.unfit_step(self._px)):
                what = f"{_name(culprit)}, which leaves no RGB picture of {self._px} px,"
                raise _refused(what, "call it on the batches in your loop")
        return options

    def _read(self, step: Any, name: str) -> None:
        if name in _TO_FLOAT:
            self._convert(step, name)
        elif name in _SAME_PIXELS:
            self._tail += [] if self._float else [step]  # steps behind it want tensors, or want none
        elif name == "Normalize":
            if "mean" in self._options:
                raise _refused("a second Normalize")
            try:  # one number is for all three
                of_three = [np.broadcast_to(np.asarray(of, float), 3).tolist() for of in (step.mean, step.std)]
            except (TypeError, ValueError) as error:
                raise _refused(f"Normalize({step.mean}, {step.std})") from error
            self._options |= dict(zip(("mean", "std"), map(tuple, of_three), strict=True))
        elif name in _CROPS and not (name == "RandomCrop" and self._crop and (self._own or step.padding)):
            self._cut(step, name)
        elif name == "RandomHorizontalFlip" and self._flips and not self._own:
            self._augment |= {"train": True, "flip": float(step.p)}
            self._flips, self._flip = False, step
        elif self._crop and not self._float:
            self._tail.append(step)
            self._own = True
        else:
            where = "before the crop" if not self._float else "after ToTensor"
            raise _refused(f"{name} {where}")

    def _convert(self, step: Any, name: str) -> None:
        dtype: Any = getattr(step, "dtype", torch.float32)
        if dtype == torch.uint8 and not self._float:
            return
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise _refused(f"{name}({dtype})")
        if not (self._float or getattr(step, "scale", True)):
            raise _refused(f"{name}(scale=False)", "write scale=True, and Normalize in shares of 1")
        self._options["dtype"], self._float = dtype, True

    def _cut(self, step: Any, name: str) -> None:
        for attribute, ours in _OURS.items():
            value: Any = getattr(step, attribute, ours[0])
            value = getattr(value, "value", value)
            if value not in ours:
                raise _refused(f"{name}({attribute}={value})")
        of_square = self._crop == "Resize" and not self._own and name in ("CenterCrop", "RandomCrop")
        if self._crop and not of_square:
            raise _refused(f"{name} after {self._crop}")
        sides = [step.size] if isinstance(step.size, int) else list(step.size)
        if name == "Resize":
            if self._resize_px is not None:
                raise _refused("a second Resize")
            if len(sides) == 1:
                self._resize_px = int(sides[0])
                return
        if len(set(sides)) != 1:
            raise UsageError(f"{name} to {sides}: the loader gives square images only")
        self._crop, self._px = name, int(sides[0])
        if name == "Resize":
            self._resize_px = self._px
            self._augment["whole"] = 1.0
        elif name == "RandomResizedCrop":
            if self._resize_px is not None:
                raise _refused(
                    "Resize before RandomResizedCrop", f"prepare with --size {self._resize_px} and leave it out"
                )
            self._augment |= {"train": True, "scale": tuple(step.scale), "ratio": tuple(step.ratio)}
        elif self._resize_px is None:
            raise _refused(f"{name} without a Resize before it", "write Resize(N), N the shards' short side")
        elif sides[0] > self._resize_px:
            raise _refused(f"{name}({sides[0]}), larger than Resize({self._resize_px}),")
        else:
            self._augment["whole" if of_square else "crop_fraction"] = sides[0] / self._resize_px
            if name == "RandomCrop":
                self._augment |= {"train": True, "scale": None}
            elif self._flip is not None:  # of the loader's own only random crops are mirrored
                self._tail, self._own = [self._flip, *self._tail], True
                self._augment |= {"train": False, "flip": 0.0}
            self._flips = self._flips and name == "RandomCrop"


class Tail:
    """The user's torchvision transforms on one uint8 image, in a worker; torch's random numbers follow `rng`."""

    def __init__(self, steps: list[Callable[[Any], Any]]) -> None:
        self.steps = steps

    def __call__(self, image_HWC: Any, rng: np.random.Generator) -> Any:
        image: Any = Image.fromarray(image_HWC)
        with torch.random.fork_rng(devices=[]):  # with num_workers=0 this is the trainer's own process
            torch.default_generator.manual_seed(int(rng.integers(1 << 62)))
            for step in self.steps:
                image = step(image)
        return _array(image)

    def unfit_step(self, px: int) -> Any:
        """What makes something else of a picture than uint8 RGB of `px` x `px`, which no later step makes good."""
        image: Any = Image.new("RGB", (px, px))
        culprit: Any = None
        with torch.random.fork_rng(devices=[]):
            for step in self.steps:
                try:
                    image = step(image)
                except Exception:  # the first batch says more of a step that fails by itself
                    return culprit
                culprit = None if _fits(image, px) else culprit or step
        return culprit


def _array(image: Any) -> npt.NDArray[Any]:
    return image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)


def _fits(image: Any, px: int) -> bool:
    try:
        array = _array(image)
    except (ValueError, TypeError, RuntimeError):  # several images, or a tensor of other dimensions
        return False
    return array.shape == (px, px, 3) and array.dtype == np.uint8
