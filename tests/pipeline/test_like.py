"""A user's DataLoader, with one line changed, gives batches of the same kind from the shards."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import datasets, transforms
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.pipeline.loader import Augment, Loader
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.fixture
def folder(split: Path, tmp_path: Path) -> Path:
    """The split's images as an image folder of one class."""
    index = read_index(split)
    files = LocalFiles(split, read_manifest(split).shard_names)
    (tmp_path / "c0").mkdir()
    for sample in range(len(index)):
        (tmp_path / "c0" / f"{index.key(sample)}.jpg").write_bytes(files.read(*index.place(sample)))
    files.close()
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


@pytest.mark.parametrize("flip", [None, 0.0, 1.0])
def test_whole_pictures_stretched_to_squares_are_those_of_the_script(
    folder: Path, split: Path, flip: float | None
) -> None:
    flips = [] if flip is None else [transforms.RandomHorizontalFlip(flip)]
    theirs = dataloader(folder, [transforms.Resize((24, 24)), *flips, transforms.ToTensor()])
    ours = Loader.like(theirs, split, rank=0, world_size=1)
    for (images, _), (expected, _) in zip(ours, theirs, strict=True):
        assert images.shape == expected.shape
        assert (images - expected).abs().mean() < 0.01, "about 2 grey levels"


@pytest.mark.parametrize("px", [24, 45, 64])  # pictures of 48 x 40: smaller, between, larger
@pytest.mark.parametrize("flip", [None, 1.0])
def test_raw_shards_of_stretched_pictures_hold_the_very_pixels(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, px: int, flip: float | None
) -> None:
    output = Output(codec="raw", size_px=px, resize="stretch", filter="bilinear", enlarge=True)
    out = tmp_path_factory.mktemp("stretched")
    prepare(PrepareConfig(source=str(folder), out=str(out), outputs=(output,), engine="processes"))
    flips = [] if flip is None else [transforms.RandomHorizontalFlip(flip)]
    theirs = dataloader(folder, [transforms.Resize((px, px)), *flips, transforms.PILToTensor()])
    ours = Loader.like(theirs, out / "train")
    shown, expected = (torch.cat([images for images, _ in batches]) for batches in (ours, theirs))
    in_order = [{picture.numpy().tobytes() for picture in batch.contiguous()} for batch in
                (shown, expected.permute(0, 2, 3, 1))]  # fmt: skip
    assert in_order[0] == in_order[1] and len(in_order[0]) == 60
    cropped = dataloader(folder, [transforms.RandomResizedCrop(px), transforms.ToTensor()])
    with pytest.raises(UsageError, match="another aspect: prepare without --resize stretch"):
        Loader.like(cropped, out / "train")


@pytest.mark.parametrize("resized", [24, (24, 24)])
def test_random_crops_of_one_size_are_pieces_of_what_the_script_resizes(
    folder: Path, split: Path, tmp_path_factory: pytest.TempPathFactory, resized: int | tuple[int, int]
) -> None:
    """Of raw shards the very pixels of any of its 25 places, mirrored or not."""
    stretched = not isinstance(resized, int)
    if stretched:
        output = Output(codec="raw", size_px=24, resize="stretch", filter="bilinear", enlarge=True)
        out = tmp_path_factory.mktemp("stretched")
        prepare(PrepareConfig(source=str(folder), out=str(out), outputs=(output,), engine="processes"))
        split = out / "train"
    steps = [transforms.Resize(resized), transforms.RandomHorizontalFlip(), transforms.RandomCrop(20)]
    theirs = dataloader(folder, [*steps, transforms.PILToTensor()])
    ours = Loader.like(theirs, split, rank=0, world_size=1)
    shown = torch.cat([images for images, _ in (batch for _ in range(3) for batch in ours)]).permute(0, 3, 1, 2)
    images = [transforms.PILToTensor()(steps[0](image)) for image, _ in datasets.ImageFolder(folder)]
    number = {(flip, top): 0 for flip in (0, 1) for top in range(5)}
    for one in shown.float():
        least = []
        for flip, mine in enumerate((one, one.flip(2))):
            for theirs_CHW in images:
                places = theirs_CHW.unfold(1, 20, 1).unfold(2, 20, 1) - mine[:, None, None]
                far_of_top = places.abs().mean((0, 3, 4)).amin(1)
                least.append((float(far_of_top.min()), (flip, int(far_of_top.argmin()))))
        far, place = min(least)
        assert far == 0 if stretched else far < 6, "grey levels: one resize in place of two steps"
        number[place] += 1
    assert min(number.values()) >= 5, number


