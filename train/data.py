"""The prepared dataset as training sees it: two loaders, what they hold, and all that can be wrong with them."""

from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.manifest import MANIFEST, Manifest, class_name, identified, prepared_splits, read_index
from feedline.pipeline.loader import Augment, Loader
from feedline.pipeline.loader_config import LoaderConfig
from feedline.pipeline.split import classes_in_use, labels_in_use
from feedline.train.config import TrainConfig
from feedline.train.distributed import World

MOST_BESIDE_A_MODEL = 8
"""Workers of a training that says no number; a loader by itself has up to `ranks.MOST_WORKERS`."""
IMAGES_SHOWN = 16


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Both splits of a prepared folder, checked against each other and against the run."""

    folder: Path
    train_samples: int
    val_samples: int | None
    """None when the run does not evaluate."""
    class_names: list[str]
    """Of the classes in use, by label."""
    identity: str
    """SHA-256 of the train split's manifest: what a checkpoint belongs to, with …"""
    part: dict[str, int | None] | None
    """… what `--classes` and `--samples` draw from it; None: all."""

    @property
    def classes(self) -> int:
        return len(self.class_names)


def open_dataset(config: TrainConfig) -> Dataset:
    """Raises DatasetError or UsageError with one line for whatever is not as it should be."""
    folder = config.dataset
    train, identity = _read_split(folder, "train")
    val = _read_split(folder, "val")[0] if config.eval_every else None
    names = [class_name(entry) for entry in train.classes]
    if val is not None and names != [class_name(entry) for entry in val.classes]:
        raise DatasetError(
            f"{folder}: train has {count_of(len(names), 'class')} and val {len(val.classes)}, or in another order: "
            "prepare both splits from one source"
        )
    of_classes = LoaderConfig(classes=config.classes, subset_seed=config.subset_seed)
    in_use = replace(of_classes, subset=config.samples)
    train_samples = _samples(folder / "train", train, in_use)
    val_samples = None if val is None else _samples(folder / "val", val, of_classes)
    drawn = "" if config.classes is None else f" of the {count_of(config.classes, 'class')} drawn"
    if not train_samples:
        raise DatasetError(f"{folder}/train has no samples{drawn}: prepare it again from a source that has some")
    if val_samples == 0:
        remedy = "prepare with --val-fraction, or train with --eval-every 0"
        raise DatasetError(f"{folder}/val has no samples{drawn}: {remedy}")
    names = [names[label] for label in classes_in_use(train, in_use)]
    return Dataset(folder=folder, train_samples=train_samples, val_samples=val_samples, class_names=names,
                   identity=identity, part=in_use.part)  # fmt: skip


def _samples(folder: Path, manifest: Manifest, in_use: LoaderConfig) -> int:
    """Those in use. Raises UsageError for more classes or samples than there are."""
    if in_use.part is None:
        return manifest.samples
    return int((labels_in_use(manifest, read_index(folder, manifest), in_use) >= 0).sum())


def _read_split(folder: Path, split: str) -> tuple[Manifest, str]:
    if (folder / split / MANIFEST).exists():
        manifest, identity = identified(folder / split)
        if manifest.split in ("train", "val") and manifest.split != split and not manifest.settings.get("foreign"):
            raise DatasetError(f"{folder / split} holds the split {manifest.split!r}: give the folder its name back")
        return manifest, identity
    others = sorted({str(path.parent) for path in prepared_splits(folder)} - {str(folder), str(folder.parent)})
    if split == "val" and (folder / "train" / MANIFEST).exists():
        raise DatasetError(f"{folder} has no val split: prepare with --val-fraction, or train with --eval-every 0")
    if others:
        raise UsageError(f"{folder} holds several prepared datasets: train from one of {', '.join(others)}")
    raise DatasetError(f"{folder} is not a prepared dataset (no train/{MANIFEST}): run `feedline prepare` first")


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
                f"--global-batch {config.global_batch} does not divide over {count_of(world_size, 'rank')} × "
                f"{count_of(config.accumulate, 'accumulation step')}"
            )
    delivered = per_rank * world_size
    if world_size > samples:
        raise UsageError(f"{world_size} ranks for {count_of(samples, 'training sample')}: start at most {samples}")
    if delivered > samples and config.policy == "drop":
        most = samples // world_size
        of_all = most * world_size * config.accumulate
        asked = f"--global-batch {of_all}" if config.global_batch else f"--batch-size {most}"
        raise UsageError(
            f"a batch of {delivered} ({per_rank} a rank) is larger than the {samples} "
            f"training samples: use {asked} or less, or --policy pad"
        )
    return BatchSizes(per_rank=per_rank, delivered=delivered, optimiser=delivered * config.accumulate)


def _loader(config: TrainConfig, world: World, split: str, dtype: torch.dtype, **options: Any) -> Loader:
    """Settings of the training that the loader has too mean the same there; `options` go before them."""
    workers = config.num_workers
    if workers is None:  # on a GPU one per core; where the model computes on the cores too, half of them
        cores = usable_cores() // world.local_world_size
        workers = max(1, min(MOST_BESIDE_A_MODEL, cores if world.device.type == "cuda" else cores // 2))
    names = {option.name for option in fields(LoaderConfig)} & {option.name for option in fields(config)}
    ours: dict[str, Any] = {"num_workers": workers, "device": world.device, "dtype": dtype, "rank": world.rank,
            "world_size": world.world_size}  # fmt: skip
    return Loader(config.dataset / split, **{**{name: getattr(config, name) for name in names}, **ours, **options})


def train_loader(
    config: TrainConfig, world: World, batch_size: int, dtype: torch.dtype, *, short_last_batch: bool = False
) -> Loader:
    """Normalised images in channels_last on the device, in the epoch plan's order. `short_last_batch`: without the
    padding of --policy pad."""
    augment = Augment(
        train=config.augment,
        scale=config.crop_scale,
        flip=0.5 if config.flip else 0.0,
        crop_fraction=config.eval_ratio,
    )
    return _loader(
        config, world, "train", dtype, batch_size=batch_size, train=config.augment, shuffle=True, augment=augment,
        subset=config.samples, short_last_batch=short_last_batch,
    )  # fmt: skip


def val_loader(config: TrainConfig, world: World, batch_size: int, dtype: torch.dtype) -> Loader:
    """Every val sample once over all ranks; padding carries label −1. What is bad is never replaced: a sample would
    count twice."""
    return _loader(
        config, world, "val", dtype, batch_size=config.eval_batch_size or batch_size, train=False,
        augment=Augment(train=False, crop_fraction=config.eval_ratio), policy="pad",
        on_bad="raise" if config.on_bad == "raise" else "skip", persistent_workers=False,
    )  # fmt: skip


def first_images(config: TrainConfig, world: World) -> torch.Tensor:
    """The first images of the epoch plan, for looking at; read in this process, apart from the run's own loader."""
    alone = replace(world, rank=0, world_size=1)
    here = replace(config, num_workers=0, policy="pad")
    with closing(train_loader(here, alone, IMAGES_SHOWN, torch.float32)) as loader:
        return next(iter(loader))[0]
