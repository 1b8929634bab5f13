"""The compiled kernel's typed face, where there is one.

Set-up compiles `native` from the C files beside this one; without a C compiler feedline installs all the same, and
OpenCV, Pillow and simplejpeg do its work, more slowly. `FEEDLINE_KERNEL=python` chooses that, the name of one of
`LEVELS` those instructions.
"""

import os
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
Filter = Literal["plain", "box", "bilinear", "hamming", "bicubic", "lanczos"]
VARIABLE = "FEEDLINE_KERNEL"


class Kernel(Protocol):
    """Raises ValueError for a region that is not in its buffer, and for buffers of another shape. No call holds the
    interpreter's lock while it works."""

    LEVELS: tuple[str, ...]
    """What this processor can run: `plain` C, `avx2`, `avx512`, `neon`; all give the same bytes."""

    def level(self) -> str:
        """The one in use: the best, until `use`."""
        ...

    def use(self, level: str) -> None: ...

    def resize(self, pixels: Pixels, left_px: int, top_px: int, width_px: int, height_px: int, box: Box,
               filter: Filter, flip: bool, out_HWC: Pixels) -> None:  # fmt: skip
        """A region of RGB or RGBX pixels (HWC), or of I420 planes (height * 3/2, width), into all of `out_HWC`.

        `plain` is bilinear between neighbours: OpenCV's formula, planes each apart and from even places on, into an
        output of even sides. The others are Pillow's, to the byte, and show the `box` of the region (left, top, right
        and bottom within it; `plain` shows all). They see nothing outside the region; planes are converted first.
        """
        ...

    def decode(self, data: bytes, left_px: int, top_px: int, width_px: int, height_px: int, smooth: bool,
               out_HWX: Pixels) -> bool:  # fmt: skip
        """The region of a JPEG as RGBX, exactly as libjpeg-turbo gives it; False where that must be asked."""
        ...


def asked_for_python() -> bool:
    return os.environ.get(VARIABLE) == "python"


def _load() -> tuple[Kernel | None, str]:
    """The module, or why there is none."""
    wanted = os.environ.get(VARIABLE, "")
    if asked_for_python():
        return None, f"{VARIABLE}={wanted}"
    try:
        kernel: Any = import_module("feedline.pipeline.kernel.native")
    except ModuleNotFoundError:
        return None, "it was not built"
    except ImportError as error:
        return None, f"it does not load: {error}"
    if wanted and wanted not in kernel.LEVELS:
        raise UsageError(f"{VARIABLE}={wanted} is none of python, {', '.join(kernel.LEVELS)}")
    if wanted:
        kernel.use(wanted)
    return kernel, ""


KERNEL, TROUBLE = _load()
