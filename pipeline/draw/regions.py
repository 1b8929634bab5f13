"""Which part of an image a sample shows, and whether mirrored: torchvision's transforms as pure arithmetic.

The randomness of a sample is a hash of (seed, epoch, sample number): no state, so it does not matter who fills the
sample, when, or in what order. One BLAKE2b gives sixteen numbers in 1 µs; a NumPy generator takes 15.
"""

import math
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from feedline.pipeline.base.errors import UsageError

_ATTEMPTS = 10  # as torchvision's RandomResizedCrop
_COUNTER = struct.Struct("<QqqB")
_WORDS = struct.Struct("<16I")


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The usual ImageNet transforms, with torchvision's names and defaults."""

    train: bool = True
    """Random resized crop and flip; else resize and centre crop."""
    scale: tuple[float, float] | None = (0.08, 1.0)
    """Share of the image's area that a random crop covers; None: all are as large as the centre crop, at any place,
    as RandomCrop behind a Resize takes them."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of a random crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    crop_fraction: float = 224 / 256
    """The centre crop's side over the resized short side."""
    whole: float = 0.0
    """Above 0, images are stretched to squares, as Resize((N, N)) does, and this is a crop's side over that of the
    square: 1 shows all of an image, less its centre or, in training, as much at any place."""

    def __post_init__(self) -> None:
        try:
            (least, most), (narrow, wide) = self.scale or (1, 1), self.ratio
            ranges = 0 < least <= most <= 1 and 0 < narrow <= wide < math.inf
            shares = 0 <= self.flip <= 1 and 0 < self.crop_fraction <= 1 and 0 <= self.whole <= 1
        except (TypeError, ValueError) as error:
            raise UsageError(f"this is no augmentation ({error}): {self!r:.120}") from error
        if not ranges:
            raise UsageError(f"crop scale {self.scale} or ratio {self.ratio} is not a range of positive shares")
        if not shares:
            fractions = f"flip {self.flip}, crop fraction {self.crop_fraction} and whole {self.whole}"
            raise UsageError(f"{fractions} must lie between 0 and 1")

    @property
    def of_resized(self) -> float | None:
        """A crop's side over that of what Resize makes first; None: random crops of any size."""
        random = self.train and self.scale and not self.whole
        return None if random else self.whole or self.crop_fraction

    @property
    def shows_as_stored(self) -> bool:
        """Whether an image of the wanted size comes out as it went in: every pixel, none of them changed."""
        return not self.train and self.of_resized == 1


class Region(NamedTuple):
    """The pixels that are needed."""

    left_px: int
    top_px: int
    width_px: int
    height_px: int
    flip: bool = False
    inner: tuple[float, float, float, float] | None = None
    """What is shown of them, where that is not all: left and top from the region's own, width, height; unrounded."""


def choose(width_px: int, height_px: int, out_px: int, augment: Augment, seed: int, epoch: int,
           sample: int) -> Region:  # fmt: skip
    """The region of an image of this size that the sample shows in this epoch; `out_px` is the output's side."""
    if augment.of_resized is None:
        return random_region(width_px, height_px, augment, seed, epoch, sample)
    draws = _draws(seed, epoch, sample, 0) if augment.train else None
    return resized_region(width_px, height_px, out_px, augment, draws)


def random_region(width_px: int, height_px: int, augment: Augment, seed: int, epoch: int, sample: int) -> Region:
    """torchvision's RandomResizedCrop and RandomHorizontalFlip: the same distribution, from a hash."""
    draws = _draws(seed, epoch, sample, 0)
    flip = draws[0] < augment.flip * 2**32
    low, high = math.log(augment.ratio[0]), math.log(augment.ratio[1])
    smallest, largest = augment.scale or (1, 1)
    area = width_px * height_px
    for attempt in range(_ATTEMPTS):
        if attempt == 6:
            draws = _draws(seed, epoch, sample, 1)
        place = 3 + 2 * (attempt % 6)
        wanted = area * (smallest + (largest - smallest) * draws[place] / 2**32)
        aspect = math.exp(low + (high - low) * draws[place + 1] / 2**32)
        width, height = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < width <= width_px and 0 < height <= height_px:
            left, top = draws[1] * (width_px - width + 1) >> 32, draws[2] * (height_px - height + 1) >> 32
            return Region(left, top, width, height, flip)
    # none of the attempts fits: the largest centred region within the allowed ratios
    ratio = min(max(width_px / height_px, augment.ratio[0]), augment.ratio[1])
    width = max(1, min(width_px, round(height_px * ratio)))
    height = max(1, min(height_px, round(width_px / ratio)))
    return Region((width_px - width) // 2, (height_px - height) // 2, width, height, flip)


def _draws(seed: int, epoch: int, sample: int, block: int) -> tuple[int, ...]:
    """16 numbers of 32 bits that depend on the arguments only."""
    return _WORDS.unpack(blake2b(_COUNTER.pack(seed & 0xFFFF_FFFF_FFFF_FFFF, epoch, sample, block)).digest())


def resized_region(width_px: int, height_px: int, out_px: int, augment: Augment,
                   draws: tuple[int, ...] | None) -> Region:  # fmt: skip
    """What Resize (to out_px / crop_fraction or `whole`) and CenterCrop(out_px) show, or with `draws` RandomCrop and
    RandomHorizontalFlip, so that one resize gives the pixels that these steps give, rounding of sizes included."""
    short_px = round(out_px / (augment.of_resized or 1))
    if augment.whole:
        resized = (short_px, short_px)
    elif width_px <= height_px:
        resized = (short_px, int(short_px * height_px / width_px))
    else:
        resized = (int(short_px * width_px / height_px), short_px)
    if draws is None:
        starts = [round((side_px - out_px) / 2) for side_px in resized]
    else:
        starts = [draw * (side_px - out_px + 1) >> 32 for draw, side_px in zip(draws[1:3], resized, strict=True)]
    left_px, width, inner_left, inner_width = _axis(width_px, resized[0], starts[0], out_px)
    top_px, height, inner_top, inner_height = _axis(height_px, resized[1], starts[1], out_px)
    inner = (inner_left, inner_top, inner_width, inner_height)
    flip = draws is not None and draws[0] < augment.flip * 2**32
    return Region(left_px, top_px, width, height, flip, None if inner == (0, 0, width, height) else inner)


def _axis(side_px: int, resized_px: int, start: int, out_px: int) -> tuple[int, int, float, float]:
    """Along one axis: first pixel and number of pixels needed; from there to what is shown, and how much that is."""
    if resized_px == out_px:
        return 0, side_px, 0, side_px
    if resized_px == side_px:
        return start, out_px, 0, out_px
    scale = side_px / resized_px
    support = max(scale, 1) + 1  # how far the filter reaches beyond what is shown
    first_px = max(0, math.floor(start * scale - support))
    end_px = min(side_px, math.ceil((start + out_px) * scale + support))
    return first_px, end_px - first_px, start * scale - first_px, out_px * scale
