"""What loaders look like is read off them: nothing of the script's is set off by that."""

import functools
import io
import random
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from feedline.pipeline.like import Tail
from feedline.pipeline.loader_config import LoaderConfig
from feedline.profiling.profile import Profile
from feedline.profiling.watch.facts import Facts, own_code, settings
from tests.profiling.trainings import Training, data


class Odd(DataLoader[Any]):
    """One of its properties is for others."""

    @property
    def config(self) -> int:
        raise RuntimeError("not yet")


def test_what_a_loaders_properties_raise_goes_no_further() -> None:
    with Profile(resources=False) as seen:
        for _ in Odd(data(), batch_size=8):
            pass
    assert len(seen.recording.steps) == 8


class Named:
    """A transform that answers every question, as proxies of servers do."""

    def __getattr__(self, name: str) -> object:
        return object()

    def __call__(self, rows: Any) -> Any:
        return rows


def test_a_transforms_name_is_text() -> None:
    dataset = data()
    dataset.transform = Named()  # type: ignore[attr-defined]
    with Profile(resources=False) as seen:
        for _ in DataLoader(dataset, batch_size=8):
            pass
    assert seen.recording.loaders[0].transforms == ["Named"]


def test_two_loaders_of_which_the_script_has_iterators_alone_are_two() -> None:
    with Profile(resources=False) as seen:
        for _ in range(2):  # the second time in the places of those that are exhausted
            a, b = (iter(DataLoader(data(), batch_size=8)) for _ in range(2))
            for _ in zip(a, b, strict=True):
                pass
    assert [one.made for one in seen.recording.loaders] == [2, 2]


def test_what_a_dataset_holds_open_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("a", b"a")
    dataset = data()
    held = [zipfile.ZipFile(tmp_path / "photos.zip"), (tmp_path / "photos.zip").open("rb"), io.BytesIO(b"")]
    dataset.archive, dataset.file, dataset.bytes = held  # type: ignore[attr-defined]
    with Profile(resources=False) as seen:
        for size, each in ((1, dataset), (2, data())):
            list(DataLoader(Subset(each, [0, 1]), batch_size=size))
    assert [one.opened for one in seen.recording.loaders] == [["TensorDataset.archive", "TensorDataset.file"], []]
    for one in held:
        one.close()


def test_a_loader_that_is_made_anew_may_have_another_dataset_each_time() -> None:
    with Profile(resources=False) as seen:
        kept = data()
        for make in (data, lambda: kept):
            for _ in range(3):
                for _ in DataLoader(make(), batch_size=8):
                    pass
    assert [(one.made, one.datasets) for one in seen.recording.loaders] == [(6, 4)]


def test_an_iterator_that_is_made_anew_before_its_end_is_one_loader_s() -> None:
    with Profile(resources=False) as seen:
        for _ in range(4):
            batches = iter(DataLoader(data(), batch_size=8))
            for _ in range(3):
                next(batches)
    assert [one.made for one in seen.recording.loaders] == [4]


def test_of_a_dataset_no_code_is_asked_for_its_transforms() -> None:
    class Unsure(TensorDataset):
        transform = Named()

        def __len__(self) -> int:
            raise RuntimeError("not yet")

    dataset = Unsure(torch.zeros(8, 4))
    dataset.transform = Named()
    assert settings(SimpleNamespace(dataset=dataset))["transforms"] == ["Named"]


