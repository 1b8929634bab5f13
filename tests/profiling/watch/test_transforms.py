"""What is read off a script's transforms."""

from types import SimpleNamespace
from typing import Any

import pytest

from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader_config import LoaderConfig
from feedline.profiling.watch.facts import settings

CUT = {"scale": None, "crop_fraction": 0.875}
MIDDLE = {"train": False, "crop_fraction": 0.875}


@pytest.mark.parametrize(
    ("steps", "augment"),
    [
        ({"Resize": {"size": (64, 64)}}, {"whole": 1}), ({}, {}),
        ({"Resize": {"size": [64, 64]}, "ToTensor": {}}, {"whole": 1}),
        ({"Resize": {"height": 64, "width": 64}}, {"whole": 1}), ({"Resize": {"size": 64}}, {}),
        ({"Resize": {"size": (64, 48)}}, {}), ({"Resize": {}}, {}),
        ({"RandomHorizontalFlip": {}, "Resize": {"size": (64, 64)}}, {"whole": 1}),
        ({"SquarePad": {}, "Resize": {"size": (64, 64)}}, {}),
        ({"Resize": {"size": (64, 64), "__module__": "letterbox"}}, {}),
        ({"Resize": {"size": (64, 64)}, "RandomCrop": {"size": (56, 56)}}, {"whole": 0.875}),
        ({"Resize": {"size": (64, 64)}, "CenterCrop": {"size": (56, 56)}}, {"whole": 0.875, "train": False}),
        ({"Resize": {"size": 64}, "RandomHorizontalFlip": {}, "RandomCrop": {"size": (56, 56)}}, CUT),
        ({"Resize": {"size": [64]}, "CenterCrop": {"size": [56, 56]}}, MIDDLE),
        ({"Resize": {"size": (64, 64)}, "RandomCrop": {"height": 56, "width": 56}}, {"whole": 0.875}),
        ({"Resize": {"size": 64}, "RandomCrop": {"size": (56, 48)}}, {}),
        ({"Resize": {"size": 64}, "RandomCrop": {"size": (72, 72)}}, {}),
        ({"Resize": {"size": (64, 64)}, "RandomCrop": {"size": (64, 64), "padding": 4}}, {}),
        ({"Resize": {"size": 64}, "RandomCrop": {"size": (56, 56), "__module__": "lucky"}}, {}),
        ({"Resize": {"size": 64}, "RandomResizedCrop": {"size": (56, 56)}}, {}),
        ({"Resize": {"size": 64}, "CenterCrop": {"size": 60}, "RandomCrop": {"size": 56}}, {}),
        ({"Pad": {}, "Resize": {"size": 64}, "RandomCrop": {"size": (56, 56)}}, {}),
        ({"Resize": {"size": (64, 64)}, "Pad": {}, "RandomCrop": {"size": (64, 64)}}, {}),
        ({"Resize": {"size": (64, 64)}, "RandomRotation": {}, "RandomCrop": {"size": (56, 56)}}, {}),
        ({"Resize": {"size": 64, "max_size": 80}, "RandomCrop": {"size": (56, 56)}}, {}),
        ({"Resize": {"size": (64, 64)}, "RandomCrop": {"size": (56, 56)}, "ColorJitter": {}}, {"whole": 0.875}),
    ],
)  # fmt: skip
def test_how_squares_are_cut_is_known_by_resize_and_crop(steps: dict[str, Any], augment: dict[str, Any]) -> None:
    home = {"__module__": "torchvision.transforms"}
    members = [type(name, (), home | fields)() for name, fields in steps.items()]
    dataset = SimpleNamespace(transform=SimpleNamespace(transforms=members))
    assert settings(SimpleNamespace(dataset=dataset))["augment"] == augment


@pytest.mark.parametrize(
    ("augment", "known"),
    [
        (None, {}), (Augment(), {}), (Augment(scale=None), CUT), (Augment(whole=0.5, flip=0.0), {"whole": 0.5}),
        (Augment(train=False), MIDDLE), (Augment(train=False, whole=1), {"whole": 1, "train": False}),
    ],
)  # fmt: skip
def test_how_feedlines_loader_cuts_is_known(augment: Augment | None, known: dict[str, Any]) -> None:
    assert settings(SimpleNamespace(config=LoaderConfig(augment=augment)))["augment"] == known


@pytest.mark.parametrize(
    ("steps", "known"),
    [
        ({"ToTensor": {}, "Normalize": {"mean": (0.5, 0.4, 0.3), "std": [0.2] * 3}}, True),
        ({"Normalize": {"mean": (0.5, 0.4, 0.3), "std": [0.2] * 3, "max_pixel_value": 255.0}}, True),
        ({"ToDtype": {"scale": True}, "Normalize": {"mean": (0.5, 0.4, 0.3), "std": [0.2] * 3}}, True),
        ({"Normalize": {"mean": (0.5, 0.4, 0.3), "std": [0.2] * 3}}, False),  # of whatever was made of the picture
        ({"ToTensor": {}, "Normalize": {"mean": (123.7, 116.3, 103.5), "std": [58.4] * 3}}, False),
        ({"Normalize": {"mean": [0.5] * 3, "std": [1] * 3, "max_pixel_value": 255, "normalization": "image"}}, False),
        ({"ToTensor": {}, "Normalize": {"mean": (0.5,), "std": (0.2,)}}, False), ({"ToTensor": {}}, False),
    ],
)  # fmt: skip
def test_what_a_script_normalises_by_is_read(steps: dict[str, Any], known: bool) -> None:
    members = [type(name, (), fields)() for name, fields in steps.items()]
    dataset = SimpleNamespace(transform=SimpleNamespace(transforms=members))
    told = settings(SimpleNamespace(dataset=dataset))["normalize"]
    assert told == ([[0.5, 0.4, 0.3], [0.2, 0.2, 0.2]] if known else [])