def test_shards_of_middle_squares_have_no_whole_pictures(
    folder: Path, split: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    manifest = shutil.copytree(split, tmp_path_factory.mktemp("squares") / "train") / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"shortest"', '"square"'))
    theirs = dataloader(folder, [transforms.Resize((24, 24)), transforms.ToTensor()])
    with pytest.raises(UsageError, match=r"middle square .*--resize stretch"):
        Loader.like(theirs, manifest.parent)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_flip_beside_a_centre_crop_is_kept_wherever_it_stands(folder: Path, split: Path, place: int) -> None:
    steps: list[Any] = [transforms.Resize(32), transforms.CenterCrop(28)]
    plain, mirrored = (
        torch.cat([images for images, _ in Loader.like(dataloader(folder, own), split, rank=0, world_size=1)])
        for own in (steps, [*steps[:place], transforms.RandomHorizontalFlip(1.0), *steps[place:]])
    )
    assert torch.equal(plain, mirrored.flip(2))


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
        ([transforms.ToTensor()], "which tell the image size: keep your transforms"),
        ([transforms.RandomResizedCrop((8, 9)), transforms.ToTensor()], "square"),
        ([transforms.Resize((8, 9)), transforms.ToTensor()], r"Resize to \[8, 9\]: .* square"),
        ([transforms.Resize((9, 9)), transforms.RandomResizedCrop(8)], "RandomResizedCrop after Resize"),
        ([transforms.Resize(9), transforms.Resize((8, 8)), transforms.ToTensor()], "a second Resize"),
        ([transforms.Pad(2), transforms.CenterCrop(8), transforms.ToTensor()], "Pad before the crop"),
        ([transforms.RandomResizedCrop(8), transforms.ToTensor(), transforms.RandomErasing()], "RandomErasing after"),
        ([transforms.RandomResizedCrop(8, interpolation=InterpolationMode.BICUBIC)], r"interpolation=bicubic\)"),
        ([v2.RandomResizedCrop(8, antialias=False)], r"RandomResizedCrop\(antialias=False\)"),
        ([transforms.Resize(9, interpolation=InterpolationMode.NEAREST), transforms.CenterCrop(8)], "nearest"),
        ([transforms.Resize(9, max_size=12), transforms.CenterCrop(8)], r"Resize\(max_size=12\)"),
        ([transforms.CenterCrop(8), transforms.ToTensor()], "CenterCrop without a Resize"),
        ([transforms.RandomCrop(8), transforms.ToTensor()], "RandomCrop without a Resize"),
        ([transforms.RandomCrop(8, padding=2)], r"RandomCrop\(padding=2\)"),
        ([transforms.Resize(8), transforms.RandomCrop(9)], r"RandomCrop\(9\), larger than"),
        ([transforms.Resize(8), transforms.CenterCrop(9)], "larger than"),
        ([transforms.Resize(32), transforms.RandomResizedCrop(8)], "prepare with --size 32"),
        ([transforms.RandomResizedCrop(16), transforms.Resize(8)], "Resize after RandomResizedCrop"),
        ([transforms.RandomResizedCrop(16), transforms.CenterCrop(8)], "CenterCrop after RandomResizedCrop"),
        ([transforms.Resize(16), transforms.Resize(12), transforms.CenterCrop(8)], "a second Resize"),
        ([transforms.RandomResizedCrop(8), transforms.ToTensor(), transforms.Normalize(MEAN, STD),
          transforms.Normalize(MEAN, STD)], "a second Normalize"),
        ([transforms.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32)], r"scale=False"),
        ([transforms.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.int32, scale=True)], "int32"),
        ([lambda image: image, transforms.RandomResizedCrop(8)], "<lambda> before the crop"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_over_is_said(folder: Path, split: Path, steps: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader.like(dataloader(folder, steps), split)


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ([transforms.Grayscale(1)], "Grayscale"),
        ([transforms.Pad(4)], "Pad"),
        ([v2.ToImage(), transforms.ColorJitter(0.1), v2.Pad(4)], "Pad"),
        ([transforms.FiveCrop(8)], "FiveCrop"),
        ([transforms.FiveCrop(8), transforms.PILToTensor()], "FiveCrop"),
        ([transforms.Pad(4), transforms.RandomCrop(16), transforms.Grayscale(1)], "Grayscale"),
    ],
)
def test_a_step_that_changes_the_picture_s_kind_or_size_is_refused_by_name(
    folder: Path, split: Path, steps: list[Any], name: str
) -> None:
    theirs = dataloader(folder, [transforms.RandomResizedCrop(16), *steps, transforms.ToTensor()])
    with pytest.raises(UsageError, match=f"^{name}, which leaves no RGB picture of 16 px, cannot be carried over"):
        Loader.like(theirs, split)


