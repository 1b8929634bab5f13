"""`keep`: the source's own files, whatever picture they are. JPEGs are read as by `jpeg`, others by Pillow."""

import numpy as np

from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.base import Choose, Clock, Codec, Pixels, size_trouble
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.pipeline.draw.resample import resize_into


def pixels(data: bytes) -> Pixels:
    return jpeg.decode(data) if data[:2] == jpeg.SOI else np.array(open_rgb(data))


def fill(data: bytes, out_HWC: Pixels, choose: Choose, clock: Clock, fast_chroma: bool) -> None:
    if data[:2] == jpeg.SOI:
        jpeg.fill(data, out_HWC, choose, clock, fast_chroma)
        return
    pixels_HWC = np.asarray(open_rgb(data))
    clock.decoded()
    resize_into(pixels_HWC, choose(pixels_HWC.shape[1], pixels_HWC.shape[0]), out_HWC)
    clock.transformed()


KEEP = Codec(
    name="keep",
    extension="",
    image_file=True,
    lossy=False,
    has_quality=False,
    estimate_bytes=lambda pixels, quality, source_bytes: source_bytes,
    encode=None,
    fill=fill,
    pixels=pixels,
    check=lambda data, width, height, settings: size_trouble(pixels(data), width, height),
)
