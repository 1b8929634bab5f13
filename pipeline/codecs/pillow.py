"""A picture in any of the formats that photographs come in, read by Pillow within bounds.

Pillow opens far more when it is not told what: EPS starts another program, and each decoder is one more to trust.
"""

import io
import warnings

import numpy as np
from PIL import Image

from feedline.pipeline.base.errors import DatasetError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
OPTIONAL = {
    "webp": ("WebP", "libwebp-dev", "WEBP support not installed"),
    "libtiff": ("compressed TIFF", "libtiff-dev", "decoder libtiff not available"),
    "littlecms2": ("LAB colours", "liblcms2-dev", "_imagingcms"),
}
"""By Pillow's name for a part that it may be built without: what it reads, the Debian package to build it with, and
what Pillow says where it lacks it."""


def lacking(words: str) -> str:
    """The package that these words of Pillow's miss; "" where they are about anything else."""
    return next((package for _, package, known in OPTIONAL.values() if known in words), "")


def open_rgb(data: bytes) -> Image.Image:
    """Raises DatasetError for what is none of FORMATS, damaged, or over Pillow's limit of 179 million pixels."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # broken EXIF, sizes from half that limit on; formats this Pillow lacks
        Image.init()
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            image.load()
            return to_rgb(image)
        except Exception as error:  # Pillow's parsers raise whatever damaged bytes lead them to
            package = lacking(" ".join(map(str, [error, *(warning.message for warning in caught)])))
            why = f"Pillow was built without {package}" if package else f"{type(error).__name__}: {error}"
            raise DatasetError(f"it is no image that can be decoded ({why})") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Pillow's own `convert("RGB")`; 16-bit grey, which it would clip, keeps its upper eight bits."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM", "TIFF")):
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((grey >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
