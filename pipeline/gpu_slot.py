"""JPEG regions instead of pixels in a slot: what workers do when the device decodes. No torch here.

    slot    records (count x 8 int32: start, length, left, top, width, height, flip, 0), then the JPEGs themselves

Each JPEG is a cut: a valid file of little more than the region, so that few bytes are sent and few blocks decoded.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import crop_jpeg
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment

RECORD = 8
SLOT_PX = 256
"""Slots are at least so large: 196 KB a sample, which also holds what could not be cut."""
_BORDER_PX = 2  # chroma is smoothed across the region's edge


class Packer:
    """Fills one slot's bytes with the regions of up to `count` samples."""

    def __init__(self, flat: npt.NDArray[np.uint8], count: int) -> None:
        self._flat = flat
        self.records = flat[: count * RECORD * 4].view(np.int32).reshape(count, RECORD)
        self._end = count * RECORD * 4

    def add(self, place: int, data: bytes, augment: Augment, seed: int, epoch: int, sample: int, px: int) -> None:
        """Raises DatasetError for what is no JPEG, or when the slot is full."""
        frame = crop_jpeg.parse(data)
        region = regions.choose(frame.width_px, frame.height_px, px, augment, seed, epoch, sample)
        place_px = (region.left_px, region.top_px, region.width_px, region.height_px)
        cut = crop_jpeg.cut(data, *place_px, border_px=_BORDER_PX, frame=frame)
        end = self._end + len(cut.data)
        if end > len(self._flat):
            raise DatasetError(f"the batch's JPEGs do not fit into {len(self._flat):,} bytes: use decode='cpu'")
        self._flat[self._end : end] = np.frombuffer(cut.data, np.uint8)
        left, top, width, height = region.inner or (0, 0, region.width_px, region.height_px)
        self.records[place] = (self._end, len(cut.data), cut.left_px + round(left), cut.top_px + round(top),
                               max(1, round(width)), max(1, round(height)), region.flip, 0)  # fmt: skip
        self._end = end


def unpack(flat: npt.NDArray[np.uint8], count: int) -> list[tuple[npt.NDArray[np.uint8], list[int]]]:
    """(JPEG bytes as a view, [left, top, width, height, flip]) of each sample."""
    records: Any = flat[: count * RECORD * 4].view(np.int32).reshape(count, RECORD)
    return [(flat[start : start + length], rest[:5]) for start, length, *rest in records.tolist()]
