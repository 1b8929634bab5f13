"""A region of pixels, resized and mirrored, straight into its place in a batch.

The filter: bilinear (OpenCV) where both sides grow and up to a shrinking of 8/7, the usual 256 to 224; beyond that
Pillow's antialiased bilinear, which is what torchvision's transforms do on PIL images. At 8/7 the two are 45 dB
apart, and JPEG of quality 90 is 36 dB from its original; Pillow-SIMD takes three times bilinear's time.

Decoded JPEG (four channels) is resized with Intel's bilinear where OpenCV carries it: nearer to the formula and
faster (64 µs against 73), but another kind of machine may show a pixel one level brighter or darker.
"""

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from feedline.pipeline.draw.regions import Region

Pixels = npt.NDArray[np.uint8]
ANTIALIAS_ABOVE = 8 / 7


def needs_pillow(region: Region, out_HWC: Pixels) -> bool:
    """Whether the region shrinks by so much that it aliases, or starts between two pixels."""
    height_px, width_px = out_HWC.shape[:2]
    shrinks = region.width_px > width_px * ANTIALIAS_ABOVE or region.height_px > height_px * ANTIALIAS_ABOVE
    return shrinks or region.inner is not None


def resize_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels, factor: int = 1) -> None:
    """The region of RGB or (with a `factor`: see `shrink_into`) RGBX pixels."""
    if factor == 1 and not needs_pillow(region, out_HWC):
        bilinear_into(pixels_HWC, region, out_HWC)
    elif pixels_HWC.shape[2] == 4:
        shrink_into(pixels_HWC, region, factor, out_HWC)
    else:
        left, top, width, height = region[:4]
        four_HWX = cv2.cvtColor(pixels_HWC[top : top + height, left : left + width], cv2.COLOR_RGB2RGBA)
        shrink_into(np.asarray(four_HWX, np.uint8), region._replace(left_px=0, top_px=0), 1, out_HWC)


def bilinear_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels) -> None:
    """The region of RGB or RGBX pixels."""
    left, top, width, height, flip, _ = region
    view = pixels_HWC[top : top + height, left : left + width]
    resized = view.shape[:2] != out_HWC.shape[:2]
    if view.shape[2] == 4:
        if resized:
            cv2.ipp.setUseIPP_NotExact(True)  # belongs to the thread, and is off again for everybody else
            view = cv2.resize(view, out_HWC.shape[1::-1], interpolation=cv2.INTER_LINEAR)
            cv2.ipp.setUseIPP_NotExact(False)
        cv2.cvtColor(view, cv2.COLOR_RGBA2RGB, dst=out_HWC)
    elif resized:
        cv2.resize(view, out_HWC.shape[1::-1], dst=out_HWC, interpolation=cv2.INTER_LINEAR)
    else:
        out_HWC[:] = view
    if flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)


def shrink_into(pixels_HWX: Pixels, region: Region, factor: int, out_HWC: Pixels) -> None:
    """Pillow's antialiased bilinear on four-byte pixels (in one piece of memory), which it reads in place. The region
    is in pixels of the picture before it was decoded `factor` times smaller, so no fraction of a pixel is lost; the
    filter sees nothing outside it."""
    left, top, width, height = (side / factor for side in region[:4])
    first, above = int(left), int(top)
    end = min(math.ceil(left + width), pixels_HWX.shape[1])
    below = min(math.ceil(top + height), pixels_HWX.shape[0])
    if region.inner:
        inner_left, inner_top, width, height = (side / factor for side in region.inner)
        left, top = left + inner_left, top + inner_top
    # a part of the pixels as an image, without a copy where Pillow's idea of a row's length allows it
    rows, columns = pixels_HWX.shape[:2]
    memory: Any = pixels_HWX.reshape(-1)[4 * (above * columns + first) :]
    if first and below == rows:  # the last row would seem to reach beyond the memory
        memory, columns = np.ascontiguousarray(pixels_HWX[above:below, first:end]), end - first
    image = Image.frombuffer("RGBX", (end - first, below - above), memory, "raw", "RGBX", 4 * columns, 1)
    left, top = left - first, top - above
    box = (left, top, min(left + width, image.size[0]), min(top + height, image.size[1]))
    small = image.resize((out_HWC.shape[1], out_HWC.shape[0]), Image.Resampling.BILINEAR, box)
    cv2.cvtColor(np.asarray(small), cv2.COLOR_RGBA2RGB, dst=out_HWC)
    if region.flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)


def planes_into(planes: Sequence[Pixels], region: Region, out_HWC: Pixels) -> None:
    """The region of Y, U and V planes (U and V at half size, of even pictures; I420's video range). The region grows
    to even places first: luma and chroma must show the same."""
    half = halved(region)
    left, top, width, height = (2 * side for side in half[:4])
    chroma = (plane[half.top_px :, half.left_px :][: half.height_px, : half.width_px] for plane in planes[1:])
    parts = [planes[0][top : top + height, left : left + width], *chroma]
    rows, columns = out_HWC.shape[:2]
    if rows % 2 or columns % 2 or needs_pillow(region, out_HWC):  # I420 of odd sides does not exist: colours first
        stacked = _stacked(parts, height, width)
        pixels_HWX = np.asarray(cv2.cvtColor(stacked, cv2.COLOR_YUV2RGBA_I420), np.uint8)
        shrink_into(pixels_HWX, region._replace(left_px=region.left_px % 2, top_px=region.top_px % 2), 1, out_HWC)
    else:
        cv2.cvtColor(_stacked(parts, rows, columns), cv2.COLOR_YUV2RGB_I420, dst=out_HWC)
        if region.flip:
            cv2.flip(out_HWC, 1, dst=out_HWC)


def _stacked(parts: Sequence[Pixels], height: int, width: int) -> Pixels:
    """Y, U and V as one I420 array of this size, each plane resized as it is."""
    stacked = np.empty((height * 3 // 2, width), np.uint8)
    places = (stacked[:height], *stacked[height:].reshape(2, height // 2, width // 2))
    for part, place in zip(parts, places, strict=True):
        if part.shape == place.shape:
            place[:] = part
        else:
            cv2.resize(part, place.shape[::-1], dst=place, interpolation=cv2.INTER_LINEAR)
    return stacked


def halved(region: Region) -> Region:
    """The chroma pixels that the region touches."""
    left, top = region.left_px // 2, region.top_px // 2
    right, bottom = -(-(region.left_px + region.width_px) // 2), -(-(region.top_px + region.height_px) // 2)
    return Region(left, top, right - left, bottom - top)
