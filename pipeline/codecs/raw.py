"""`raw`: RGB pixels as they are, a `.npy` of uint8 (height, width, 3). The region is a view of the member's bytes.

Also what `.npy` members are for any codec: the array, as a view of the bytes.
"""

import io
import math
from functools import lru_cache
from tokenize import TokenError

import numpy as np
from PIL import Image

from feedline.pipeline.base.errors import DatasetError, first_line
from feedline.pipeline.codecs.base import Choose, Codec, Pixels, fill_with, size_trouble
from feedline.pipeline.draw.resample import job_of
from feedline.pipeline.kernel.compiled import Job

MAGIC = b"\x93NUMPY\x01\x00"


def npy_view(data: bytes) -> Pixels:
    """Not copied, read-only. Raises DatasetError for anything but uint8 in C order."""
    if data[:8] != MAGIC:
        raise DatasetError("it is not a .npy member of version 1")
    length = 10 + int.from_bytes(data[8:10], "little")
    try:
        shape, start = _layout(data[:length])
        return np.frombuffer(data, np.uint8, math.prod(shape), start).reshape(shape)
    except (ValueError, SyntaxError, TokenError) as error:  # NumPy reads the header as Python's own text
        raise DatasetError(f"it is a damaged .npy member ({first_line(error)})") from error


@lru_cache(maxsize=64)
def _layout(header: bytes) -> tuple[tuple[int, ...], int]:
    """Shape, and where the bytes start. Few shapes occur, so the header's text is hardly ever parsed."""
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.uint8 or fortran or min(shape, default=1) < 1:
        raise DatasetError(f"it is a .npy of {dtype} {shape}, not of uint8 pixels in C order")
    return shape, file.tell()


def npy_bytes(array: Pixels) -> bytes:
    """The member: `.npy` version 1, C order."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def rgb_array(image: Image.Image) -> Pixels:
    """(height, width, 3) of an RGB or RGBX image; read-only."""
    width, height = image.size
    return np.frombuffer(image.tobytes("raw", "RGB"), np.uint8).reshape(height, width, 3)


def pixels(data: bytes) -> Pixels:
    pixels_HWC = npy_view(data)
    if pixels_HWC.ndim != 3 or pixels_HWC.shape[2] != 3:
        raise DatasetError(f"it is a raw member of shape {pixels_HWC.shape}, not (height, width, 3)")
    return pixels_HWC


def job(data: bytes, px: int, choose: Choose) -> Job:
    pixels_HWC = pixels(data)
    return job_of(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), px, px)


RAW = Codec(
    name="raw",
    extension="npy",
    image_file=False,
    lossy=False,
    has_quality=False,
    estimate_bytes=lambda pixels, quality, source_bytes: pixels * 3,
    encode=lambda image, quality, subsampling: npy_bytes(rgb_array(image)),
    fill=fill_with(pixels),
    job=job,
    pixels=pixels,
    check=lambda data, width, height, settings: size_trouble(pixels(data), width, height),
)
