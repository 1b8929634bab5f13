"""From a sample's bytes straight into its place in a batch: choose a region, decode little more than it, resize.

    jpeg, keep   cut the region's tiles out of the file, decode them (at 1/2, 1/4 or 1/8 where the output is that much
                 smaller: libjpeg's scaled DCT), resize the region into the slot
    raw          the region is a view of the bytes; resize it into the slot
    planes       where the output is larger: resize Y, U, V apart, then convert; else convert the region, then resize

The filter: where both sides grow (or stay), bilinear (OpenCV, straight into the slot); where one shrinks, Pillow's
antialiased bilinear, which is also what torchvision's transforms do on PIL images. With Pillow-SIMD it takes a
sixth of OpenCV's area filter. What happens to a sample depends on (seed, epoch, sample number) only.

No torch here: loader workers run this.
"""

import io
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from feedline.pipeline import jpeg
from feedline.pipeline.counters import FIELD, Clock
from feedline.pipeline.errors import DatasetError, UsageError

if TYPE_CHECKING:  # shards imports pyarrow, which no worker needs
    from feedline.pipeline.shards import Codec

Pixels = npt.NDArray[np.uint8]
Kernel = Callable[[bytes, Pixels, int, int, Clock], None]
"""(data, out_HWC, sample, epoch, clock): fills `out_HWC`. Raises DatasetError for bytes that cannot be used."""

cv2.setNumThreads(1)  # a worker per core: threads inside one would only queue
_DECODE, _TRANSFORM = FIELD["decode"], FIELD["transform"]
_ATTEMPTS = 10  # as torchvision's RandomResizedCrop
_NPY_MAGIC = b"\x93NUMPY\x01\x00"


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The usual ImageNet transforms, with torchvision's names and defaults."""

    train: bool = True
    """Random resized crop and flip; else resize and centre crop."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area that a random crop covers."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of a random crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    crop_fraction: float = 224 / 256
    """Evaluation: the centre crop's side over the resized short side."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise UsageError(f"crop scale {self.scale} or ratio {self.ratio} is not a range of positive shares")
        if not 0 <= self.flip <= 1 or not 0 < self.crop_fraction <= 1:
            raise UsageError(f"flip {self.flip} and crop fraction {self.crop_fraction} must lie between 0 and 1")


class Region(NamedTuple):
    left_px: int
    top_px: int
    width_px: int
    height_px: int
    flip: bool = False


# --- which region -------------------------------------------------------------------------------------


def random_region(width_px: int, height_px: int, augment: Augment, seed: int, epoch: int, sample: int) -> Region:
    """torchvision's RandomResizedCrop and RandomHorizontalFlip, from 64 bytes of hash instead of a generator: one
    BLAKE2b costs 1 µs, a NumPy generator 15."""
    draws = _draws(seed, epoch, sample, 0)
    flip, across, down = draws[0] < augment.flip, draws[1], draws[2]
    low, high = math.log(augment.ratio[0]), math.log(augment.ratio[1])
    smallest, largest = augment.scale
    area = width_px * height_px
    for attempt in range(_ATTEMPTS):
        if attempt == 6:
            draws = _draws(seed, epoch, sample, 1)
        place = 3 + 2 * (attempt % 6)
        wanted = area * (smallest + (largest - smallest) * draws[place])
        aspect = math.exp(low + (high - low) * draws[place + 1])
        width, height = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < width <= width_px and 0 < height <= height_px:
            left, top = int(across * (width_px - width + 1)), int(down * (height_px - height + 1))
            return Region(left, top, width, height, flip)
    return _fallback(width_px, height_px, augment)._replace(flip=flip)


def _draws(seed: int, epoch: int, sample: int, block: int) -> tuple[float, ...]:
    """16 numbers in [0, 1) that depend on the arguments only."""
    counter = struct.pack("<QqqB", seed & 0xFFFF_FFFF_FFFF_FFFF, epoch, sample, block)
    return tuple(number / 2**32 for number in struct.unpack("<16I", blake2b(counter).digest()))


