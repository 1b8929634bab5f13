"""A user's DataLoader, with one line changed, gives batches of the same kind from the shards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets, transforms
from torchvision.transforms import v2

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.format.manifest import ShardReader, read_index, read_manifest
from feedline.pipeline.loader import Loader

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.fixture
def folder(split: Path, tmp_path: Path) -> Path:
    """The split's images as an image folder of one class."""
    index, manifest = read_index(split), read_manifest(split)
    reader = ShardReader(split, manifest, index)
    (tmp_path / "c0").mkdir()
    for sample in range(len(index)):
        (tmp_path / "c0" / f"{index.key(sample)}.jpg").write_bytes(reader.read(sample))
    reader.close()
    return tmp_path


def dataloader(folder: Path, steps: list[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(datasets.ImageFolder(folder, transforms.Compose(steps)), batch_size=10, **options)


def test_evaluation_gives_the_same_numbers_to_a_rounding(folder: Path, split: Path) -> None:
    steps = [transforms.Resize(32), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    theirs = dataloader(folder, steps)
    ours = Loader.like(theirs, split, rank=0, world_size=1)
    assert len(ours) == len(theirs)
    for (images, _), (expected, _) in zip(ours, theirs, strict=True):
        assert images.shape == expected.shape
        assert images.dtype == expected.dtype
        assert (images - expected).abs().mean() < 0.06, "about 4 grey levels: one resize instead of two steps"


def test_training_settings_are_taken_over(folder: Path, split: Path) -> None:
    steps = [transforms.RandomResizedCrop(24, scale=(0.3, 1)), transforms.RandomHorizontalFlip(0.25),
             transforms.ToTensor(), transforms.Normalize(MEAN, STD)]  # fmt: skip
    theirs = dataloader(folder, steps, shuffle=True, num_workers=2, drop_last=True, prefetch_factor=4)
    config = Loader.like(theirs, split).config
    assert (config.batch_size, config.num_workers, config.prefetch_factor, config.policy) == (10, 2, 4, "drop")
    assert (config.shuffle, config.image_size, config.mean, config.std) == (True, 24, MEAN, STD)
    assert config.augment is not None
    assert (config.augment.scale, config.augment.flip) == ((0.3, 1), 0.25)
    assert Loader.like(theirs, split, batch_size=3).config.batch_size == 3


def test_version_2_transforms_and_colour_jitter_run_in_the_workers(folder: Path, split: Path) -> None:
    steps = [v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ColorJitter(brightness=(0.0, 0.0)),
             v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]  # fmt: skip
    theirs = DataLoader(
        datasets.ImageFolder(folder, v2.Compose(steps)), batch_size=10, sampler=RandomSampler(range(60))
    )
    images, _ = next(iter(Loader.like(theirs, split, num_workers=1, rank=0, world_size=1)))
    assert images.shape == (10, 3, 16, 16)
    assert not images.any(), "brightness 0: black"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([transforms.ToTensor()], "no image size"),
        ([transforms.RandomResizedCrop((8, 9)), transforms.ToTensor()], "square"),
        ([transforms.Pad(2), transforms.CenterCrop(8), transforms.ToTensor()], "Pad before the crop"),
        ([transforms.CenterCrop(8), transforms.ToTensor(), transforms.RandomErasing()], "RandomErasing after"),
    ],
)
def test_what_cannot_be_carried_over_is_said(folder: Path, split: Path, steps: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader.like(dataloader(folder, steps), split)


def test_another_numbering_of_the_classes_is_refused(tmp_path: Path, split: Path) -> None:
    for name in map(str, range(60)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / name / "x.png")
    steps = [transforms.CenterCrop(8), transforms.ToTensor()]
    with pytest.raises(UsageError, match="another order"):  # "10" sorts before "2" in a folder
        Loader.like(dataloader(tmp_path, steps), split)
