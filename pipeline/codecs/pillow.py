"""A picture in any of the formats that photographs come in, read by Pillow within bounds.

Pillow opens far more when it is not told what: EPS starts another program, and each decoder is one more to trust.
"""

import io
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, features

from feedline.pipeline.base.errors import DatasetError

BITS_PER_SAMPLE = 258
"""A TIFF's tag of them, one for each colour."""
LIBRARIES = ("pillow", "pillow-simd")
"""Distributions that decide what a picture file's pixels are."""


class Format(NamedTuple):
    """A kind of picture file: a row of FORMATS is all that reading it takes."""

    name: str
    """Pillow's."""
    extensions: str
    start: bytes
    """What its files begin with, as a regular expression."""


FORMATS = (
    Format("JPEG", ".jpg .jpeg .jpe .jfif", rb"\xff\xd8\xff"),
    Format("PNG", ".png", rb"\x89PNG"),
    Format("GIF", ".gif", rb"GIF8[79]a"),
    Format("BMP", ".bmp", rb"BM.{4}\0{4}"),
    Format("WEBP", ".webp", rb"RIFF.{4}WEBP"),
    Format("TIFF", ".tif .tiff", rb"II\*\0|MM\0\*"),
    Format("PPM", ".ppm .pgm", rb"P[1-6]\s"),
)
_UNREAD = (
    Format("JPEG2000", ".jp2", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
    Format("HEIF", ".heic .heif .avif", rb".{4}ftyp(?:hei|hev|mif1|msf1|avi[fs])"),
)
"""Photographs that are not opened: they are counted, not passed over."""
NAMES = tuple(kind.name for kind in FORMATS)
EXTENSIONS = tuple(" ".join(kind.extensions for kind in (*FORMATS, *_UNREAD)).split())
"""Which files are taken for images; what they really are is found from their bytes."""
START = re.compile(b"|".join(kind.start for kind in (*FORMATS, *_UNREAD)), re.DOTALL)


class Part(NamedTuple):
    """Something that Pillow may be built without."""

    feature: str
    """Pillow's name."""
    reads: str
    package: str
    """Debian's, to build it with."""
    complaint: str
    """What Pillow says where it lacks it."""
    example: bytes
    """A small noisy file that needs it, in base 85: not every build could write one."""

    @property
    def is_there(self) -> bool:
        return bool(features.check(self.feature))


OPTIONAL = (
    Part(
        "webp", "WebP", "libwebp-dev", "WEBP support not installed",
        b"Qb|TefB*mhS4BclR!}$~bN~PVPyzs*0V)Xq2LJ+qLM5;QbTCIrLqvyuZXKWi-QnMQgx#vykzy=@9`b<py_Ts(Dn*m4-=&w~3Y8VTG#;0`C"
        b"k0lZQN1h_T(zXlFB`f4vy(rAc@sr?Yu+DAXTOB*6iaik|H_M4+n?QkCw~U~U;qFB",
    ),
    Part(
        "libtiff", "compressed TIFF", "libtiff-dev", "decoder libtiff not available",
        b"Nl7XI-~a#sfCCkTP;iBwjDCPoM)d+w5RN6F!N7v*nFccrF2JYq3Sc&XZkt<WriwjO%rym8L<PGDHidDi%<0i;MD*ZLs6+ziTh(S!7mb}t^"
        b"q}poO;VANiEz6xGFf6Ti;fl;>9+V19!cPq675<WO{)**6vG(!f^f8nt|tftkeN@G1S7Rs00v8Eo!U$%nGlS~XS>8IfU&rM$wZxpZjxXvaD"
        b"xJ<glplFbVkDw1H!?w!_*K_FRNLl;6vEHz&))+ELQ8elC?*WUxAZh6s{UgG#@LYKu!Vx3IG5B0{{U4000R9000320{{U4000L7000630{{"
        b"a6003SA000940{{U4000F5000I70{{U400062000pI1ONd5000O8000#M0{{U400093000&N0{{U4000L7000*O1ONd5007qj000~T0{{U"
        b"40003100000000O82mlBG",
    ),
    Part(
        "littlecms2", "LAB colours", "liblcms2-dev", "_imagingcms",
        b"Nl7XI2mk;83IG5B1ONd5000R9000321ONd5000L7000630{{a6004#n000940{{U400031000I70{{U4000O8000pI1ONd5004{t000#M0"
        b"{{U400093000&N1ONd5000L7000*O1ONd5006xJ000~T0{{U40003100000000O82mlBG46H>CA<vBc0g7*+l!%T?gANE?rh_vYy9Iwim>"
        b"YoIZQEMWkE+aS6|z9L!W)I-r)Qllk$T{vp&%~n^|MhgHtMgGJJ(I6Mue9a%o$n4zFgtMI@|apc~1$#yR93WtbcKs#(aX|(oN#w0Z5sjSRp"
        b"&BKm$w9chbW1L`KNZ?;)rbZa~S2c01`z3%G*?q9eXCog>2{4;C9(^$1a4t<7Et_FuqzwJF8j?#Z=}LHrqPMOPY{(D}M(69",
    ),
)  # fmt: skip


def lacking(words: str) -> str:
    """The package that these words of Pillow's miss; "" where they are about anything else."""
    return next((part.package for part in OPTIONAL if part.complaint in words), "")


@contextmanager
def without_limit() -> Generator[None]:
    """Pillow's own limit of pixels set aside, for whoever has one of their own."""
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def loaded(data: bytes, look: Callable[[int, int], None] = lambda *_: None) -> tuple[Image.Image, Image.Image]:
    """The picture as Pillow knows it, and its RGB. `look` sees width and height before a pixel is decoded. Raises
    whatever `look` and Pillow do: its parsers raise anything on damaged bytes; `words_of` has all that it said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # broken EXIF, many pixels; formats this Pillow lacks
        Image.init()
        try:
            image = Image.open(io.BytesIO(data), formats=NAMES)
            look(*image.size)
            image.load()
            return image, to_rgb(image)
        except Exception as error:
            for warning in caught:
                error.add_note(str(warning.message))
            raise


def words_of(error: BaseException) -> list[str]:
    """An exception's own, then what was warned of before."""
    return [str(error), *getattr(error, "__notes__", ())]


def open_rgb(data: bytes) -> Image.Image:
    """Raises DatasetError for what is none of FORMATS, damaged, or over Pillow's limit of 179 million pixels."""
    try:
        return loaded(data)[1]
    except Exception as error:
        package = lacking(" ".join(words_of(error)))
        why = f"Pillow was built without {package}" if package else f"{type(error).__name__}: {error}"
        raise DatasetError(f"it is no image that can be decoded ({why})") from error


class NotSupported(ValueError):
    """Pixels of which nobody knows where black and white are."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Pillow's own `convert("RGB")`; 16-bit grey, which it would clip, keeps its upper eight bits. Raises
    NotSupported for pixels of 32 bits: nothing says how they would become eight."""
    tags: dict[int, Any] = getattr(image, "tag_v2", {})  # a TIFF's
    if image.mode == "F" or (image.mode == "I" and max(tags.get(BITS_PER_SAMPLE, (16,))) > 16):
        raise NotSupported(f"pixels of 32 bits or floating point ({image.format}): convert them to 8 or 16 bits")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM", "TIFF")):
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((grey >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