def test_a_step_whose_size_a_later_one_takes_back_is_carried_over(folder: Path, split: Path) -> None:
    steps = [transforms.RandomResizedCrop(16), transforms.Pad(4), transforms.RandomCrop(16), transforms.ToTensor()]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    loader = Loader.like(dataloader(folder, steps), split, num_workers=0, rank=0, world_size=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert next(iter(loader))[0].shape == (10, 3, 16, 16)


def double(batch: list[Any]) -> Any:
    return batch


class Three(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


class Faster(DataLoader[Any]):
    pass


class Backwards(SequentialSampler):
    pass


PART: Any = range(20)
STEPS = (transforms.RandomResizedCrop(24), transforms.ToTensor())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 60, 60)}, "sampler WeightedRandomSampler.*class_balanced"),
        ({"sampler": SubsetRandomSampler(range(60))}, "sampler SubsetRandomSampler"),
        ({"sampler": RandomSampler(range(60), replacement=True)}, "with replacement"),
        ({"sampler": RandomSampler(range(60), num_samples=30)}, "30 of 60 samples"),
        ({"sampler": SequentialSampler(range(20))}, "20 of 60 samples.*--val-fraction.* Shards"),
        ({"sampler": DistributedSampler(PART, 2, 0)}, "20 of 60 samples"),
        ({"sampler": Backwards(range(60))}, "sampler .*Backwards"),
        ({"sampler": [3, 2, 1]}, "sampler list"),
        ({"batch_size": 1, "batch_sampler": [[0, 1], [2, 3]]}, "batch_sampler list"),
        ({"batch_size": None}, "batch_size=None"),
        ({"collate_fn": double}, "collate_fn .*double"),
        ({"worker_init_fn": double}, "worker_init_fn .*double"),
    ],
)
def test_a_dataloader_s_own_parts_are_refused_by_name(
    folder: Path, split: Path, options: dict[str, Any], message: str
) -> None:
    arguments: Any = {"batch_size": 10} | options
    theirs = DataLoader(datasets.ImageFolder(folder, transforms.Compose(STEPS)), **arguments)
    with pytest.raises(UsageError, match=message):
        Loader.like(theirs, split)


def test_a_dataset_s_own_code_is_refused_by_name(folder: Path, split: Path) -> None:
    crop = transforms.Compose(STEPS)
    plain = datasets.ImageFolder(folder, crop)
    for theirs, message in (
        (DataLoader(Three(folder, crop), batch_size=10), r"Three\.__getitem__"),
        (DataLoader(datasets.ImageFolder(folder, crop, target_transform=str), batch_size=10), "target_transform"),
        (DataLoader(datasets.ImageFolder(folder, crop, loader=Image.open), batch_size=10), "loader PIL.Image.open"),
        (DataLoader(torch.utils.data.Subset(plain, [1, 2]), batch_size=10), "Subset.*--val-fraction.* Shards"),
        (DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)), batch_size=2), "TensorDataset"),
        (Faster(plain, batch_size=10), "Faster"),
        ([plain[0]], "list"),
    ):
        with pytest.raises(UsageError, match=message):
            Loader.like(theirs, split)


def test_labels_that_the_dataset_changed_are_refused(folder: Path, make_split: Any) -> None:
    """They would come out as the shards have them."""
    (folder / "c1").mkdir()
    for number, picture in enumerate(sorted((folder / "c0").iterdir())):
        if number % 2:
            picture.rename(folder / "c1" / picture.name)
    edited = datasets.ImageFolder(folder, transforms.Compose(STEPS))
    split = make_split(samples=60, name="named")
    path = split / "manifest.json"
    manifest = json.loads(path.read_text())
    classes = [{"name": "c0"}, {"name": "c1"}, *manifest["classes"][2:]]
    path.write_text(json.dumps(manifest | {"classes": classes}))
    edited.samples = [(name, 1 - label) for name, label in edited.samples]
    with pytest.raises(UsageError, match=r"has the label 1 for .*c0.*, whose class 'c0' is 0"):
        Loader.like(DataLoader(edited, batch_size=10), split)
    fewer = datasets.FakeData(60, (3, 32, 32), 3, transforms.Compose(STEPS))
    with pytest.warns(UserWarning, match="names no classes"):
        Loader.like(DataLoader(fewer, batch_size=10), split)


