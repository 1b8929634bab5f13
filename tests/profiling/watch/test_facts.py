"""What loaders look like is read off them: nothing of the script's is set off by that."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader

from feedline.profiling.profile import Profile
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
