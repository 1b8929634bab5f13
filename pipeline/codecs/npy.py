"""The array inside a `.npy` member (`raw` and `planes` shards), as a view of the member's bytes."""

import io
import math
from functools import lru_cache
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError

MAGIC = b"\x93NUMPY\x01\x00"


def npy_view(data: bytes) -> npt.NDArray[np.uint8]:
    """Not copied, read-only. Raises DatasetError for anything but uint8 in C order."""
    if data[:8] != MAGIC:
        raise DatasetError("it is not a .npy member of version 1")
    length = 10 + int.from_bytes(data[8:10], "little")
    try:
        shape, start = _layout(data[:length])
        return np.frombuffer(data, np.uint8, math.prod(shape), start).reshape(shape)
    except (ValueError, SyntaxError, TokenError) as error:  # NumPy reads the header as Python's own text
        raise DatasetError(f"it is a damaged .npy member ({str(error).splitlines()[0]})") from error


def npy_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    """The member: `.npy` version 1, C order."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def shape_trouble(array: npt.NDArray[np.uint8], expected: tuple[int, ...]) -> str:
    """For `Codec.check`."""
    return "" if array.shape == expected else f"is uint8 {array.shape}, the index says uint8 {expected}"


@lru_cache(maxsize=64)
def _layout(header: bytes) -> tuple[tuple[int, ...], int]:
    """Shape, and where the bytes start. Few shapes occur, so the header's text is hardly ever parsed."""
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.uint8 or fortran or min(shape, default=1) < 1:
        raise DatasetError(f"it is a .npy of {dtype} {shape}, not of uint8 pixels in C order")
    return shape, file.tell()
