"""What a loader can be told: one frozen record, checked when it is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from feedline.pipeline.augment import Augment
from feedline.pipeline.device import IMAGENET_MEAN, IMAGENET_STD
from feedline.pipeline.errors import UsageError
from feedline.pipeline.order import Policy


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
    """Where there is no GPU: freed memory stays in this process (`pipeline.allocator`), which spares a training step
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
        for name in ("batch_size", "image_size", "prefetch_factor"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.num_workers is not None and self.num_workers < 0:
            raise UsageError(f"num_workers must be 0 or more, not {self.num_workers}")
        if self.decode not in ("cpu", "gpu"):
            raise UsageError(f"decode must be cpu or gpu, not {self.decode!r}")
        if self.policy not in (None, "drop", "pad", "wrap"):
            raise UsageError(f"policy must be drop, pad or wrap, not {self.policy!r}")
        if self.on_bad not in ("raise", "skip", "replace"):
            raise UsageError(f"on_bad must be raise, skip or replace, not {self.on_bad!r}")
