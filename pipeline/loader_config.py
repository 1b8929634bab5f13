"""What a loader can be told: one frozen record, checked when it is made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.device import IMAGENET_MEAN, IMAGENET_STD
from feedline.pipeline.draw.order import Policy
from feedline.pipeline.draw.regions import Augment

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What `Loader(split, ...)` takes; names mean what they mean in torch's DataLoader."""

    batch_size: int = 64
    """Per rank."""
    image_size: int = 224
    """Side of the square output, px; `set_image_size` changes it from the next epoch on."""
    train: bool = True
    """Random resized crop and flip, shuffled; else resize, centre crop, in index order."""
    num_workers: int | None = None
    """0: in the trainer itself. None: one per usable core (affinity, cgroup quota), at most MOST_WORKERS."""
    prefetch_factor: int = 2
    """Batches under way per worker."""
    persistent_workers: bool = True
    """Keep the workers between epochs."""
    pin_memory: bool | None = None
    """Page-lock the slots. None: where `device` is a CUDA device or CUDA is in use already."""
    seed: int = 0
    device: str | torch.device | None = None
    """None: uint8 NHWC on the CPU. Else normalised, channels_last NCHW in `dtype`, there."""
    dtype: torch.dtype = torch.float32
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    shuffle: bool | None = None
    """None: as `train` says."""
    policy: Policy | None = None
    """What becomes of an uneven end. None: drop in training, pad (label −1) in evaluation."""
    short_last_batch: bool = False
    """With `pad`: the padding is cut off again, as a DataLoader without drop_last has it; it may be empty."""
    rank: int | None = None
    world_size: int | None = None
    """None: from the process group, else from RANK and WORLD_SIZE, else 0 of 1."""
    subset: int | None = None
    """Only this many of the samples, the same in every epoch; chosen by the seed."""
    class_balanced: bool = False
    """Every class as often as the largest: small ones repeat."""
    window_shards: int | None = None
    """0: full random order. n: shards in random order, mixed within n of them. None: 0 on disk, else 8."""
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For remote splits: what fsspec takes (plain JSON)."""
    cache_dir: str | Path | None = None
    """Where remote shards are kept; shared by everyone on the host. None: $FEEDLINE_CACHE or ~/.cache/feedline."""
    cache_bytes: int = 64 << 30
    """The cache's size at most; 0: none, every sample is a range request."""
    on_bad: Literal["raise", "skip", "replace"] = "raise"
    """A sample that cannot be read, is not what was written, or cannot be decoded."""
    checksums: bool = True
    """Check each sample's CRC the first time it is read."""
    keep_freed_memory: bool = True
    """Where there is no GPU: freed memory stays in this process (`pipeline.base.process`), which spares a training
    step
    its page faults and leaves the process as large as its largest step."""
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
        for name, (least, most) in WHOLE.items():
            value = getattr(self, name)
            if value is not None or name not in MAY_BE_NONE:
                object.__setattr__(self, name, whole(name, value, least, most))
        for name in FLAGS:
            value = getattr(self, name)
            if not (value in (0, 1) if isinstance(value, int | np.bool) else value is None and name in MAY_BE_NONE):
                raise UsageError(f"{name} must be True or False, not {value!r:.80}")
        for name, known in WORDS.items():
            value = getattr(self, name)
            if value not in known and not (value is None and name in MAY_BE_NONE):
                raise UsageError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}, not {value!r:.80}")
        for name, (kinds, words) in KINDS.items():
            if not isinstance(getattr(self, name), kinds):
                raise UsageError(f"{name} must be {words}, not {getattr(self, name)!r:.80}")
        for name in ("transform", "batch_transform"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise UsageError(f"{name} must be a function, not {getattr(self, name)!r:.80}")
        self._check_device()

    def _check_device(self) -> None:
        try:
            torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError) as error:
            raise UsageError(f"device {self.device!r:.80} is none that torch knows") from error
        if not self.dtype.is_floating_point:
            raise UsageError(f"dtype must be a floating-point one, not {self.dtype}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(isinstance(one, int | float) and abs(one) < math.inf for one in values):
                raise UsageError(f"{name} must be three numbers, not {values!r:.80}")
        if min(self.std) <= 0:
            raise UsageError(f"std must be above 0, not {self.std}")


def whole(name: str, value: Any, least: int, most: int) -> int:
    """The value as an int. Raises UsageError for another kind, and beyond the limits."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limits = f"of at least {least}" if value is None or most == MANY else f"from {least} to {most:,}"
        raise UsageError(f"{name} must be a whole number {limits}, not {value!r:.80}")
    return int(value)


def checked_epoch(epoch: Any) -> int:
    """Raises UsageError."""
    return whole("epoch", epoch, 0, MOST_EPOCH)


def checked_state(state: Any) -> dict[str, Any]:
    """What `Loader.state_dict` gave, before anything of it is taken. Raises UsageError for anything else."""
    if not isinstance(state, Mapping) or cast("Mapping[str, Any]", state).get("version") != STATE_VERSION:
        raise UsageError(f"this is not a loader's state of version {STATE_VERSION}: {state!r:.80}")
    said = dict(cast("Mapping[str, Any]", state))
    missing = sorted({"seed", "epoch", "samples", "manifest"} - set(said))
    if missing:
        raise UsageError(f"this loader's state lacks {missing[0]!r}: {said!r:.80}")
    return said | {"epoch": checked_epoch(said["epoch"]), "samples": whole("samples", said["samples"], 0, MANY)}


MANY = 2**62
MOST_EPOCH = 2**55 - 1
"""As many as the order's key has room for."""
MOST_PX = 32_766
"""OpenCV's limit."""
WHOLE = {
    "batch_size": (1, 2**31 - 1), "image_size": (1, MOST_PX), "num_workers": (0, 4096),
    "prefetch_factor": (1, 65_536), "seed": (0, 2**64 - 1), "rank": (0, 2**31 - 1), "world_size": (1, 2**31 - 1),
    "subset": (1, MANY), "window_shards": (0, MANY), "cache_bytes": (0, MANY),
}  # fmt: skip
"""Name -> smallest and largest value."""
FLAGS = (
    "train", "persistent_workers", "pin_memory", "shuffle", "short_last_batch", "class_balanced", "checksums",
    "keep_freed_memory",
)  # fmt: skip
WORDS = {"decode": ("cpu", "gpu"), "policy": get_args(Policy), "on_bad": ("raise", "skip", "replace")}
KINDS: dict[str, tuple[Any, str]] = {
    "augment": (Augment | None, "an Augment"),
    "storage_options": (dict, "a dict"),
    "cache_dir": (str | Path | None, "a path"),
    "dtype": (torch.dtype, "a torch.dtype"),
    "mean": (tuple | list, "three numbers"),
    "std": (tuple | list, "three numbers"),
}
MAY_BE_NONE = ("num_workers", "rank", "world_size", "subset", "window_shards", "pin_memory", "shuffle", "policy")
