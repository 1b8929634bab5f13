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


class EpochPlan:
    def __init__(self, samples: int, *, seed: int, epoch: int, batch_size: int, world_size: int, rank: int,
                 policy: str, shuffle: bool, start: int) -> None:  # fmt: skip
        whole = np.random.default_rng((seed, epoch)).permutation(samples) if shuffle else np.arange(samples)
        rest = whole[start:].astype(np.int64)
        step = batch_size * world_size
        if policy == "drop":
            rest = rest[: len(rest) // step * step]
        elif missing := -len(rest) % step:
            rest = np.concatenate([rest, np.full(missing, -1) if policy == "pad" else np.resize(whole, missing)])
        self._rows = rest.reshape(-1, world_size, batch_size)[:, rank]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, number: int) -> npt.NDArray[np.int64]:
        return self._rows[number]
