"""The compiled kernel's typed face, where there is one.

Set-up compiles `native` from native.pyx and the C files beside this one; without a C compiler feedline installs all
the same, and OpenCV, Pillow and simplejpeg do its work, more slowly. `FEEDLINE_KERNEL=python` chooses that, the name
of one of `LEVELS` those instructions.
"""

import os
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError, UsageError

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]
Job = tuple[bytes | Pixels, int, int, int, int, Box, bool, bool]
"""What fills a place: a JPEG, RGB or RGBX pixels (HWC) or I420 planes (height * 3/2, width); the region of them
(left, top, width and height); the box of it that is shown (left, top, right and bottom within it); whether it is
antialiased; whether it is mirrored."""
VARIABLE = "FEEDLINE_KERNEL"
INTERFACE = 1
"""As native.pyx has it: one more with every change of what Python calls or is given."""


class Kernel(Protocol):
    """Raises ValueError for a region that is not in its buffer, and for buffers of another shape, OverflowError for a
    number beyond a C integer. No call holds the interpreter's lock while it works."""

    LEVELS: tuple[str, ...]
    """What this processor can run: `plain` C, `avx2`, `neon`; all give the same bytes."""

    def level(self) -> str:
        """The one in use: the best, until `use`."""
        ...

    def use(self, level: str) -> None: ...

    def fill(self, jobs: list[Job], smooth: bool, out_NHWC: Pixels) -> tuple[int, int]:
        """Fills the first places, one by each job, up to a JPEG that must be left to libjpeg-turbo. Returns how many,
        and how long the decoder took, in nanoseconds.

        A JPEG's region has exactly libjpeg-turbo's pixels, `smooth` being its smooth chroma. Antialiased is Pillow's
        bilinear filter, to the byte. Otherwise it is bilinear between neighbours, of the whole region: OpenCV's
        formula, planes each apart and from even places on, into an output of even sides. The filters see nothing
        outside the region; planes that are antialiased are converted first.
        """
        ...


def asked_for_python() -> bool:
    return os.environ.get(VARIABLE) == "python"


def _load() -> tuple[Kernel | None, str]:
    """The module, or why there is none. Raises FeedlineError for one that other code was compiled for."""
    wanted = os.environ.get(VARIABLE, "")
    if asked_for_python():
        return None, f"{VARIABLE}={wanted}"
    try:
        kernel: Any = import_module("feedline.pipeline.kernel.native")
    except ModuleNotFoundError:
        return None, "it was not built"
    except ImportError as error:
        return None, f"it does not load: {error}"
    if (theirs := getattr(kernel, "INTERFACE", 0)) != INTERFACE:
        raise FeedlineError(
            f"{kernel.__file__} was compiled for other Python code than lies beside it (interface {theirs}, here "
            f"{INTERFACE}): python bootstrap.py --kernel or pip install . again; {VARIABLE}=python does without"
        )
    if wanted and wanted not in kernel.LEVELS:
        raise UsageError(f"{VARIABLE}={wanted} is none of python, {', '.join(kernel.LEVELS)}")
    if wanted:
        kernel.use(wanted)
    return kernel, ""


KERNEL, TROUBLE = _load()
