"""What a dataset's transforms do to a picture, read off their attributes."""

from collections.abc import Mapping, Sequence
from typing import Any

BEFORE_RESIZE = ("ToImage", "PILToTensor", "ToTensor", "RandomHorizontalFlip", "HorizontalFlip")
"""Which change no shape."""


def steps_of(held: Mapping[str, Any]) -> list[Any]:
    """Members of a Compose (or the one callable) among the attributes of a dataset, or of feedline's config."""
    home = ("transform", "transforms", "preprocess", "batch_transform")
    found = next((held[name] for name in home if held.get(name) is not None), None)
    if type(found).__name__ == "StandardTransform":
        found = getattr(found, "transform", None) or found
    if found is None:
        return []
    members = getattr(found, "transforms", None) or getattr(found, "steps", None)  # `Loader.like`'s
    return list(members[:32]) if isinstance(members, list | tuple) else [found]


def names(steps: Sequence[Any]) -> list[str]:
    told = ((getattr(step, "__name__", None), type(step).__name__) for step in steps)
    return [name if name and isinstance(name, str) else of_type for name, of_type in told]


def normalize(steps: Sequence[Any]) -> list[list[float]]:
    """torchvision's works on what ToTensor has made, that of albumentations on bytes. Larger means are no shares."""
    (one,) = [step for step in steps if type(step).__name__ == "Normalize"]
    on_bytes = (
        getattr(one, "max_pixel_value", None) == 255 and getattr(one, "normalization", "standard") == "standard"
    )
    scaled = any(type(step).__name__ == "ToDtype" and getattr(step, "scale", False) is True for step in steps)
    of_three = [[float(value) for value in of] for of in (one.mean, one.std)]
    up_to_one = all(len(of) == 3 for of in of_three) and 0 <= min(of_three[0]) <= max(of_three[0]) <= 1
    return of_three if up_to_one and (on_bytes or scaled or "ToTensor" in names(steps)) else []


def crops(steps: Sequence[Any]) -> dict[str, Any]:
    """How torchvision's or albumentations' Resize, with CenterCrop or RandomCrop behind it, makes squares, in words
    of `draw.regions.Augment`; {} where other steps crop, or others stand before."""
    resize, *behind = (step for step in steps if type(step).__name__ not in BEFORE_RESIZE)
    cuts = [step for step in behind if "crop" in type(step).__name__.lower()]
    if type(resize).__name__ != "Resize" or getattr(resize, "max_size", None) or cuts != behind[: len(cuts)]:
        return {}
    if len(cuts) > 1 or not all(map(_is_a_librarys, (resize, *cuts))):
        return {}
    square, resized_px = _side(resize)
    if not cuts:
        return {"whole": 1.0} if square else {}
    name, (_, px) = type(cuts[0]).__name__, _side(cuts[0])
    if name not in ("CenterCrop", "RandomCrop") or getattr(cuts[0], "padding", None) or px > resized_px:
        return {}
    share = {"whole" if square else "crop_fraction": px / resized_px}
    return share | ({"train": False} if name == "CenterCrop" else {} if square else {"scale": None})


def crops_of(config: Any) -> dict[str, Any]:
    """Of feedline's own loader, the same."""
    augment = config.augment
    if augment.of_resized is None:
        return {}
    still = {} if augment.train else {"train": False}
    if augment.whole:
        return {"whole": augment.whole} | still
    return {"crop_fraction": augment.crop_fraction} | (still or {"scale": None})


def _is_a_librarys(step: Any) -> bool:
    return type(step).__module__.partition(".")[0] in ("torchvision", "albumentations")


def _side(step: Any) -> tuple[bool, int]:
    """Whether it is a square's, and pixels; torchvision's have a `size`, those of albumentations height and width."""
    size = getattr(step, "size", None) or (step.height, step.width)
    sides = [size] if isinstance(size, int) else list(size)
    (px,) = set(sides)
    return len(sides) == 2, px
