"""`planes`: Y, U and V as they are, a `.npy` of uint8 (height * 3/2, width), I420: half the bytes of `raw`.

A region is resized in Y, U and V apart, then converted; where that shrinks, converted first.
"""

import cv2
import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels, size_trouble
from feedline.pipeline.codecs.raw import npy_bytes, npy_view, rgb_array
from feedline.pipeline.draw.resample import job_of, planes_into
from feedline.pipeline.kernel.compiled import Job


def planes(pixels_HWC: Pixels) -> Pixels:
    """I420: the luma plane, then both chroma planes at half size, as one (H*3/2, W) array. Sides must be even.

    OpenCV takes the chroma of each 2x2 pixels' first one; their mean, as in JPEG, is worth 3 dB (36.2 to 38.9).
    """
    height, width = pixels_HWC.shape[:2]
    stacked = np.asarray(cv2.cvtColor(pixels_HWC, cv2.COLOR_RGB2YUV_I420), np.uint8)
    means_HWC = cv2.resize(pixels_HWC, (width // 2, height // 2), interpolation=cv2.INTER_AREA)
    blocks_HWC = cv2.resize(means_HWC, (width, height), interpolation=cv2.INTER_NEAREST)
    stacked[height:] = cv2.cvtColor(blocks_HWC, cv2.COLOR_RGB2YUV_I420)[height:]
    return stacked


def _stacked(data: bytes) -> Pixels:
    stacked = npy_view(data)
    if stacked.ndim != 2 or stacked.shape[0] % 3 or stacked.shape[1] % 2:
        raise DatasetError(f"it is a planes member of shape {stacked.shape}, not (height * 3/2, width), both even")
    return stacked


def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, _fast_chroma: bool) -> None:
    stacked = _stacked(data)
    region = choose(stacked.shape[1], stacked.shape[0] * 2 // 3)
    clock.decoded()
    planes_into(stacked, region, out_HWC)
    clock.transformed()


def job(data: bytes, px: int, choose: Choose) -> Job:
    stacked = _stacked(data)
    return job_of(stacked, choose(stacked.shape[1], stacked.shape[0] * 2 // 3), px, px)


def pixels(data: bytes) -> Pixels:
    return np.asarray(cv2.cvtColor(_stacked(data), cv2.COLOR_YUV2RGB_I420), np.uint8)


PLANES = Codec(
    name="planes",
    extension="npy",
    image_file=False,
    lossy=True,
    has_quality=False,
    even_sides=True,
    estimate_bytes=lambda pixels, quality, source_bytes: pixels * 1.5,
    encode=lambda image, quality, subsampling: npy_bytes(planes(rgb_array(image))),
    settings=lambda quality, subsampling: {"layout": "I420, uint8, shape (H*3/2, W)"},
    fill=fill,
    job=job,
    pixels=pixels,
    check=lambda data, width, height, settings: size_trouble(pixels(data), width, height),
)
