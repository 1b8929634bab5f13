"""What a loader can be told: one frozen record, checked when it is made."""

import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import (
    BATCH_SIZE,
    IMAGE_SIZE,
    IMAGENET_MEAN,
    IMAGENET_STD,
    PREFETCH,
    OnBad,
    Policy,
    is_word,
    limited,
)
from feedline.pipeline.draw.regions import Augment

MANY = 2**62
MOST_EPOCH = 2**55 - 1
"""As many as the order's key has room for."""
MOST_PX = 32_766
"""OpenCV's limit."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What `Loader(split, ...)` takes; names mean what they mean in torch's DataLoader."""

    batch_size: int = limited(BATCH_SIZE, 1, 2**31 - 1)
    """Per rank."""
    image_size: int = limited(IMAGE_SIZE, 1, MOST_PX)
    """Side of the square output, px; `set_image_size` changes it from the next epoch on."""
    train: bool = True
    """Random resized crop and flip, shuffled; else resize, centre crop, in index order."""
    num_workers: int | Literal["auto"] | None = limited(None, 0, 4096, words=("auto",))
    """0: in the trainer itself. None: one per usable core (affinity, cgroup quota), at most MOST_WORKERS. auto: up to
    as many, as it is worth (`workers.headcount`); they come and go, and the order stays the same."""
    prefetch_factor: int = limited(PREFETCH, 1, 65_536)
    """Batches under way per worker; at most 128 in all."""
    persistent_workers: bool = True
    """Keep the workers between epochs."""
    pin_memory: bool | None = None
    """Page-lock the slots, where there is a GPU. None: where `device` is one or CUDA is in use already."""
    seed: int = limited(0, 0, 2**64 - 1)
    device: str | int | torch.device | None = None
    """None: uint8 NHWC on the CPU. Else normalised, channels_last NCHW in `dtype`, there."""
    dtype: torch.dtype = torch.float32
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    shuffle: bool | None = None
    """None: as `train` says."""
    policy: Policy | None = None
    """What becomes of an uneven end. None: drop in training, pad (label −1) in evaluation."""
    short_last_batch: bool = False
    """As a DataLoader without drop_last has it. With `pad` the padding is cut off again, and the batch may be empty;
    with `wrap` it is as short on every rank, and only what makes them equal is repeated."""
    rank: int | None = limited(None, 0, 2**31 - 1)
    world_size: int | None = limited(None, 1, 2**31 - 1)
    """None: from the process group, else from RANK and WORLD_SIZE, else 0 of 1."""
    classes: int | None = limited(None, 1, MANY)
    """Only so many of the classes, numbered anew from 0 in the order they had; chosen by the seed."""
    subset: int | None = limited(None, 1, MANY)
    """Only this many of the samples (of these classes), the same in every epoch; chosen by the seed."""
    subset_seed: int | None = limited(None, 0, 2**64 - 1)
    """Of what `classes` and `subset` choose. None: `seed`."""
    class_balanced: bool = False
    """Every class as often as the largest: samples of small ones repeat, cropped anew each time."""
    window_shards: int | None = limited(None, 0, MANY)
    """0: full random order. n: shards in random order, mixed within n of them. None: 0 on disk, else 8."""
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For remote splits: what fsspec takes (plain JSON)."""
    cache_dir: str | Path | None = None
    """Where remote shards are kept; shared by everyone on the host. None: $FEEDLINE_CACHE or ~/.cache/feedline."""
    cache_bytes: int = limited(64 << 30, 0, MANY)
    """The cache's size at most; 0: none, every sample is a range request."""
    on_bad: OnBad = "raise"
    """A sample that cannot be read, is not what was written, or cannot be decoded."""
    checksums: bool = True
    """Check each sample's CRC the first time it is read."""
    keep_freed_memory: bool = True
    """Where there is no GPU: freed memory stays in this process (`pipeline.base.process`), which spares a training
    step its page faults and leaves the process as large as its largest step."""
    decode: Literal["cpu", "gpu"] = "cpu"
    """gpu: workers only cut the JPEG regions out, nvJPEG decodes them on `device`; falls back with a warning."""
    augment: Augment | None = None
    """None: what `train` says, with the usual parameters."""
    transform: Callable[..., Any] | None = None
    """The user's own, on each image in the worker: (image_HWC uint8[, rng]) -> image_HWC uint8 of the same size."""
    batch_transform: Callable[..., Any] | None = None
    """On each batch in the worker: (images_NHWC, labels_N) -> None (written in place) or a new pair."""

    def __post_init__(self) -> None:
        """Raises UsageError, in one line, for a value that cannot be meant."""
        for option, kinds in _options():
            value = getattr(self, option.name)
            if (value is None and NoneType in kinds) or is_word(option, value):
                continue
            if limits := option.metadata.get("limits"):
                object.__setattr__(self, option.name, whole(option.name, value, *limits, *option.metadata["words"]))
            elif wanted := _unmet(value, kinds):
                raise UsageError(f"{option.name} must be {wanted}, not {value!r:.80}")
        try:
            torch.device("cpu" if self.device is None else self.device)
        except RuntimeError as error:
            raise UsageError(f"device {self.device!r:.80} is none that torch knows") from error
        if not self.dtype.is_floating_point:
            raise UsageError(f"dtype must be a floating-point one, not {self.dtype}")
        if min(self.std) <= 0:
            raise UsageError(f"std must be above 0, not {self.std}")
        try:
            json.dumps(self.storage_options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"storage_options must be plain JSON, for the workers: {error}") from error
        if self.subset is not None and self.class_balanced:
            raise UsageError("subset and class_balanced both say which samples to take: give one of them")

    @property
    def part(self) -> dict[str, int | None] | None:
        """What `classes` and `subset` leave of a split, in plain JSON; None: all of it."""
        if self.classes is None and self.subset is None:
            return None
        seed = self.seed if self.subset_seed is None else self.subset_seed
        return {"classes": self.classes, "samples": self.subset, "seed": seed}

    @property
    def drawing(self) -> Augment:
        return self.augment or Augment(train=self.train)


