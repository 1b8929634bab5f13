"""The datasets for people who keep their own DataLoader."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.shards_dataset import Shards, ShardStream, collate_uint8

MakeSplit = Callable[..., Path]


small = transforms.Resize((8, 8))


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


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_the_workers_of_a_torch_dataloader(split: Path, start: str) -> None:
    loader = DataLoader(
        Shards(split, small), batch_size=16, num_workers=2, collate_fn=collate_uint8, multiprocessing_context=start
    )
    batches = list(loader)
    assert batches[0][0].shape == (16, 8, 8, 3)
    assert batches[0][0].dtype == torch.uint8
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(60))


def test_raw_shards_give_arrays(make_split: MakeSplit) -> None:
    image_HWC, _ = Shards(make_split(codec="raw"), decode="array")[0]
    assert image_HWC.shape == (40, 40, 3)
    assert image_HWC.flags.writeable


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_stock_shards_stream_every_sample_once_over_workers_and_ranks(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = sorted(split.glob("*.tar"))
    for workers in (0, 2, 4):  # 3 shards: one worker of four has nothing, and nobody hangs
        loader = DataLoader(ShardStream(urls), batch_size=20, num_workers=workers, collate_fn=collate_uint8)
        assert sorted(label for _, labels in loader for label in labels.tolist()) == list(range(60))
    seen: list[int] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        seen += [label for _, label in ShardStream(urls)]
    assert sorted(seen) == list(range(60))


def test_a_stream_is_shuffled_by_shard_and_epoch(split: Path) -> None:
    stream = ShardStream(sorted(split.glob("*.tar")) * 5, decode="bytes")
    first = [label for _, label in stream]
    assert first == [label for _, label in stream]
    stream.set_epoch(1)
    assert first != [label for _, label in stream]


@pytest.mark.parametrize("damage", ["header", "mark", "zeros"])
def test_an_archive_that_ends_in_its_middle_is_not_a_short_epoch(make_split: MakeSplit, damage: str) -> None:
    victim = make_split() / "train-000001.tar"
    with tarfile.open(victim) as tar:
        members = tar.getmembers()
    data = bytearray(victim.read_bytes())
    at = members[len(members) // 2].offset
    if damage == "header":
        data[at + 150] ^= 1
    elif damage == "mark":
        del data[at:]
    else:
        data[at : at + 512] = bytes(512)
    victim.write_bytes(data)
    with pytest.raises(DatasetError, match=r"train-000001.tar cannot be read to its end"):
        list(ShardStream([victim]))


def test_a_shard_that_is_cut_short_is_named(make_split: MakeSplit) -> None:
    victim = make_split() / "train-000001.tar"
    victim.write_bytes(victim.read_bytes()[:9000])
    with pytest.raises(DatasetError, match=r"train-000001.tar cannot be read to its end"):
        list(ShardStream([victim]))
