"""What a codec is: how one picture becomes one member of a shard, and how the member becomes pixels again.

Whatever depends on the codec asks this record. `codecs.table` names them all: a new codec is one file and one line
there. No torch here: executors and loader workers run this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from feedline.pipeline.draw.regions import Region
from feedline.pipeline.draw.resample import resize_into
from feedline.pipeline.kernel.compiled import Job

Pixels = npt.NDArray[np.uint8]
Subsampling = Literal["420", "444"]
Choose = Callable[[int, int], Region]
"""(width_px, height_px) -> the region to show."""


class Clock(Protocol):
    """Takes the time since its last call as that of a stage."""

    def decoded(self) -> None: ...
    def transformed(self) -> None: ...
    def filled(self, decoding_ns: int) -> None:
        """Both: so much of it as decoding."""
        ...


@dataclass(frozen=True, kw_only=True)
class Codec:
    name: str
    """In options, in manifests and in the names of output folders."""
    extension: str
    """Of its members; "" where the source's own stays."""
    image_file: bool
    """Its members are files that any image program reads."""
    cuttable: bool = False
    """Its members are JPEGs (in `keep`: those that were), which `crop_jpeg` cuts and a device decodes."""
    lossy: bool
    has_quality: bool
    """`quality` applies."""
    even_sides: bool = False
    """It takes pictures of even width and height only."""
    estimate_bytes: Callable[[float, int, float], float]
    """(pixels, quality, bytes of the source file) -> about how long a member becomes."""
    encode: Callable[[Image.Image, int, Subsampling], bytes] | None
    """(RGB or RGBX image, quality, subsampling) -> the member. Raises OSError or ValueError for a picture that has no
    such form. None: the source file itself is the member, and no size applies."""
    settings: Callable[[int, Subsampling], dict[str, object]] = lambda quality, subsampling: {}
    """(quality, subsampling) -> what the manifest says of the codec, beside its name."""
    fill: Callable[[bytes, Pixels, Choose, Clock, bool], None]
    """(member, out_HWC, choose, clock, fast_chroma): the chosen region, resized, into `out_HWC`. `fast_chroma` may
    repeat chroma pixels instead of smoothing them. Raises DatasetError for bytes that cannot be used."""
    job: Callable[[bytes, int, Choose], Job | None]
    """(member, the output's side in pixels, choose) -> what the compiled kernel is told to do, for the pixels that
    `fill` gives; None: this member is for `fill`. Raises DatasetError likewise."""
    pixels: Callable[[bytes], Pixels]
    """The whole picture, RGB HWC; read-only where it shows the member. Raises DatasetError."""
    check: Callable[[bytes, int, int, Mapping[str, Any]], str]
    """(member, width, height, the manifest's settings) -> what is wrong with it; "" when nothing is. Raises
    DatasetError or ValueError where the member does not decode."""

    @property
    def sized(self) -> bool:
        """Whether a size, and how to resize, apply."""
        return self.encode is not None


def fill_with(pixels: Callable[[bytes], Pixels]) -> Callable[[bytes, Pixels, Choose, Clock, bool], None]:
    """A `Codec.fill` that takes the region out of all `pixels`."""

    def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, _fast_chroma: bool) -> None:
        pixels_HWC = pixels(data)
        clock.decoded()
        resize_into(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), out_HWC)
        clock.transformed()

    return fill


def size_trouble(pixels_HWC: Pixels, width: int, height: int) -> str:
    """For `Codec.check`."""
    rows, columns = pixels_HWC.shape[:2]
    return "" if (columns, rows) == (width, height) else f"is {columns}x{rows}, the index says {width}x{height}"