@cache
def _options() -> list[tuple[Any, tuple[Any, ...]]]:
    """Every field, with the kinds that its annotation names."""
    hints = get_type_hints(LoaderConfig)
    unions = {name for name, hint in hints.items() if get_origin(hint) in (Union, UnionType)}
    kinds = {name: get_args(hint) if name in unions else (hint,) for name, hint in hints.items()}
    return [(option, kinds[option.name]) for option in fields(LoaderConfig)]


def _unmet(value: Any, kinds: tuple[Any, ...]) -> str:
    """What the value should have been, in words; "" where it is of one of the kinds."""
    kind, origin = kinds[0], get_origin(kinds[0])
    if kind is bool:
        return "" if isinstance(value, int | np.bool) and value in (0, 1) else "True or False"
    if origin is Literal:
        *words, last = get_args(kind)
        return "" if value in get_args(kind) else f"{', '.join(words)} or {last}"
    if origin is Callable:
        return "" if callable(value) else "a function"
    if origin is tuple:
        numbers = isinstance(value, tuple | list) and all(isinstance(part, int | float) for part in value)
        return "" if numbers and len(value) == 3 and all(map(math.isfinite, value)) else "three numbers"
    known = tuple(get_origin(kind) or kind for kind in kinds)
    names = (f"{'torch.' if kind.__module__ == 'torch' else ''}{kind.__name__}" for kind in known if kind != NoneType)
    return "" if isinstance(value, known) else " or ".join(names)


def whole(name: str, value: Any, least: int, most: int, *words: str) -> int:
    """The value as an int. Raises UsageError, which names `words` too, for another kind and beyond the limits."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limits = f"of at least {least}" if value is None or most == MANY else f"from {least} to {most:,}"
        limits += "".join(f" or {word!r}" for word in words)
        raise UsageError(f"{name} must be a whole number {limits}, not {value!r:.80}")
    return int(value)


def instead_of(name: str) -> str:
    """What was meant by an option that there is none of."""
    if name == "drop_last":
        return 'use policy="drop", "pad" or "wrap"'
    near = difflib.get_close_matches(name, [option.name for option in fields(LoaderConfig)], 1)
    return f"did you mean {near[0]!r}?" if near else "see LoaderConfig"
