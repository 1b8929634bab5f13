"""A region of pixels, resized and mirrored, straight into its place in a batch.

The filter: bilinear where both sides grow and up to a shrinking of 8/7, the usual 256 to 224; beyond that Pillow's
antialiased bilinear, which is what torchvision's transforms do on PIL images. At 8/7 the two are 45 dB apart, and
JPEG of quality 90 is 36 dB from its original; the antialiased filter takes twice bilinear's time.

The compiled kernel has both, the same bytes on every processor. Without it OpenCV and Pillow do the work, within one
level of it: OpenCV's bilinear in its own integers for planes and RGB, which the kernel shares, and Intel's for
decoded JPEG (four channels), where OpenCV carries that; Pillow-SIMD's coefficients are shorter than Pillow's.
"""

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from feedline.pipeline.draw.regions import Region
from feedline.pipeline.kernel import compiled
from feedline.pipeline.kernel.compiled import Box, Job

Pixels = npt.NDArray[np.uint8]
ANTIALIAS_ABOVE = 8 / 7


def is_antialiased(region: Region, width_px: int, height_px: int) -> bool:
    """Whether the region shrinks by so much that it aliases, or starts between two pixels."""
    shrinks = region.width_px > width_px * ANTIALIAS_ABOVE or region.height_px > height_px * ANTIALIAS_ABOVE
    return shrinks or region.inner is not None


def job_of(source: bytes | Pixels, region: Region, width_px: int, height_px: int) -> Job:
    """What the compiled kernel is told to do for the region of a JPEG, of RGB or RGBX pixels, or of I420 planes, into
    an output of that size."""
    left, top, width, height, flip, inner = region
    box: Box = (0, 0, width, height)
    if inner is not None:
        box = (inner[0], inner[1], min(inner[0] + inner[2], width), min(inner[1] + inner[3], height))
    odd_planes = bool(width_px % 2 or height_px % 2) and isinstance(source, np.ndarray) and source.ndim == 2
    return source, left, top, width, height, box, odd_planes or is_antialiased(region, width_px, height_px), flip


def resize_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels, factor: int = 1) -> None:
    """The region of RGB or RGBX pixels; with a `factor`: see `shrink_into`."""
    rows, columns = out_HWC.shape[:2]
    if kernel := compiled.KERNEL:
        job: Job = job_of(pixels_HWC, region, columns, rows)
        if factor > 1:
            left, top, width, height, box = shown(region, factor, *pixels_HWC.shape[1::-1])
            job = (pixels_HWC, left, top, width, height, box, True, region.flip)
        kernel.fill([job], True, out_HWC[None])
    elif factor == 1 and not is_antialiased(region, columns, rows):
        bilinear_into(pixels_HWC, region, out_HWC)
    else:
        shrink_into(pixels_HWC, region, factor, out_HWC)


def bilinear_into(pixels_HWC: Pixels, region: Region, out_HWC: Pixels) -> None:
    """The region of RGB or RGBX pixels, by OpenCV."""
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


def shown(region: Region, factor: int, width_px: int, height_px: int) -> tuple[int, int, int, int, Box]:
    """Left, top, width and height of the region in a picture that was decoded `factor` times smaller, to so many
    pixels; and the box of it that is shown, from its own corner: its places are those before that, so no fraction of
    a pixel is lost."""
    left, top, width, height = (side / factor for side in region[:4])
    first, above = int(left), int(top)
    across = min(math.ceil(left + width), width_px) - first
    down = min(math.ceil(top + height), height_px) - above
    if region.inner:
        inner_left, inner_top, width, height = (side / factor for side in region.inner)
        left, top = left + inner_left, top + inner_top
    left, top = left - first, top - above
    return first, above, across, down, (left, top, min(left + width, across), min(top + height, down))


def shrink_into(pixels_HWC: Pixels, region: Region, factor: int, out_HWC: Pixels) -> None:
    """Pillow's antialiased bilinear on RGB or RGBX pixels, in one piece of memory. The region is in pixels of the
    picture before it was decoded `factor` times smaller; the filter sees nothing outside it."""
    left, top, width, height, box = shown(region, factor, pixels_HWC.shape[1], pixels_HWC.shape[0])
    if pixels_HWC.shape[2] == 3:  # Pillow reads four-byte pixels in place
        view = pixels_HWC[top : top + height, left : left + width]
        pixels_HWC, left, top = np.asarray(cv2.cvtColor(view, cv2.COLOR_RGB2RGBA), np.uint8), 0, 0
    # a part of the pixels as an image, without a copy where Pillow's idea of a row's length allows it
    rows, columns = pixels_HWC.shape[:2]
    memory: Any = pixels_HWC.reshape(-1)[4 * (top * columns + left) :]
    if left and top + height == rows:  # the last row would seem to reach beyond the memory
        memory, columns = np.ascontiguousarray(pixels_HWC[top:, left : left + width]), width
    image = Image.frombuffer("RGBX", (width, height), memory, "raw", "RGBX", 4 * columns, 1)
    small = image.resize((out_HWC.shape[1], out_HWC.shape[0]), Image.Resampling.BILINEAR, box)
    cv2.cvtColor(np.asarray(small), cv2.COLOR_RGBA2RGB, dst=out_HWC)
    if region.flip:
        cv2.flip(out_HWC, 1, dst=out_HWC)


def planes_into(stacked: Pixels, region: Region, out_HWC: Pixels) -> None:
    """The region of I420: Y, then U and V at half size, of even pictures; video range. The planes are resized each as
    it is, the region grown to even places first, since luma and chroma must show the same; where an output has odd
    sides, which I420 has not, and where it is antialiased, the colours are converted first."""
    rows, columns = out_HWC.shape[:2]
    if kernel := compiled.KERNEL:
        kernel.fill([job_of(stacked, region, columns, rows)], True, out_HWC[None])
        return
    converted = bool(rows % 2 or columns % 2) or is_antialiased(region, columns, rows)
    height_px, width_px = stacked.shape[0] * 2 // 3, stacked.shape[1]
    half = halved(region)
    left, top, width, height = (2 * side for side in half[:4])
    planes = stacked[height_px:].reshape(2, height_px // 2, width_px // 2)
    chroma = (plane[half.top_px :, half.left_px :][: half.height_px, : half.width_px] for plane in planes)
    parts = [stacked[top : top + height, left : left + width], *chroma]
    if converted:
        pixels_HWX = np.asarray(cv2.cvtColor(_resized(parts, height, width), cv2.COLOR_YUV2RGBA_I420), np.uint8)
        shrink_into(pixels_HWX, region._replace(left_px=region.left_px % 2, top_px=region.top_px % 2), 1, out_HWC)
    else:
        cv2.cvtColor(_resized(parts, rows, columns), cv2.COLOR_YUV2RGB_I420, dst=out_HWC)
        if region.flip:
            cv2.flip(out_HWC, 1, dst=out_HWC)


def _resized(parts: list[Pixels], height: int, width: int) -> Pixels:
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
