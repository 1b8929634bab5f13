"""`jpeg`: crop-addressable JPEG (`crop_jpeg`), encoded by Pillow, decoded by libjpeg-turbo.

The compiled kernel decodes a region by itself. What it leaves to libjpeg-turbo: a region's tiles are cut out of the
file and decoded, at 1/2, 1/4 or 1/8 where the output is that much smaller (libjpeg's scaled DCT), then resized; a
JPEG without tiles is decoded down to the region's last row.
"""

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import simplejpeg
from PIL import Image

from feedline.pipeline.codecs import crop_jpeg
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels, Subsampling, size_trouble
from feedline.pipeline.codecs.crop_jpeg import Frame, JpegError, cut, parse
from feedline.pipeline.draw.regions import Region
from feedline.pipeline.draw.resample import job_of, resize_into
from feedline.pipeline.kernel.compiled import Job

Colours = Literal["RGB", "RGBX"]
SOI = b"\xff\xd8"
"""What every JPEG begins with."""


def encode(image: Image.Image, quality: int, subsampling: Subsampling = "420") -> bytes:
    """RGB to a crop-addressable JPEG."""
    tiles = crop_jpeg.restart_interval(image.size[0], subsampling)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling={"420": 2, "444": 0}[subsampling],
               restart_marker_blocks=tiles)  # fmt: skip
    return file.getvalue()