class Hardest(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter((7, 7, 3))


def test_a_sampler_of_the_scripts_own_is_named_and_one_that_weighs_or_leaves_out() -> None:
    samplers: dict[Any, str | None] = {None: None, Hardest(): "Hardest", RandomSampler(range(8)): None,
                                       SubsetRandomSampler([1, 2]): "SubsetRandomSampler"}  # fmt: skip
    for sampler, name in samplers.items():
        assert settings(DataLoader(data(), batch_size=2, sampler=sampler))["sampler"] == name
    grouped: Any = BatchSampler(Hardest(), 2, drop_last=False)
    assert settings(DataLoader(data(), batch_sampler=grouped))["sampler"] == "Hardest"
    assert settings(SimpleNamespace(dataset=data()))["sampler"] is None
    unbatched: dict[Any, str | None] = {grouped: "Hardest", None: None}
    for sampler, name in unbatched.items():
        assert settings(DataLoader(data(), batch_size=None, sampler=sampler))["sampler"] == name


def test_the_folder_of_classes_is_named_where_prepare_reads_it_as_the_script_does(tmp_path: Path) -> None:
    folders = pytest.importorskip("torchvision.datasets")
    for name in ("cat", "dog"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "0.jpg").touch()

    class Grouped(folders.ImageFolder):
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            return ["cat", "dog"], {"cat": 0, "dog": 0}

    whole, grouped, moved = (kind(tmp_path / "all") for kind in (folders.ImageFolder, Grouped, folders.ImageFolder))
    moved.root = str(tmp_path)  # as datasets do that are downloaded into one
    told = [settings(SimpleNamespace(dataset=one))["folder"] for one in (whole, Subset(whole, [0]), grouped, moved)]
    assert told == [str(tmp_path / "all"), None, None, None]


def test_of_feedlines_loader_the_transforms_that_it_was_given_are_named() -> None:
    config = LoaderConfig(transform=Tail([Named()]))
    ours, without = (SimpleNamespace(config=one) for one in (config, LoaderConfig()))
    assert settings(ours)["transforms"] == ["Named"] and settings(without)["transforms"] == []


class Counted:
    """A transform with random numbers of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        random.random()
        return image


def test_the_scripts_transforms_are_called_for_its_samples_only() -> None:
    datasets, transforms = pytest.importorskip("torchvision.datasets"), pytest.importorskip("torchvision.transforms")
    training, own = Training(), Counted()
    steps = [transforms.Resize(8), transforms.CenterCrop(8), own, transforms.ToTensor()]
    samples = datasets.FakeData(64, (3, 9, 9), 3, transform=transforms.Compose(steps))
    loader = DataLoader(samples, batch_size=8)
    with Profile(resources=False) as seen:
        for images, labels in loader:
            training.step((images[:, 0, 0, :4], labels))
    assert seen.recording.loaders[0].refused == ""
    assert own.calls == 64


class Mapped(Dataset[Any]):
    """Indexed by torch; the loop over it is for people, as in Hugging Face's."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4), 0

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


class InTurn(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Mapped())


@pytest.mark.parametrize(("samples", "name"), [(Mapped(), "__getitem__"), (InTurn(), "__iter__")])
def test_torch_s_rule_says_which_code_of_a_dataset_gives_samples(samples: Any, name: str) -> None:
    assert own_code(DataLoader(samples)) == f"{type(samples).__name__}.{name} is code of its own"


class Endless(TensorDataset):
    """It says so as many do."""

    def __len__(self) -> int:
        return sys.maxsize


def test_a_dataset_without_an_end_has_no_length() -> None:
    endless = Endless(*data().tensors)
    with Profile(resources=False) as seen:
        for _ in zip(range(8), DataLoader(endless, batch_size=8, sampler=range(64)), strict=False):
            pass
    assert seen.recording.loaders[0].dataset_samples is None


@functools.cache
def kept_by_a_function(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((256,), float(index)), index % 3


@functools.cache
def label(index: int) -> int:
    return index % 3


class Keeping(Dataset[Any]):
    def __init__(self, how: str) -> None:
        self.how, self.seen, self.rows = how, list[int](), [(number, 0) for number in range(48)]
        self.cache, self.places = dict[int, Any](), list[Any]([None] * 48)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.seen.append(index)
        if self.how == "a dict":
            return self.cache.setdefault(index, (torch.zeros(256), label(index)))
        if self.how == "places":
            self.places[index] = self.places[index] or {"image": torch.zeros(256).numpy(), "label": 1}
        return kept_by_a_function(index) if self.how == "a function" else (torch.zeros(256), label(index))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("a dict", "Keeping.cache"),
        ("places", "Keeping.places"),
        ("a function", "kept_by_a_function"),
        ("nothing", ""),
    ],
)
def test_what_a_dataset_keeps_of_its_samples_is_seen(how: str, where: str, workers: int) -> None:
    """In each worker that ends with its epoch; what it lists or notes of them is none of it."""
    kept_by_a_function.cache_clear()
    training = Training(256)
    loader = DataLoader(Subset(Keeping(how), range(48)), batch_size=8, num_workers=workers)
    with Profile(resources=False) as seen:
        for _ in range(2):
            for batch in loader:
                training.step(batch)
    assert seen.recording.loaders[0].keeps == ({where: 48 * (2 if workers else 1)} if where else {})


def test_a_model_in_half_precision_needs_no_autocast() -> None:
    facts = Facts()
    facts.see_optimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))
    assert facts.autocast is None
    facts.see_optimizer(torch.optim.SGD(torch.nn.Linear(2, 2, dtype=torch.bfloat16).parameters(), lr=0.1))
    assert facts.autocast


def test_of_several_optimisers_all_weights_count_once_and_the_largest_is_named() -> None:
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(20, 20)
    adam, sgd = torch.optim.Adam(small.parameters()), torch.optim.SGD(large.parameters(), lr=0.1)
    facts = Facts()
    for optimizer in (adam, sgd, adam, torch.optim.SGD([*small.parameters()], lr=0.1)):
        facts.see_optimizer(optimizer)
    assert (facts.parameters, facts.optimizer) == (6 + 420, "SGD")
    del sgd, optimizer
    facts.see_optimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(5))], lr=0.1))
    assert facts.parameters == 6 + 5, "what is gone is trained no more"


class Equal(torch.optim.SGD):  # noqa: PLW1641  it cannot be hashed
    def __eq__(self, other: object) -> bool:
        raise AssertionError("nothing of the script's own is called")


def test_an_optimiser_that_cannot_be_hashed_steps_as_ever() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = Equal(layer.parameters(), lr=0.1)
    with Profile(resources=False) as seen:
        for x, _ in DataLoader(TensorDataset(torch.rand(64, 2), torch.zeros(64)), batch_size=8):
            optimizer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()
    assert seen.recording.compute.parameters == 6 and seen.recording.optimizer_steps == 8


@pytest.mark.parametrize(
    ("kernels", "last"),
    [([(768, 3, 16, 16)], None), ([(8, 3, 3, 3)], False), ([(8, 3, 9, 9), (8, 8, 3, 3)], False)],
)
def test_a_transformer_of_pictures_does_not_convolve(kernels: list[tuple[int, ...]], last: bool | None) -> None:
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in (*kernels, (768, 768))]
    facts = Facts()
    facts.see_optimizer(torch.optim.SGD(weights, lr=0.1))
    assert facts.channels_last is last
