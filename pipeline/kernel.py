"""Stands in until `order` and `augment` are there: a plain full decode, crop and resize, and a plain epoch plan."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from feedline.pipeline.counters import FIELD, Clock

Kernel = Callable[[bytes, npt.NDArray[np.uint8], int, int, Clock], None]
cv2.setNumThreads(1)


@dataclass(frozen=True, kw_only=True)
class Augment:
    train: bool = True


def make_kernel(codec: str, augment: Augment, seed: int) -> Kernel:
    def kernel(data: bytes, out_HWC: npt.NDArray[np.uint8], sample: int, epoch: int, clock: Clock) -> None:
        image: Any = np.load(io.BytesIO(data)) if codec == "raw" else simplejpeg.decode_jpeg(data)
        clock.mark(FIELD["decode"])
        height, width = image.shape[:2]
        left, top, w, h = (
            (width - min(width, height)) // 2,
            (height - min(width, height)) // 2,
            *[min(width, height)] * 2,
        )
        flip = False
        if augment.train:
            rng = np.random.default_rng((seed, epoch, sample))
            left, top, w, h = _crop(rng, width, height)
            flip = rng.random() < 0.5
        region = image[top : top + h, left : left + w]
        px = out_HWC.shape[0]
        if flip:
            cv2.flip(cv2.resize(region, (px, px)), 1, dst=out_HWC)
        else:
            cv2.resize(region, (px, px), dst=out_HWC)
        clock.mark(FIELD["transform"])

    return kernel


def _crop(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
    return 0, 0, width, height
