"""The prepared dataset as training sees it: two loaders, what they hold, and all that can be wrong with them."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.format.manifest import (
    MANIFEST,
    Manifest,
    manifest_hash,
    prepared_splits,
    read_index,
    read_manifest,
    refuse_address,
)
from feedline.pipeline.loader import Augment, Loader
from feedline.train.config import TrainConfig
from feedline.train.distributed import World

MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Both splits of a prepared folder, checked against each other and against the run."""

    folder: Path
    train: Manifest
    val: Manifest | None
    """None when the run does not evaluate."""

    @property
    def classes(self) -> int:
        return len(self.train.classes)

    @cached_property
    def class_names(self) -> list[str]:
        return [class_name(entry) for entry in self.train.classes]

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the train split's manifest: what a checkpoint belongs to."""
        return manifest_hash(self.folder / "train")


def class_name(entry: dict[str, Any]) -> str:
    names = entry.get("names") or [entry.get("name") or entry.get("wnid") or "?"]
    return str(names[0] if isinstance(names, list) else names)


def open_dataset(config: TrainConfig) -> Dataset:
    """Raises DatasetError or UsageError with one line for whatever is not as it should be."""
    folder = config.dataset
    refuse_address(folder)
    train = _read_split(folder, "train")
    val = _read_split(folder, "val") if config.eval_every else None
    if not train.samples:
        raise DatasetError(f"{folder}/train has no samples: prepare it again from a source that has some")
    if val is not None:
        _check_val(folder, train, val)
    for manifest in filter(None, (train, val)):
        _check_labels(folder / manifest.split, manifest, len(train.classes))
    return Dataset(folder=folder, train=train, val=val)


def _read_split(folder: Path, split: str) -> Manifest:
    if (folder / split / MANIFEST).exists():
        manifest = read_manifest(folder / split)
        if manifest.split in ("train", "val") and manifest.split != split and not manifest.settings.get("foreign"):
            raise DatasetError(f"{folder / split} holds the split {manifest.split!r}: give the folder its name back")
        return manifest
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist: give a folder that `feedline prepare` made")
    if split == "val" and (folder / "train" / MANIFEST).exists():
        raise DatasetError(f"{folder} has no val split: prepare with --val-fraction, or train with --eval-every 0")
    others = sorted({str(path.parent) for path in prepared_splits(folder)} - {str(folder), str(folder.parent)})
    if others:
        raise UsageError(f"{folder} holds several prepared datasets: train from one of {', '.join(others)}")
    raise DatasetError(f"{folder} is not a prepared dataset (no train/{MANIFEST}): run `feedline prepare` first")


def _check_val(folder: Path, train: Manifest, val: Manifest) -> None:
    if not val.samples:
        raise DatasetError(f"{folder}/val has no samples: prepare with --val-fraction, or train with --eval-every 0")
    if [class_name(entry) for entry in train.classes] != [class_name(entry) for entry in val.classes]:
        raise DatasetError(
            f"{folder}: train has {len(train.classes)} classes and val {len(val.classes)}, or in another order: "
            "prepare both splits from one source"
        )


def _check_labels(split_folder: Path, manifest: Manifest, classes: int) -> None:
    labels_N = read_index(split_folder, most_rows=manifest.samples).labels_N
    low, high = int(labels_N.min()), int(labels_N.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DatasetError(f"{split_folder} has label {wrong}, its manifest {classes} classes: prepare it again")


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    per_rank: int
    """Samples per rank and forward pass."""
    delivered: int
    """Samples over all ranks and one forward pass: what the loaders hand out at a time."""
    optimiser: int
    """Samples per optimiser step."""


def batch_sizes(config: TrainConfig, world_size: int, samples: int) -> BatchSizes:
    """Raises UsageError when a batch cannot be divided over the ranks or no batch can be filled."""
    per_rank = config.batch_size
    if config.global_batch:
        per_rank, rest = divmod(config.global_batch, world_size * config.accumulate)
        if rest or not per_rank:
            raise UsageError(
                f"--global-batch {config.global_batch} does not divide over {world_size} ranks × "
                f"{config.accumulate} accumulation steps"
            )
    delivered = per_rank * world_size
    if world_size > samples:
        raise UsageError(f"{world_size} ranks for {samples} training samples: start at most {samples}")
    if delivered > samples and config.policy == "drop":
        raise UsageError(
            f"a batch of {delivered} ({per_rank} on each of {world_size} ranks) is larger than the {samples} "
            f"training samples: use --batch-size {max(1, samples // world_size)} or less, or --policy pad"
        )
    return BatchSizes(per_rank=per_rank, delivered=delivered, optimiser=delivered * config.accumulate)


def worker_count(config: TrainConfig, world: World) -> int:
    """On a GPU one worker per core; where the model computes on the cores too, half of them."""
    if config.num_workers is not None:
        return config.num_workers
    cores = usable_cores() // world.local_world_size
    return max(1, min(MOST_WORKERS, cores if world.device.type == "cuda" else cores // 2))


def train_loader(config: TrainConfig, world: World, sizes: BatchSizes, dtype: torch.dtype) -> Loader:
    """Normalised images in channels_last on the device, in the epoch plan's order."""
    augment = Augment(
        train=config.augment,
        scale=config.crop_scale,
        flip=0.5 if config.flip else 0.0,
        crop_fraction=config.eval_ratio,
    )
    return Loader(
        config.dataset / "train",
        batch_size=sizes.per_rank,
        image_size=config.image_size,
        train=config.augment,
        shuffle=True,
        augment=augment,
        policy=config.policy,
        on_bad=config.on_bad,
        num_workers=worker_count(config, world),
        **_common(config, world, dtype),
    )


def val_loader(config: TrainConfig, world: World, sizes: BatchSizes, dtype: torch.dtype) -> Loader:
    """Every val sample once over all ranks; padding carries label −1."""
    return Loader(
        config.dataset / "val",
        batch_size=config.eval_batch_size or sizes.per_rank,
        image_size=config.image_size,
        train=False,
        augment=Augment(train=False, crop_fraction=config.eval_ratio),
        policy="pad",
        num_workers=worker_count(config, world),
        persistent_workers=False,
        **_common(config, world, dtype),
    )


def first_images(config: TrainConfig, world: World, most: int = 16) -> torch.Tensor:
    """The first images of the epoch plan, for looking at; read in this process, apart from the run's own loader."""
    sizes = BatchSizes(per_rank=most, delivered=most, optimiser=most)
    alone = replace(world, rank=0, world_size=1)
    with_one = replace(config, num_workers=0, policy="pad")
    loader = train_loader(with_one, alone, sizes, torch.float32)
    try:
        return next(iter(loader))[0]
    finally:
        loader.close()


def _common(config: TrainConfig, world: World, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "device": world.device,
        "dtype": dtype,
        "mean": config.mean,
        "std": config.std,
        "prefetch_factor": config.prefetch_factor,
        "seed": config.seed,
        "rank": world.rank,
        "world_size": world.world_size,
    }


def waited_s(loader: Loader) -> float:
    """Seconds the training loop has been blocked on this loader so far."""
    return float(loader.stats()["trainer"]["wait_s"])
