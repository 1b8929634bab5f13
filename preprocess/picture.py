"""Bytes to bytes, pure: one raw image in, its prepared form(s) out.

Sniff the bytes (names lie), decode once to RGB, resize with an antialiasing filter, encode each output. The cost is
that of the parts: libjpeg-turbo decodes into a buffer kept between images, four bytes a pixel, which is the layout
Pillow itself uses, so the resampler reads it in place, and the JPEG encoder reads the resampler's result in place:
no copy between libraries (each would cost about 75 µs of some 1,450). Whatever libjpeg-turbo will not turn into RGB
(CMYK, PNG, damaged files) goes through Pillow, whose conversions are the reference.

EXIF is ignored and not carried over (a TIFF is turned upright all the same: Pillow always does); ICC profiles are
dropped (`keep` keeps the whole file) and counted.
"""

import io
import re
import struct
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import simplejpeg
from PIL import Image

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.base import Codec, Subsampling
from feedline.pipeline.codecs.crop_jpeg import JpegError
from feedline.pipeline.codecs.pillow import FORMATS, NAMES, NotSupported, lacking, loaded, without_limit, words_of
from feedline.pipeline.codecs.table import CODECS

Resize = Literal["shortest", "square", "crop", "stretch", "none"]
Filter = Literal["bicubic", "bilinear", "lanczos", "box", "hamming"]

RESIZES, FILTERS = get_args(Resize), get_args(Filter)
EXTENSIONS = {"MPO": "jpg"} | {kind.name: kind.extensions.split()[0].removeprefix(".") for kind in FORMATS}
"""By Pillow's name of a format; MPO is a JPEG with more pictures behind it."""
MAX_PIXELS = 1 << 26
STEPS = ("decode", "resize", "encode")
"""Where the time goes."""
KEEP_BUFFER_BYTES = 1 << 25  # a larger one is dropped again, so that one giant does not stay in memory
HEADER_BYTES = 1 << 17  # application segments come first; two of the longest fit


class BadImage(Exception):
    """An image that cannot be used: a short phrase to count by, and what the decoder said."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class Output:
    """One prepared form of the images. Everything here changes the bytes, so it is part of the plan's identity."""

    codec: str = "jpeg"
    """A name of CODECS."""
    size_px: int = 256
    """Pixels of the short side, or of the square; not used where nothing is resized."""
    resize: Resize = "shortest"
    """shortest, square, crop, stretch or none."""
    quality: int = limited(90, 1, 100)
    """Of a lossy codec, as of JPEG."""
    subsampling: Subsampling = "420"
    """JPEG chroma: 420 or 444."""
    enlarge: bool = False
    """Also scale up images smaller than SIZE."""
    filter: Filter = "bicubic"
    """Antialiasing filter: bicubic, bilinear, lanczos, box, hamming."""
    apply_orientation: bool = False
    """Turn the pixels as EXIF says (published accuracies ignore it)."""

    def __post_init__(self) -> None:
        check_limits(self)
        check(self.codec in CODECS, f"codec {self.codec!r} is none of {', '.join(CODECS)}")
        check(self.resize in RESIZES, f"resize {self.resize!r} is none of {', '.join(RESIZES)}")
        check(self.filter in FILTERS, f"filter {self.filter!r} is none of {', '.join(FILTERS)}")
        check(self.subsampling in ("420", "444"), f"subsampling {self.subsampling!r} is neither 420 nor 444")
        check(not self.resizes or 2 <= self.size_px <= 16384, f"size {self.size_px} px is not in 2..16384")

    @property
    def form(self) -> Codec:
        return CODECS[self.codec]

    @property
    def resizes(self) -> bool:
        return self.resize != "none" and self.form.sized

    @property
    def name(self) -> str:
        """Folder name among several outputs: `256-jpeg`, `64-raw`, `keep`."""
        return f"{self.size_px}-{self.codec}" if self.resizes else self.codec

    def settings(self) -> dict[str, object]:
        """What the manifest says about this output: only what applied."""
        if not self.form.sized:
            return {"codec": self.codec}
        orientation = "applied" if self.apply_orientation else "ignored"
        settings: dict[str, object] = {"codec": self.codec, "resize": self.resize, "orientation": orientation}
        if self.resizes:
            settings |= {"size_px": self.size_px, "enlarge": self.enlarge}
            if self.resize != "crop":
                settings |= {"filter": f"{self.filter}, antialiased (Pillow)"}
        return settings | self.form.settings(self.quality, self.subsampling)


