"""The odd files that ImageNet really has, and two that every copy of it gets sooner or later."""

import io
from collections.abc import Callable

import numpy as np
import simplejpeg
from PIL import Image as PillowImage

from feedline.preprocess.synth.pictures import Image, Picture, draw, jpeg

SOI_BYTES = 2
ORIENTATION_TAG = 0x0112


def picture_bytes(picture: Picture, long_side_px: int) -> bytes:
    """The file's bytes, odd or not."""
    if not picture.oddity:
        return jpeg(picture, long_side_px)
    return ODD[picture.oddity](*draw(picture, long_side_px))


def cmyk(image: Image, quality: int) -> bytes:
    """Four channels, inverted as Adobe has it (Pillow writes them so)."""
    return saved(PillowImage.fromarray(image).convert("CMYK"), "JPEG", quality=quality)


def png(image: Image, quality: int) -> bytes:
    """A PNG with an alpha channel, under a JPEG's name."""
    alpha = np.full((*image.shape[:2], 1), 255, np.uint8)
    return saved(PillowImage.fromarray(np.concatenate([image, alpha], axis=2)), "PNG")


def grey(image: Image, quality: int) -> bytes:
    one = np.asarray(PillowImage.fromarray(image).convert("L"))[..., None]
    return simplejpeg.encode_jpeg(np.ascontiguousarray(one), quality=quality, colorspace="GRAY")


def orientation(image: Image, quality: int) -> bytes:
    """Says that it lies on its side."""
    exif = PillowImage.Exif()
    exif[ORIENTATION_TAG] = 6
    return saved(PillowImage.fromarray(image), "JPEG", quality=quality, exif=exif.tobytes())


def bad_exif(image: Image, quality: int) -> bytes:
    """An Exif segment whose directory points nowhere."""
    whole = simplejpeg.encode_jpeg(image, quality=quality, colorspace="RGB", colorsubsampling="420", fastdct=False)
    payload = b"Exif\0\0MM\0*\xff\xff\xff\xf0" + bytes(range(7, 39))
    segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
    return whole[:SOI_BYTES] + segment + whole[SOI_BYTES:]


def truncated(image: Image, quality: int) -> bytes:
    whole = simplejpeg.encode_jpeg(image, quality=quality, colorspace="RGB", colorsubsampling="420", fastdct=False)
    return whole[: len(whole) * 3 // 5]


def empty(image: Image, quality: int) -> bytes:
    return b""


def saved(image: PillowImage.Image, kind: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


ODD: dict[str, Callable[[Image, int], bytes]] = {
    "cmyk": cmyk,
    "png": png,
    "grey": grey,
    "orientation": orientation,
    "bad exif": bad_exif,
    "truncated": truncated,
    "empty": empty,
}
