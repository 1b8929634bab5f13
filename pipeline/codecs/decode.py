"""From a sample's bytes straight into its place in a batch: choose a region, decode little more than it, resize.

    jpeg, keep   cut the region's tiles out of the file, decode them (at 1/2, 1/4 or 1/8 where the output is that much
                 smaller: libjpeg's scaled DCT), resize the region into the slot. A JPEG without tiles is decoded down
                 to the region's last row; what is no JPEG goes through Pillow
    raw          the region is a view of the bytes; resize it into the slot
    planes       resize Y, U and V apart, then convert the result; where that shrinks, convert first

Which region: `regions`. Which filter: `resample`. What happens to a sample depends on (seed, epoch, sample number)
only. Training repeats chroma pixels where evaluation smooths them: 7 % of the decoding time for 45 dB.

No torch here: loader workers run this.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.npy import npy_view
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment as Augment
from feedline.pipeline.draw.regions import Region
from feedline.pipeline.draw.resample import bilinear_into, needs_pillow, planes_into, resize_into, shrink_into
from feedline.pipeline.workers.counters import FIELD, Clock

if TYPE_CHECKING:  # shards imports pyarrow, which no worker needs
    from feedline.pipeline.format.manifest import Codec

Pixels = npt.NDArray[np.uint8]
Kernel = Callable[[bytes, Pixels, int, int, Clock], None]
"""(data, out_HWC, sample, epoch, clock): fills `out_HWC`. Raises DatasetError for bytes that cannot be used."""
Choose = Callable[[int, int], Region]
"""(width_px, height_px) -> the region to show."""

cv2.setNumThreads(1)  # a worker per core: threads inside one would only queue
_DECODE, _TRANSFORM = FIELD["decode"], FIELD["transform"]


def make_kernel(codec: "Codec", augment: Augment, seed: int) -> Kernel:
    """What a worker does with each sample."""
    fill = {"jpeg": fill_from_jpeg, "keep": fill_from_jpeg, "raw": fill_from_raw, "planes": fill_from_planes}[codec]
    fast_chroma = augment.train

    def kernel(data: bytes, out_HWC: Pixels, sample: int, epoch: int, clock: Clock) -> None:
        def choose(width_px: int, height_px: int) -> Region:
            return regions.choose(width_px, height_px, out_HWC.shape[1], augment, seed, epoch, sample)

        fill(data, out_HWC, choose, clock, fast_chroma)

    return kernel


def fill_from_jpeg(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, fast_chroma: bool) -> None:
    if data[:2] != b"\xff\xd8":
        return _fill_from_any(data, out_HWC, choose, clock)
    frame = jpeg.parse(data)
    region = choose(frame.width_px, frame.height_px)
    factor = dct_factor(region, out_HWC)
    by_pillow = factor > 1 or needs_pillow(region, out_HWC)
    pixels, inside, factor = _decode_region(data, frame, region, factor, fast_chroma)
    clock.mark(_DECODE)
    if by_pillow:
        shrink_into(pixels, inside, factor, out_HWC)
    else:
        bilinear_into(pixels, inside, out_HWC)
    clock.mark(_TRANSFORM)
    return None


def _decode_region(data: bytes, frame: jpeg.Frame, region: Region, factor: int,
                   fast_chroma: bool) -> tuple[Pixels, Region, int]:  # fmt: skip
    """RGBX pixels, where the region lies in them (in pixels of full size), and by which factor they are smaller."""
    part = jpeg.cut(data, *region[:4], frame=frame)
    if part.data is data and factor == 1:
        shortened, height_px = jpeg.shorten(data, region.top_px + region.height_px, frame)
        if shortened is not data:
            with suppress(jpeg.JpegError):  # a full decode knows more ways, and says what is wrong with it
                return jpeg.decode_shortened(shortened, "RGBX", frame.width_px, height_px, fast_chroma), region, 1
    pixels = jpeg.decode(part.data, "RGBX", factor=factor, fast_chroma=fast_chroma)
    if factor > 1 and pixels.shape[0] == jpeg.size(part.data)[1]:  # a rarity that only Pillow reads
        factor = 1
    return pixels, Region(part.left_px, part.top_px, *region[2:]), factor


def dct_factor(region: Region, out_HWC: Pixels) -> int:
    """The largest of 1, 2, 4, 8 by which the region can be decoded smaller and still cover the output."""
    width_px, height_px = region.inner[2:] if region.inner else region[2:4]
    room = min(width_px / out_HWC.shape[1], height_px / out_HWC.shape[0])
    return 8 if room >= 8 else 4 if room >= 4 else 2 if room >= 2 else 1


def _fill_from_any(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock) -> None:
    """`keep` shards hold whatever the source held."""
    pixels_HWC = np.asarray(open_rgb(data))
    clock.mark(_DECODE)
    resize_into(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), out_HWC)
    clock.mark(_TRANSFORM)


def fill_from_raw(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, _fast_chroma: bool) -> None:
    """`.npy` uint8 HWC: nothing is parsed but the shape, nothing is decoded."""
    pixels_HWC = npy_view(data)
    if pixels_HWC.ndim != 3 or pixels_HWC.shape[2] != 3:
        raise DatasetError(f"it is a raw member of shape {pixels_HWC.shape}, not (height, width, 3)")
    clock.mark(_DECODE)
    resize_into(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), out_HWC)
    clock.mark(_TRANSFORM)


def fill_from_planes(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, _fast_chroma: bool) -> None:
    """`.npy` uint8 (H * 3/2, W), I420."""
    stacked = npy_view(data)
    if stacked.ndim != 2 or stacked.shape[0] % 3 or stacked.shape[1] % 2:
        raise DatasetError(f"it is a planes member of shape {stacked.shape}, not (height * 3/2, width), both even")
    height, width = stacked.shape[0] * 2 // 3, stacked.shape[1]
    planes = (stacked[:height], *stacked[height:].reshape(2, height // 2, width // 2))
    region = choose(width, height)
    clock.mark(_DECODE)
    planes_into(planes, region, out_HWC)
    clock.mark(_TRANSFORM)
