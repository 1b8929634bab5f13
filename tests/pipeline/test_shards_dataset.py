"""The datasets for people who keep their own DataLoader."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.shards_dataset import Shards

MakeSplit = Callable[..., Path]


small = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])


def test_samples_by_number(split: Path) -> None:
    shards = Shards(split)
    image, label = shards[7]
    assert isinstance(image, Image.Image)
    assert (image.size, label, len(shards)) == ((48, 40), 7, 60)
    assert shards[-1][1] == 59
    assert shards.classes[3] == "3"
    assert shards.targets.tolist() == list(range(60))
    with pytest.raises(IndexError):
        shards[60]
    with pytest.raises(UsageError):
        Shards(split, decode="jpeg")
    with pytest.raises(UsageError, match="https://host/train is an address"):
        Shards("https://host/train")


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_in_the_workers_of_a_torch_dataloader(split: Path, start: str) -> None:
    loader = DataLoader(Shards(split, small), batch_size=16, num_workers=2, multiprocessing_context=start)
    batches = list(loader)
    assert batches[0][0].shape == (16, 3, 8, 8)
    assert batches[0][0].dtype == torch.uint8
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(60))


def test_raw_shards_give_arrays(make_split: MakeSplit) -> None:
    image_HWC, _ = Shards(make_split(codec="raw"), decode="array")[0]
    assert image_HWC.shape == (40, 40, 3)
    assert image_HWC.flags.writeable


def test_shards_of_planes_give_colours(make_split: MakeSplit) -> None:
    folder = make_split(codec="planes")
    image, _ = Shards(folder)[0]
    assert (image.mode, image.size) == ("RGB", (48, 40))
    assert Shards(folder, decode="array")[0][0].shape == (40, 48, 3)


def test_a_split_prepared_anew_is_not_read_by_its_old_index(make_split: MakeSplit) -> None:
    """Raw members lie where those did that the index knows."""
    split = make_split(12, 1, codec="raw")
    shards = Shards(split, decode="array")
    first = shards[0][0].copy()
    shard = split / shards.manifest.shards[0].name
    data = shard.read_bytes()
    at, length = (int(number) for number in shards._index.place(3)[1:])
    shard.write_bytes(data[: at + length - 9] + bytes(9) + data[at + length :])
    assert (shards[0][0] == first).all()
    with pytest.raises(DatasetError, match=r"train-000000.tar: sample 's00003': .*wrong CRC.*prepared anew"):
        shards[3]