def check(fine: bool, what: str) -> None:
    if not fine:
        raise UsageError(what)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One output of one image: the member's bytes and extension, and the size of the picture in it."""

    data: bytes
    extension: str
    width: int
    height: int


class Preparer:
    """Decodes once, gives every output. Keeps one decode buffer; use one per thread.

    `seconds` adds up where the time went, by STEPS; `notes` counts what was unusual and handled.
    """

    def __init__(self, outputs: tuple[Output, ...], max_pixels: int = MAX_PIXELS) -> None:
        self.outputs = outputs
        self.seconds = dict.fromkeys(STEPS, 0.0)
        self.notes: Counter[str] = Counter()
        self._max_pixels = max_pixels
        self._buffer = np.empty(0, np.uint8)

    def __call__(self, data: bytes) -> list[Prepared]:
        """One `Prepared` per output, in order. Raises BadImage."""
        clock = time.perf_counter
        started = clock()
        image, extension = self.decode(data)
        self.seconds["decode"] += clock() - started
        prepared: list[Prepared] = []
        for output in self.outputs:
            member, ready = (data, extension), image
            if output.form.sized:
                started = clock()
                upright = turned(image, data) if output.apply_orientation else image
                ready = resized(upright, output, self._max_pixels)
                between = clock()
                member = encoded(ready, output)
                self.seconds["resize"] += between - started
                self.seconds["encode"] += clock() - between
            prepared.append(Prepared(data=member[0], extension=member[1], width=ready.size[0], height=ready.size[1]))
        if len(self._buffer) > KEEP_BUFFER_BYTES:
            self._buffer = np.empty(0, np.uint8)
        return prepared

    def decode(self, data: bytes) -> tuple[Image.Image, str]:
        """An RGB or RGBX image (valid until the next call), and the extension its format usually has."""
        if not data:
            raise BadImage("empty")
        is_jpeg = data.startswith(b"\xff\xd8\xff")
        if is_jpeg and (image := self._decode_turbo(data)) is not None:
            return image, "jpg"
        read = self._decode_pillow(data)
        if is_jpeg and not all(output.form.sized for output in self.outputs):
            refuse_damage(data, "")
        return read

    def _decode_turbo(self, data: bytes) -> Image.Image | None:
        """None where libjpeg-turbo has any complaint, or does not turn these colours into RGB."""
        try:
            rows, columns, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        except (ValueError, KeyError):  # colours that it has no name for
            return None
        if colours in ("CMYK", "YCCK"):
            return None
        width, height = int(columns), int(rows)
        self._check_size(width, height)
        if len(self._buffer) < width * height * 4:
            self._buffer = np.empty(width * height * 4, np.uint8)
        try:
            simplejpeg.decode_jpeg(data, "RGBX", buffer=self._buffer)
        except ValueError:
            refuse_damage(data, DAMAGE)
            return None
        if colours == "Gray":
            self.notes["grey"] += 1
        if data.find(b"ICC_PROFILE\0", 0, HEADER_BYTES) >= 0:
            self._note_profile()
        return Image.frombuffer("RGBX", (width, height), self._buffer, "raw", "RGBX", 0, 1)

    def _decode_pillow(self, data: bytes) -> tuple[Image.Image, str]:
        try:
            with without_limit():
                image, rgb = loaded(data, self._check_size)
        except (BadImage, MemoryError):
            raise
        except NotSupported as error:
            raise not_supported(str(error)) from None
        except Image.UnidentifiedImageError as error:
            words = next((text for text in words_of(error) if "not installed" in text), "")
            raise (not_supported(words) if words else BadImage("not an image")) from None
        except ImportError as error:
            raise not_supported(str(error).partition(" (")[0]) from None
        except Exception as error:  # Pillow's parsers raise anything on damaged files
            if "not available" in str(error):
                raise not_supported(str(error)) from None
            reason = "truncated" if "truncated" in str(error) else "unreadable"
            raise BadImage(reason, f"{type(error).__name__}: {error}") from None
        kind = str(image.format)
        if kind not in ("JPEG", "MPO"):
            self.notes[f"{kind.lower()} image"] += 1
        elif image.mode == "CMYK":
            self.notes["cmyk"] += 1
        if image.info.get("icc_profile"):
            self._note_profile()
        return rgb, EXTENSIONS[kind]

    def _note_profile(self) -> None:
        kept = not any(output.form.sized for output in self.outputs)
        self.notes[f"icc profile {'kept' if kept else 'dropped'}"] += 1

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._max_pixels:
            raise BadImage("too many pixels", f"{width}x{height} is over the limit of {self._max_pixels} pixels")
        if width < 1 or height < 1:
            raise BadImage("unreadable", f"{width}x{height} pixels")


