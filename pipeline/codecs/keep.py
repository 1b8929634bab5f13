"""`keep`: the source's own files, whatever picture they are. JPEGs are read as by `jpeg`, others by Pillow."""

import numpy as np

from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels, fill_with, size_trouble
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.pipeline.kernel.compiled import Job


def pixels(data: bytes) -> Pixels:
    return jpeg.decode(data) if data[:2] == jpeg.SOI else np.asarray(open_rgb(data))


def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, fast_chroma: bool) -> None:
    (jpeg.fill if data[:2] == jpeg.SOI else _fill_whole)(data, out_HWC, choose, clock, fast_chroma)


_fill_whole = fill_with(pixels)


def job(data: bytes, px: int, choose: Choose) -> Job | None:
    return jpeg.job(data, px, choose) if data[:2] == jpeg.SOI else None


KEEP = Codec(
    name="keep",
    extension="",
    image_file=True,
    cuttable=True,
    lossy=False,
    has_quality=False,
    estimate_bytes=lambda pixels, quality, source_bytes: source_bytes,
    encode=None,
    fill=fill,
    job=job,
    pixels=pixels,
    check=lambda data, width, height, settings: size_trouble(pixels(data), width, height),
)