def _fallback(width_px: int, height_px: int, augment: Augment) -> Region:
    """The largest centred region within the allowed ratios."""
    ratio = min(max(width_px / height_px, augment.ratio[0]), augment.ratio[1])
    width = max(1, min(width_px, round(height_px * ratio)))
    height = max(1, min(height_px, round(width_px / ratio)))
    return Region((width_px - width) // 2, (height_px - height) // 2, width, height)


def centre_region(width_px: int, height_px: int, augment: Augment) -> Region:
    """The part of the image that Resize and CenterCrop would show: one resize of less instead of two steps."""
    side = max(1, round(min(width_px, height_px) * augment.crop_fraction))
    return Region((width_px - side) // 2, (height_px - side) // 2, side, side)


# --- the kernel ---------------------------------------------------------------------------------------


def make_kernel(codec: "Codec", augment: Augment, seed: int) -> Kernel:
    """What a worker does with each sample."""
    fill = {"jpeg": fill_from_jpeg, "keep": fill_from_jpeg, "raw": fill_from_raw, "planes": fill_from_planes}[codec]

    def choose(width_px: int, height_px: int, sample: int, epoch: int) -> Region:
        if augment.train:
            return random_region(width_px, height_px, augment, seed, epoch, sample)
        return centre_region(width_px, height_px, augment)

    def kernel(data: bytes, out_HWC: Pixels, sample: int, epoch: int, clock: Clock) -> None:
        fill(data, out_HWC, lambda width, height: choose(width, height, sample, epoch), clock)

    return kernel


Choose = Callable[[int, int], Region]


def fill_from_jpeg(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock) -> None:
    """`keep` shards hold whatever the source held: what is not a JPEG goes through Pillow."""
    if data[:2] != b"\xff\xd8":
        return _fill_from_image(_open_with_pillow(data), out_HWC, choose, clock)
    frame = jpeg.parse(data)
    region = choose(frame.width_px, frame.height_px)
    part = jpeg.cut(data, *region[:4], frame=frame)
    factor = dct_factor(region, out_HWC.shape[1], out_HWC.shape[0])
    shrinks = factor > 1 or region.width_px > out_HWC.shape[1] or region.height_px > out_HWC.shape[0]
    try:
        pixels = _decode(part.data, factor, "RGBX" if shrinks else "RGB")
    except ValueError:  # CMYK, or damaged: Pillow knows
        return _fill_from_image(_open_with_pillow(data), out_HWC, lambda *_: region, clock)
    clock.mark(_DECODE)
    inside = region._replace(left_px=part.left_px, top_px=part.top_px)
    if shrinks:
        shrink_into(pixels, inside, factor, out_HWC)
    else:
        enlarge_into(pixels, inside, out_HWC)
    clock.mark(_TRANSFORM)
    return None


def dct_factor(region: Region, width_px: int, height_px: int) -> int:
    """The largest of 1, 2, 4, 8 by which the region can be decoded smaller and still cover the output."""
    room = min(region.width_px / width_px, region.height_px / height_px)
    return 8 if room >= 8 else 4 if room >= 4 else 2 if room >= 2 else 1


def _decode(data: bytes, factor: int, colours: str) -> Pixels:
    if factor == 1:
        return simplejpeg.decode_jpeg(data, colours)
    width, height = jpeg.size(data)
    return simplejpeg.decode_jpeg(data, colours, min_height=-(-height // factor), min_width=-(-width // factor))


def _open_with_pillow(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DatasetError(f"it is no image that can be decoded ({error})") from error


def _fill_from_image(image: Image.Image, out_HWC: Pixels, choose: Choose, clock: Clock) -> None:
    clock.mark(_DECODE)
    resize_into(np.asarray(image), choose(*image.size), out_HWC)
    clock.mark(_TRANSFORM)


def fill_from_raw(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock) -> None:
    """`.npy` uint8 HWC: nothing is parsed but the shape, nothing is decoded."""
    pixels = npy_view(data)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DatasetError(f"it is a raw member of shape {pixels.shape}, not (height, width, 3)")
    clock.mark(_DECODE)
    resize_into(pixels, choose(pixels.shape[1], pixels.shape[0]), out_HWC)
    clock.mark(_TRANSFORM)


def fill_from_planes(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock) -> None:
    """`.npy` uint8 (H * 3/2, W), I420."""
    stacked = npy_view(data)
    if stacked.ndim != 2 or stacked.shape[0] % 3 or stacked.shape[1] % 2:
        raise DatasetError(f"it is a planes member of shape {stacked.shape}, not (height * 3/2, width), both even")
    height, width = stacked.shape[0] * 2 // 3, stacked.shape[1]
    planes = (stacked[:height], *stacked[height:].reshape(2, height // 2, width // 2))
    region = choose(width, height)
    clock.mark(_DECODE)
    out_height, out_width = out_HWC.shape[:2]
    odd = out_height % 2 or out_width % 2  # I420 of odd sides does not exist: convert first, then resize
    if odd or region.width_px > out_width or region.height_px > out_height:
        pixels, inside = _colours_of(planes, region)
        shrink_into(pixels, inside, 1, out_HWC)
    else:
        _enlarge_planes(planes, region, out_HWC)
    clock.mark(_TRANSFORM)


def halved(region: Region) -> Region:
    """The chroma pixels that the region touches."""
    left, top = region.left_px // 2, region.top_px // 2
    right, bottom = -(-(region.left_px + region.width_px) // 2), -(-(region.top_px + region.height_px) // 2)
    return Region(left, top, right - left, bottom - top)


def _enlarge_planes(planes: Sequence[Pixels], region: Region, out_HWC: Pixels) -> None:
    """Each plane is resized as it is, luma to the output's size and chroma to half of it; then colours."""
    height, width = out_HWC.shape[:2]
    small = np.empty((height * 3 // 2, width), np.uint8)
    halves = small[height:].reshape(2, height // 2, width // 2)
    for plane, part, place in zip(
        planes, (region, halved(region), halved(region)), (small[:height], *halves), strict=True
    ):
        view = plane[part.top_px : part.top_px + part.height_px, part.left_px : part.left_px + part.width_px]
        cv2.resize(view, place.shape[::-1], dst=place, interpolation=cv2.INTER_LINEAR)
    cv2.cvtColor(small, cv2.COLOR_YUV2RGB_I420, dst=out_HWC)
    if region.flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)


def _colours_of(planes: Sequence[Pixels], region: Region) -> tuple[Pixels, Region]:
    """The region (grown to even places) as RGBX, and where it lies in there."""
    half = halved(region)
    height, width = 2 * half.height_px, 2 * half.width_px
    cropped = np.empty((height * 3 // 2, width), np.uint8)
    cropped[:height] = planes[0][
        2 * half.top_px : 2 * half.top_px + height, 2 * half.left_px : 2 * half.left_px + width
    ]
    chroma = cropped[height:].reshape(2, half.height_px, half.width_px)
    for place, plane in zip(chroma, planes[1:], strict=True):
        place[:] = plane[half.top_px : half.top_px + half.height_px, half.left_px : half.left_px + half.width_px]
    pixels = np.asarray(cv2.cvtColor(cropped, cv2.COLOR_YUV2RGBA_I420), np.uint8)
    return pixels, region._replace(left_px=region.left_px % 2, top_px=region.top_px % 2)


@lru_cache(maxsize=64)
def _npy_layout(header: bytes) -> tuple[tuple[int, ...], int]:
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.uint8 or fortran:
        raise DatasetError(f"it is a .npy of {dtype}, not of uint8 in C order")
    return shape, file.tell()


def npy_view(data: bytes) -> Pixels:
    """The array in a `.npy` member, not copied, read-only. Raises DatasetError for anything but uint8 in C order."""
    if data[:8] != _NPY_MAGIC:
        raise DatasetError("it is not a .npy member of version 1")
    length = 10 + int.from_bytes(data[8:10], "little")
    try:
        shape, start = _npy_layout(data[:length])
        return np.frombuffer(data, np.uint8, math.prod(shape), start).reshape(shape)
    except ValueError as error:
        raise DatasetError(f"it is a damaged .npy member ({error})") from error


# --- resizing -----------------------------------------------------------------------------------------


def resize_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels) -> None:
    """The region of RGB pixels, resized (and flipped) into `out_HWC`."""
    if region.width_px > out_HWC.shape[1] or region.height_px > out_HWC.shape[0]:
        left, top, width, height, _ = region
        four_HWX = cv2.cvtColor(pixels_HWC[top : top + height, left : left + width], cv2.COLOR_RGB2RGBA)
        shrink_into(np.asarray(four_HWX, np.uint8), region._replace(left_px=0, top_px=0), 1, out_HWC)
    else:
        enlarge_into(pixels_HWC, region, out_HWC)


def enlarge_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels) -> None:
    left, top, width, height, flip = region
    view = pixels_HWC[top : top + height, left : left + width]
    if view.shape == out_HWC.shape:
        out_HWC[:] = view
    else:
        cv2.resize(view, out_HWC.shape[1::-1], dst=out_HWC, interpolation=cv2.INTER_LINEAR)
    if flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)


def shrink_into(pixels_HWX: Pixels, region: Region, factor: int, out_HWC: Pixels) -> None:
    """Pillow's antialiased bilinear on four-byte pixels, which it reads in place. The region is in pixels of the
    picture before it was decoded `factor` times smaller, so no fraction of a pixel is lost."""
    height, width = pixels_HWX.shape[:2]
    memory: Any = pixels_HWX
    image = Image.frombuffer("RGBX", (width, height), memory, "raw", "RGBX", 0, 1)
    left, top = region.left_px / factor, region.top_px / factor
    box = (left, top, min(left + region.width_px / factor, width), min(top + region.height_px / factor, height))
    small = image.resize((out_HWC.shape[1], out_HWC.shape[0]), Image.Resampling.BILINEAR, box)
    cv2.cvtColor(np.asarray(small), cv2.COLOR_RGBA2RGB, dst=out_HWC)
    if region.flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)