def test_a_part_of_what_the_dataloader_has(folder: Path, split: Path) -> None:
    dataset = datasets.ImageFolder(folder, transforms.Compose(STEPS))
    dataset.classes, dataset.class_to_idx = [str(label) for label in range(60)], {}
    dataset.targets = list(range(60))
    loader = Loader.like(DataLoader(dataset, batch_size=10), split, num_workers=0, classes=20, subset=9)
    seen = {label for _, labels_N in loader for label in labels_N.tolist() if label >= 0}
    assert len(seen) == 9 and max(seen) < 20


def test_fewer_samples_of_a_class_than_the_shards_have_are_refused(folder: Path, split: Path) -> None:
    dataset = datasets.ImageFolder(folder, transforms.Compose(STEPS))
    dataset.classes = [str(label) for label in range(60)]
    dataset.class_to_idx = {}
    with pytest.raises(UsageError, match="fewer samples of a class"):
        Loader.like(DataLoader(dataset, batch_size=10), split)


def test_another_dataset_s_classes_and_another_count_are_refused(folder: Path, make_split: Any) -> None:
    theirs = dataloader(folder, list(STEPS))
    with pytest.raises(UsageError, match="has 60 samples, the shards 20"):
        Loader.like(theirs, make_split(samples=20, shard_count=2))
    split = make_split(samples=60, name="named")
    path = split / "manifest.json"
    path.write_text(path.read_text().replace('"name": "7"', '"name": "zebra"'))
    with pytest.raises(UsageError, match="other classes than the shards"):
        Loader.like(theirs, split)


def test_the_order_comes_from_a_generator_or_a_distributed_sampler(folder: Path, split: Path) -> None:
    generator = torch.Generator().manual_seed(11)
    assert Loader.like(dataloader(folder, list(STEPS), shuffle=True, generator=generator), split).config.seed == 11
    own = RandomSampler(range(60), generator=generator)
    assert Loader.like(dataloader(folder, list(STEPS), sampler=own), split).config.seed == 11
    whole: Any = range(60)
    ranks = DistributedSampler(whole, num_replicas=3, rank=2, seed=5, shuffle=False)
    config = Loader.like(dataloader(folder, list(STEPS), sampler=ranks), split).config
    assert (config.rank, config.world_size, config.seed, config.shuffle) == (2, 3, 5, False)
    batches = BatchSampler(RandomSampler(range(60)), 7, drop_last=True)
    config = Loader.like(DataLoader(datasets.ImageFolder(folder, transforms.Compose(STEPS)), batch_sampler=batches),
                         split).config  # fmt: skip
    assert (config.batch_size, config.shuffle, config.policy) == (7, True, "drop")


@pytest.fixture
def second_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun says it."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")


@pytest.mark.usefixtures("second_of_four")
def test_unshuffled_every_rank_has_all_samples_as_it_had_from_the_dataloader(folder: Path, split: Path) -> None:
    loader = Loader.like(dataloader(folder, list(STEPS)), split, num_workers=0)
    assert [label for _, labels_N in loader for label in labels_N.tolist()] == list(range(60))


@pytest.mark.usefixtures("second_of_four")
def test_ranks_that_each_shuffle_for_themselves_are_refused_until_it_is_said_what_is_meant(
    folder: Path, split: Path
) -> None:
    theirs = dataloader(folder, list(STEPS), shuffle=True)
    with pytest.raises(UsageError, match=r"RandomSampler, which gives each of the 4 ranks all .* rank=.*world_size="):
        Loader.like(theirs, split)
    with pytest.raises(UsageError, match="together"):
        Loader.like(theirs, split, world_size=4)
    shared = Loader.like(theirs, split, rank=1, world_size=4)
    assert (shared.rank, shared.world_size, shared.config.policy) == (1, 4, "wrap")
    whole = Loader.like(theirs, split, rank=0, world_size=1)
    assert (whole.rank, whole.world_size, whole.config.policy) == (0, 1, "pad")