def decode(data: bytes, colours: Colours = "RGB", *, factor: int = 1, fast_chroma: bool = False,
           shortened: bool = False) -> Pixels:  # fmt: skip
    """Pixels, HWC uint8, `factor` (1, 2, 4, 8) times smaller, sides rounded up. `fast_chroma` repeats chroma pixels
    instead of smoothing them: 7 % faster, 45 dB from the smooth picture, and a cut then equals a full decode exactly.

    Rarities go through Pillow, always at full size. Raises JpegError when nothing can read it, and for a picture that
    is damaged or cut short: it is never filled up with something. `shortened`: it comes from `crop_jpeg.shorten`, so
    that the decoder complains of bytes left over, when all pixels are in place.
    """
    frame = parse(data)
    smallest = [-(-side // factor) if factor > 1 else 0 for side in frame[1::-1]]
    options = (colours, False, fast_chroma, *smallest)
    pixels_HWC = np.empty((*frame[1::-1], len(colours)), np.uint8) if shortened else None
    complaint = ""
    for _ in range(_MOST_ODDITIES):
        try:
            return simplejpeg.decode_jpeg(data, *options, buffer=pixels_HWC)
        except ValueError as error:
            complaint = str(error)
        if _COMPLETE.fullmatch(complaint):  # the first complaint, and the only one: all else is right
            return simplejpeg.decode_jpeg(data, *options, strict=False) if pixels_HWC is None else pixels_HWC
        mended = _mended(data, complaint)
        if mended == data:
            break
        data = mended
    if _DAMAGE.match(complaint):
        raise JpegError(f"damaged JPEG: {complaint}")
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            return np.array(image.convert("RGB").convert(colours), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise JpegError(f"JPEG cannot be decoded ({complaint})") from error


_DAMAGE = re.compile("Corrupt JPEG data|Premature end|Inconsistent progression")  # libjpeg's words
_COMPLETE = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")
_MOST_ODDITIES = 3  # the last of them is not looked at again


def _mended(data: bytes, complaint: str) -> bytes:
    """What libjpeg complains of and reads all the same, put right, so that it says whether anything else is wrong: it
    reports its first complaint only, and reading on regardless (`strict=False`) gives uninitialised memory for a
    picture that it cannot decode at all."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if "JFIF" in complaint and marker == 0xE0 and body[:5] == b"JFIF\0":
            return b"".join((data[: at + 9], b"\1\1", data[at + 11 :]))
        if "Adobe" in complaint and marker == 0xEE and body[:5] == b"Adobe" and len(body) >= 12:
            return b"".join((data[: at + 15], b"\1", data[at + 16 :]))
        if marker == 0xDA:
            end = at + 2 + length
            return b"".join((data[: end - 3], b"\0\x3f\0", data[end:])) if "SOS" in complaint else data
        at += 2 + length
    return data


def job(data: bytes, px: int, choose: Choose) -> Job | None:
    frame = parse(data)
    region = choose(frame.width_px, frame.height_px)
    return job_of(data, region, px, px) if dct_factor(region, px, px) == 1 else None


def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, fast_chroma: bool) -> None:
    """By libjpeg-turbo: what there is no job for, or what the compiled kernel leaves to it."""
    frame = parse(data)
    region = choose(frame.width_px, frame.height_px)
    factor = dct_factor(region, out_HWC.shape[1], out_HWC.shape[0])
    pixels_HWX, inside, factor = _decode_region(data, frame, region, factor, fast_chroma)
    clock.decoded()
    resize_into(pixels_HWX, inside, out_HWC, factor)
    clock.transformed()


def _decode_region(data: bytes, frame: Frame, region: Region, factor: int,
                   fast_chroma: bool) -> tuple[Pixels, Region, int]:  # fmt: skip
    """RGBX pixels, where the region lies in them (in pixels of full size), and by which factor they are smaller."""
    part = cut(data, *region[:4], frame=frame)
    if part.data is data and factor == 1:
        shortened = crop_jpeg.shorten(data, region.top_px + region.height_px, frame)
        if shortened is not data:
            with suppress(JpegError):  # the whole may decode in other ways, and says what is wrong with it
                return decode(shortened, "RGBX", fast_chroma=fast_chroma, shortened=True), region, 1
    pixels_HWX = decode(part.data, "RGBX", factor=factor, fast_chroma=fast_chroma)
    if factor > 1 and pixels_HWX.shape[0] == parse(part.data).height_px:  # a rarity that only Pillow reads
        factor = 1
    return pixels_HWX, Region(part.left_px, part.top_px, *region[2:]), factor


def dct_factor(region: Region, out_width_px: int, out_height_px: int) -> int:
    """The largest of 1, 2, 4, 8 by which the region can be decoded smaller and still cover the output."""
    width_px, height_px = region.inner[2:] if region.inner else region[2:4]
    room = min(width_px / out_width_px, height_px / out_height_px)
    return 8 if room >= 8 else 4 if room >= 4 else 2 if room >= 2 else 1


def check(data: bytes, width: int, height: int, settings: Mapping[str, Any]) -> str:
    """Strict: raises ValueError for any complaint. With plain upsampling: chroma then takes nothing from the tile
    beside it, so that a right cut has the very pixels of the whole, where a tolerance would let a wrong cut of a
    smooth picture pass."""
    pixels_HWC = simplejpeg.decode_jpeg(data, "RGB", fastupsample=True)
    trouble = size_trouble(pixels_HWC, width, height)
    if trouble or not settings.get("crop_addressable", False):
        return trouble
    if not crop_jpeg.is_crop_addressable(data):
        return "is not crop-addressable: it has no restart tiles"
    left, top, across, down = width // 3, height // 3, max(width // 3, 1), max(height // 3, 1)
    part = cut(data, left, top, across, down)
    cut_HWC = simplejpeg.decode_jpeg(part.data, "RGB", fastupsample=True)
    cut_HWC = cut_HWC[part.top_px : part.top_px + down, part.left_px : part.left_px + across]
    whole_HWC = pixels_HWC[top : top + down, left : left + across]
    if cut_HWC.shape != whole_HWC.shape:
        return f"is not crop-addressable: a cut of {across}x{down} gave {cut_HWC.shape[1]}x{cut_HWC.shape[0]}"
    if np.array_equal(cut_HWC, whole_HWC):
        return ""
    difference = float(np.abs(cut_HWC.astype(np.int16) - whole_HWC).mean())
    return f"is not crop-addressable: a cut differs by {difference:.2g} of 255 in the mean"


JPEG = Codec(
    name="jpeg",
    extension="jpg",
    image_file=True,
    cuttable=True,
    lossy=True,
    has_quality=True,
    estimate_bytes=lambda pixels, quality, source_bytes: pixels * 0.31 * (quality / 90) ** 3,
    encode=encode,
    settings=lambda quality, subsampling: {"quality": quality, "subsampling": subsampling, "crop_addressable": True},
    fill=fill,
    job=job,
    pixels=decode,
    check=check,
)
