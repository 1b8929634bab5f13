"""The compiled kernel, where there is one: a plain C library, the same for every Python, called by ctypes.

Set-up compiles it from the C files beside this one; without a C compiler feedline installs all the same, and
OpenCV, Pillow and simplejpeg do its work, more slowly. `FEEDLINE_KERNEL=python` chooses that, the name of one of
`LEVELS` those instructions.
"""

import ctypes
import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError, UsageError

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
Job = tuple[bytes | Pixels, int, int, int, int, Box, bool, bool]
"""What fills a place: a JPEG, RGB or RGBX pixels (HWC, each row in one piece) or I420 planes (height * 3/2, width, in
one piece); the region of them (left, top, width and height); the box of it that is shown (left, top, right and bottom
within it); whether it is antialiased; whether it is mirrored."""
VARIABLE = "FEEDLINE_KERNEL"
INTERFACE = 2
"""As fill.c has it: one more with every change of what is called or given here."""
MOST_PX, MOST_DECODED_PX = 1 << 20, 1 << 28
"""Of a side; of a JPEG's region: more than any that is read."""
_LEVELS = ("plain", "avx2", "neon")  # as levels.h has them
_JOB = struct.Struct("@PNii PPPn5i0P 4f2i0P")  # as fill.h has it, with the region of resize.h in the middle


class Kernel:
    """No call holds the interpreter's lock while it works."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._use, self._fill = library.kernel_use, library.kernel_fill
        number, pointer = ctypes.c_int, ctypes.c_void_p
        self._fill.argtypes = (ctypes.c_char_p, number, number, ctypes.c_size_t, pointer, number, number, pointer)
        self.LEVELS = tuple(name for level, name in enumerate(_LEVELS) if self._use(level))
        """What this processor can run: `plain` C, `avx2`, `neon`; all give the same bytes."""
        self._level = self.LEVELS[-1]

    def level(self) -> str:
        """The one in use: the best, until `use`."""
        return self._level

    def use(self, level: str) -> None:
        """Raises ValueError for a level that is not there."""
        if level not in self.LEVELS:
            raise ValueError(f"this processor or this build has no {level}")
        self._use(_LEVELS.index(level))
        self._level = level

    def fill(self, jobs: list[Job], smooth: bool, out_NHWC: Pixels) -> tuple[int, int]:
        """Fills the first places, one by each job, up to a JPEG that must be left to libjpeg-turbo. Returns how many,
        and how long the decoder took, in nanoseconds. Raises ValueError for a region that is not in its buffer, and
        for buffers of another shape.

        A JPEG's region has exactly libjpeg-turbo's pixels, `smooth` being its smooth chroma. Antialiased is Pillow's
        bilinear filter, to the byte. Otherwise it is bilinear between neighbours, of the whole region: OpenCV's
        formula, planes each apart and from even places on, into an output of even sides. The filters see nothing
        outside the region; planes that are antialiased are converted first.
        """
        places, height, width, colours = out_NHWC.shape
        flags = out_NHWC.flags
        if not (out_NHWC.dtype == np.uint8 and flags.c_contiguous and flags.writeable
                and colours == 3 and 0 < height <= MOST_PX and 0 < width <= MOST_PX):  # fmt: skip
            raise ValueError("the places are writeable uint8 of number, height, width and 3, without gaps")
        if len(jobs) > places:
            raise ValueError("there are more jobs than places")
        packed = b"".join([_packed(job, even=not (height % 2 or width % 2)) for job in jobs])
        most_bytes = max((4 * job[3] * job[4] for job in jobs if isinstance(job[0], bytes)), default=0)
        decoding_ns = ctypes.c_longlong()
        filled = self._fill(packed, len(jobs), smooth, most_bytes, out_NHWC.ctypes.data, width, height,
                            ctypes.byref(decoding_ns))  # fmt: skip
        if filled < 0:
            raise MemoryError
        return filled, decoding_ns.value


def _packed(job: Job, even: bool) -> bytes:
    """For C, which trusts every number of it. `even`: whether the place's sides are."""
    source, left, top, width, height, box, antialias, flip = job
    rows, columns, channels, stride = _layout(source)
    is_planes = channels == 1
    if not (left >= 0 <= top and 0 < width <= columns - left and 0 < height <= rows - top):
        raise ValueError("the region is empty or reaches outside the pixels")
    if not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        raise ValueError("the box is empty or reaches outside the region")
    if is_planes and not (antialias or even):
        raise ValueError("planes are resized to even sides only, unless antialiased")
    shown = (*box, bool(antialias), bool(flip))
    if isinstance(source, bytes):
        if width * height > MOST_DECODED_PX:
            raise ValueError("the region is too large")
        address = ctypes.cast(ctypes.c_char_p(source), ctypes.c_void_p).value
        return _JOB.pack(address, len(source), left, top, 0, 0, 0, 4 * width, width, height, channels, 0, 0, *shown)
    start = source.ctypes.data
    odd_left, odd_top = (left % 2, top % 2) if is_planes else (0, 0)
    pixels = start + (top - odd_top) * stride + (left - odd_left) * channels
    u = start + columns * rows + top // 2 * (columns // 2) + left // 2 if is_planes else 0
    v = u + columns * rows // 4 if is_planes else 0
    return _JOB.pack(0, 0, 0, 0, pixels, u, v, stride, width, height, channels, odd_left, odd_top, *shown)


def _layout(source: bytes | Pixels) -> tuple[int, int, int, int]:
    """Height, width, channels (1: I420) and bytes from row to row; a JPEG's are not known, and at most these. Raises
    ValueError for any other array."""
    if isinstance(source, bytes):
        return MOST_PX, MOST_PX, 4, 0
    shape, stride = source.shape, source.strides[0]
    if source.dtype == np.uint8 and min(shape) > 0 and max(shape) <= MOST_PX:
        if len(shape) == 3 and 3 <= shape[2] <= 4 and source.strides[1:] == (shape[2], 1):
            return shape[0], shape[1], shape[2], stride
        if len(shape) == 2 and shape[0] % 3 == shape[1] % 2 == 0 and source.flags.c_contiguous:
            return shape[0] // 3 * 2, shape[1], 1, stride
    raise ValueError("pixels are uint8 of height, width and 3 or 4, a row in one piece, or I420 in one piece")


def asked_for_python() -> bool:
    return os.environ.get(VARIABLE) == "python"


def _load() -> tuple[Kernel | None, str]:
    """The library, or why there is none. Raises FeedlineError for one that other code was compiled for."""
    wanted = os.environ.get(VARIABLE, "")
    if asked_for_python():
        return None, f"{VARIABLE}={wanted}"
    path = Path(__file__).with_name("native.so")
    if not path.exists():
        return None, "it was not built"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"it does not load: {error}"
    try:
        theirs = ctypes.c_int.in_dll(library, "kernel_interface").value
    except ValueError:
        theirs = 1
    if theirs != INTERFACE:
        raise FeedlineError(
            f"{path} was compiled for other Python code than lies beside it (interface {theirs}, here {INTERFACE}): "
            f"python bootstrap.py --kernel or pip install . again; {VARIABLE}=python does without"
        )
    kernel = Kernel(library)
    if wanted and wanted not in kernel.LEVELS:
        raise UsageError(f"{VARIABLE}={wanted} is none of python, {', '.join(kernel.LEVELS)}")
    if wanted:
        kernel.use(wanted)
    return kernel, ""


KERNEL, TROUBLE = _load()
