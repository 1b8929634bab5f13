"""`Loader.like(dataloader, split)`: the settings of a user's own torch DataLoader, in the loader's words.

Understood are torchvision's usual transforms, v1 and v2: RandomResizedCrop or Resize + CenterCrop, flip, ToTensor and
its v2 spellings, Normalize; what comes between crop and ToTensor and works on PIL images or uint8 tensors
(ColorJitter, RandAugment, …) is kept and runs in the workers. What is not understood is said, never dropped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, SequentialSampler

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.codecs.decode import Augment

_TO_FLOAT = {"ToTensor", "ToDtype", "ConvertImageDtype", "ConvertDtype"}
_NOTHING_TO_DO = {"ToImage", "PILToTensor", "ToPureTensor", "ToImageTensor", "Identity", "ToImagePIL", "RGB"}


def options_like(dataloader: DataLoader[Any], classes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """LoaderConfig fields that give what `dataloader` gives. Raises UsageError for what cannot be carried over."""
    if dataloader.batch_size is None:
        raise UsageError("a DataLoader with its own batch_sampler cannot be carried over: use Loader(split, ...)")
    _check_labels(dataloader.dataset, classes)
    options: dict[str, Any] = {
        "batch_size": dataloader.batch_size,
        "num_workers": dataloader.num_workers,
        "persistent_workers": dataloader.num_workers == 0 or dataloader.persistent_workers,
        "shuffle": not isinstance(dataloader.sampler, SequentialSampler) and _shuffles(dataloader.sampler),
        "policy": "drop" if dataloader.drop_last else "pad",
        "short_last_batch": not dataloader.drop_last,
    }
    if dataloader.num_workers and dataloader.prefetch_factor:
        options["prefetch_factor"] = dataloader.prefetch_factor
    if dataloader.pin_memory:
        options["pin_memory"] = torch.cuda.is_available()
    return options | _Recipe(_steps(dataloader.dataset)).options()


def _shuffles(sampler: Any) -> bool:
    return bool(getattr(sampler, "shuffle", True))  # DistributedSampler says; RandomSampler need not


def _check_labels(dataset: Any, classes: Sequence[dict[str, Any]]) -> None:
    """ImageFolder numbers classes by folder name; labels must mean the same in the shards."""
    theirs = getattr(dataset, "classes", None)
    if theirs is None or not all(isinstance(name, str) for name in theirs):
        return
    for key in ("wnid", "name"):
        ours = [entry.get(key) for entry in classes]
        if sorted(map(str, ours)) == sorted(theirs) and ours != list(theirs):
            raise UsageError("the DataLoader's dataset numbers its classes in another order than the shards do")


def _steps(dataset: Any) -> list[Any]:
    while getattr(dataset, "dataset", None) is not None:  # Subset and its kind: the shards are the whole
        raise UsageError(f"a {type(dataset).__name__} of a dataset cannot be carried over: use Loader(subset=N)")
    transform = getattr(dataset, "transform", None)
    if transform is None:
        raise UsageError("the DataLoader's dataset has no `transform` to take crop and size from")
    return list(_flatten(transform))


def _flatten(transform: Any) -> list[Any]:
    inner = getattr(transform, "transforms", None)
    if type(transform).__name__ in ("Compose", "Sequential") and inner is not None:
        return [step for one in inner for step in _flatten(one)]
    return [transform]


class _Recipe:
    """Reads transforms in order and collects what they amount to."""

    def __init__(self, steps: list[Any]) -> None:
        self._options: dict[str, Any] = {}
        self._augment: dict[str, Any] = {"train": False, "flip": 0.0}
        self._resize_px: int | None = None
        self._tail: list[Any] = []
        self._float = False
        for step in steps:
            self._read(step, type(step).__name__)

    def options(self) -> dict[str, Any]:
        if "image_size" not in self._options:
            raise UsageError("the DataLoader's transforms have no RandomResizedCrop or CenterCrop: no image size")
        options = self._options | {"augment": Augment(**self._augment), "train": self._augment["train"]}
        if self._float:
            options = {"device": "cpu", "dtype": torch.float32, "mean": (0.0,) * 3, "std": (1.0,) * 3} | options
        if self._tail:
            options["transform"] = Tail(self._tail)
        return options

    def _read(self, step: Any, name: str) -> None:
        if name in _TO_FLOAT:
            self._float = self._float or name != "ToDtype" or bool(getattr(step, "scale", True))
        elif name in _NOTHING_TO_DO:
            pass
        elif name == "Normalize":
            self._options |= {"mean": tuple(map(float, step.mean)), "std": tuple(map(float, step.std))}
        elif name == "RandomResizedCrop":
            self._options["image_size"] = _side(step.size, name)
            self._augment |= {"train": True, "scale": tuple(step.scale), "ratio": tuple(step.ratio)}
        elif name == "Resize":
            self._resize_px = _short_side(step.size)
        elif name == "CenterCrop":
            self._centre(_side(step.size, name))
        elif name == "RandomHorizontalFlip" and self._augment["train"] and not self._tail:
            self._augment["flip"] = float(step.p)
        elif "image_size" in self._options and not self._float:
            self._tail.append(step)
        else:
            where = "before the crop" if not self._float else "after ToTensor"
            raise UsageError(f"{name} {where} cannot be carried over: use Loader(split, transform=...)")

    def _centre(self, side_px: int) -> None:
        self._options["image_size"] = side_px
        if self._resize_px is not None:
            self._augment["crop_fraction"] = min(1.0, side_px / self._resize_px)


def _side(size: Any, name: str) -> int:
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise UsageError(f"{name} to {sides}: the loader gives square images only")
    return int(sides[0])


def _short_side(size: Any) -> int:
    if isinstance(size, int):
        return size
    if len(size) == 1:
        return int(size[0])
    raise UsageError(f"Resize to {list(size)} changes the aspect: prepare with --resize stretch instead")


class Tail:
    """The user's torchvision transforms on one uint8 image, in a worker; torch's random numbers follow `rng`."""

    def __init__(self, steps: list[Callable[[Any], Any]]) -> None:
        self.steps = steps

    def __call__(self, image_HWC: Any, rng: np.random.Generator) -> Any:
        from PIL import Image

        torch.set_num_threads(1)
        torch.manual_seed(int(rng.integers(1 << 62)))
        image: Any = Image.fromarray(image_HWC)
        for step in self.steps:
            image = step(image)
        return image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