@pytest.mark.parametrize("ranks", [1, 4])
def test_who_asks_for_wrapping_has_whole_batches(folder: Path, split: Path, ranks: int) -> None:
    place = {"rank": 0, "world_size": ranks}
    loader = Loader.like(dataloader(folder, list(STEPS)), split, policy="wrap", num_workers=0, **place)
    assert {len(labels_N) for _, labels_N in loader} == {10}


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_of_a_distributed_sampler_has_as_many_batches_of_as_many_samples(
    folder: Path, split: Path, drop_last: bool
) -> None:
    """An empty last batch would be a mean of no losses, or a hang."""
    dataset: Any = range(60)
    for ranks in (4,) if drop_last else (4, 7):
        sizes, seen = list[list[int]](), Counter[bytes]()
        for rank in range(ranks):
            sampler = DistributedSampler(dataset, ranks, rank, drop_last=drop_last, shuffle=False)
            theirs = dataloader(folder, list(STEPS), sampler=sampler, drop_last=drop_last)
            batches = list(Loader.like(theirs, split, num_workers=0, augment=Augment(train=False)))
            sizes.append([len(labels_N) for _, labels_N in batches])
            assert len(batches) == len(theirs)
            seen.update(image.numpy().tobytes() for images, _ in batches for image in images)
            padded = Loader.like(theirs, split, num_workers=0, policy="pad")
            assert drop_last or all(len(labels_N) == 10 for _, labels_N in padded)
        each = -(-60 // ranks)
        assert all(one == sizes[0] for one in sizes)
        if not drop_last:
            assert sum(sizes[0]) == each and len(seen) == 60 and seen.total() == ranks * each


def test_steps_of_one_kind_add_up_and_see_the_kind_of_image_they_saw(folder: Path, split: Path) -> None:
    def inverted(image: Any) -> Any:
        assert isinstance(image, torch.Tensor), type(image)
        return 255 - image

    steps = [v2.ToImage(), v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(1.0), v2.RandomHorizontalFlip(1.0),
             inverted, v2.ToDtype(torch.float16, scale=True)]  # fmt: skip
    loader = Loader.like(dataloader(folder, steps), split, num_workers=0, rank=0, world_size=1)
    plain = Loader.like(dataloader(folder, [*steps[:2], steps[-1]]), split, num_workers=0, rank=0, world_size=1)
    assert loader.config.dtype == torch.float16
    (images, _), (expected, _) = next(iter(loader)), next(iter(plain))
    assert torch.allclose(images.float(), 1 - expected.float(), atol=2e-3), "mirrored twice and inverted"


def test_transforms_in_the_trainer_leave_its_own_random_numbers_and_threads_alone(folder: Path, split: Path) -> None:
    steps = [transforms.RandomResizedCrop(16), transforms.RandomRotation(20), transforms.ToTensor()]
    cv2.setNumThreads(3)
    loader = Loader.like(dataloader(folder, steps), split, rank=0, world_size=1)
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)
    assert (torch.get_num_threads(), cv2.getNumThreads()) == (threads, 3)


def test_an_address_keeps_its_slashes(folder: Path, split: Path) -> None:
    assert len(Loader.like(dataloader(folder, list(STEPS)), f"file://{split}", rank=0, world_size=1)) == 6


def test_another_numbering_of_the_classes_is_refused(tmp_path: Path, split: Path) -> None:
    for name in map(str, range(60)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / name / "x.png")
    steps = [transforms.RandomResizedCrop(8), transforms.ToTensor()]
    with pytest.raises(UsageError, match="another order"):  # "10" sorts before "2" in a folder
        Loader.like(dataloader(tmp_path, steps), split)


@pytest.mark.parametrize("one", [(0.5, 0.25), ((0.5,), (0.25,))])
def test_one_number_normalises_all_three_colours(folder: Path, split: Path, one: tuple[Any, Any]) -> None:
    steps = [transforms.RandomResizedCrop(8), transforms.ToTensor(), transforms.Normalize(*one)]
    dataset = datasets.ImageFolder(str(folder), transforms.Compose(steps))
    config = Loader.like(DataLoader(dataset, batch_size=4, shuffle=True), split, num_workers=0).config
    assert (config.mean, config.std) == ((0.5,) * 3, (0.25,) * 3)


@pytest.mark.gpu
def test_on_a_gpu_batches_are_what_the_host_s_are(folder: Path, split: Path) -> None:
    steps = [transforms.Resize(32), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    theirs = dataloader(folder, steps)
    on_host, on_gpu = (Loader.like(theirs, split, rank=0, world_size=1, device=where) for where in ("cpu", "cuda"))
    for (images, labels), (expected, expected_labels) in zip(on_gpu, on_host, strict=True):
        assert images.is_cuda and labels.is_cuda
        torch.testing.assert_close(images.cpu(), expected, rtol=2e-6, atol=2e-6)
        assert torch.equal(labels.cpu(), expected_labels)
