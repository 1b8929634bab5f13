"""`raw`: RGB pixels as they are, a `.npy` of uint8 (height, width, 3). The region is a view of the member's bytes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels, Subsampling
from feedline.pipeline.codecs.npy import npy_bytes, npy_view, shape_trouble
from feedline.pipeline.draw.resample import resize_into


def rgb_array(image: Image.Image) -> Pixels:
    """(height, width, 3) of an RGB or RGBX image; read-only."""
    width, height = image.size
    return np.frombuffer(image.tobytes("raw", "RGB"), np.uint8).reshape(height, width, 3)


def encode(image: Image.Image, _quality: int, _subsampling: Subsampling) -> bytes:
    return npy_bytes(rgb_array(image))


def pixels(data: bytes) -> Pixels:
    pixels_HWC = npy_view(data)
    if pixels_HWC.ndim != 3 or pixels_HWC.shape[2] != 3:
        raise DatasetError(f"it is a raw member of shape {pixels_HWC.shape}, not (height, width, 3)")
    return pixels_HWC


def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, _fast_chroma: bool) -> None:
    """Nothing is parsed but the shape, nothing is decoded."""
    pixels_HWC = pixels(data)
    clock.decoded()
    resize_into(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), out_HWC)
    clock.transformed()


def check(data: bytes, width: int, height: int, _settings: Mapping[str, Any]) -> str:
    return shape_trouble(npy_view(data), (height, width, 3))


RAW = Codec(
    name="raw",
    extension="npy",
    image_file=False,
    lossy=False,
    has_quality=False,
    estimate_bytes=lambda pixels, quality, source_bytes: pixels * 3,
    encode=encode,
    fill=fill,
    pixels=pixels,
    check=check,
)
