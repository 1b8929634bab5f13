"""A picture in any of the formats that photographs come in, read by Pillow within bounds.

Pillow opens far more when it is not told what: EPS starts another program, and each decoder is one more to trust.
"""

import io
import warnings

from PIL import Image

from feedline.pipeline.errors import DatasetError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
OPTIONAL = {
    "webp": ("WebP", "libwebp-dev", "WEBP support not installed"),
    "libtiff": ("compressed TIFF", "libtiff-dev", "decoder libtiff not available"),
    "littlecms2": ("LAB colours", "liblcms2-dev", "_imagingcms"),
}
"""By Pillow's name for a part that it may be built without: what it reads, the Debian package to build it with, and
what Pillow says where it lacks it."""


def open_rgb(data: bytes) -> Image.Image:
    """Raises DatasetError for what is none of FORMATS, damaged, or over Pillow's limit of 179 million pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # broken EXIF, and sizes from half that limit on
        Image.init()
        try:
            return Image.open(io.BytesIO(data), formats=FORMATS).convert("RGB")
        except Exception as error:  # Pillow's parsers raise whatever damaged bytes lead them to
            raise DatasetError(f"it is no image that can be decoded ({type(error).__name__}: {error})") from error