DAMAGE = "Corrupt JPEG data|Inconsistent progression"
"""libjpeg's words for pixels that are wrong; what else it complains of Pillow reads, or refuses, by itself."""


def refuse_damage(data: bytes, words: str) -> None:
    """Raises BadImage for what the loader would refuse with these words, though Pillow reads it: it fills a picture
    that is damaged within up with something, and says nothing."""
    try:
        jpeg.decode(data, "RGBX")
    except JpegError as error:
        if re.search(words, str(error)):
            raise BadImage("damaged", str(error)) from None


def not_supported(words: str) -> BadImage:
    """What Pillow says of a part that it was built without, with what to install."""
    if not (package := lacking(words)):
        return BadImage("format not supported", words)
    remedy = f"install {package}, build Pillow-SIMD again (make -B setup), then --retry-quarantine"
    return BadImage(f"format not supported (Pillow was built without {package})", f"{words}: {remedy}")


def turned(image: Image.Image, data: bytes) -> Image.Image:
    """As EXIF orientation says; EXIF that cannot be parsed says nothing. Pillow has turned a TIFF already, always."""
    if data[:4] in (b"II*\0", b"MM\0*"):
        return image
    with warnings.catch_warnings(), without_limit():
        warnings.simplefilter("ignore")
        try:
            orientation = Image.open(io.BytesIO(data), formats=NAMES).getexif().get(0x0112, 1)
        except (OSError, SyntaxError, ValueError, struct.error, TypeError, KeyError):
            return image
    method = ORIENTATIONS.get(orientation)
    return image if method is None else image.transpose(method)


ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


Box = tuple[float, float, float, float]


def geometry(width: int, height: int, output: Output) -> tuple[int, int, Box]:
    """Target width and height, and the part of the source that fills them (left, top, right, bottom)."""
    size, short = output.size_px, min(width, height)
    target_w, target_h = inner_w, inner_h = width, height
    if output.resizes and output.resize == "shortest":
        if short > size or output.enlarge:  # as torchvision does, the long side rounded towards zero
            target_w, target_h = size * width // short, size * height // short
    elif output.resizes:
        if output.resize == "square":
            inner_w = inner_h = short
        target_w, target_h = min(size, inner_w), min(size, inner_h)
        if output.resize == "crop":
            inner_w, inner_h = target_w, target_h
        elif output.enlarge:
            target_w = target_h = size
    left, top = (width - inner_w) // 2, (height - inner_h) // 2
    right, bottom = float(left + inner_w), float(top + inner_h)
    if output.form.even_sides:  # the last odd row or column is left out, scale unchanged
        if target_w < 2 or target_h < 2:
            raise BadImage("too small", f"{target_w}x{target_h} px has no 4:2:0 form")
        right -= inner_w * (target_w % 2) / target_w
        bottom -= inner_h * (target_h % 2) / target_h
        target_w, target_h = target_w - target_w % 2, target_h - target_h % 2
    return target_w, target_h, (left, top, right, bottom)


def resized(image: Image.Image, output: Output, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """For a codec with sizes."""
    width, height, box = geometry(*image.size, output)
    if width < 1 or height < 1:
        raise BadImage("too small", f"{image.size[0]}x{image.size[1]} px would become {width}x{height}")
    if width * height > max_pixels:
        raise BadImage("too many pixels", f"{image.size[0]}x{image.size[1]} px would become {width}x{height}")
    if (box[2] - box[0], box[3] - box[1]) != (width, height):
        return image.resize((width, height), Image.Resampling[output.filter.upper()], box=box)
    if (width, height) == image.size:
        return image
    return image.crop((int(box[0]), int(box[1]), int(box[2]), int(box[3])))


def encoded(image: Image.Image, output: Output) -> tuple[bytes, str]:
    """The member's bytes and its extension."""
    codec = output.form
    assert codec.encode is not None
    try:
        return codec.encode(image, output.quality, output.subsampling), codec.extension
    except (OSError, ValueError) as error:  # JPEG: sides over 65,500 px
        raise BadImage("cannot be encoded", str(error)) from None
