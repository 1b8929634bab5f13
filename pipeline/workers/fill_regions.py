"""JPEG regions instead of pixels in a slot, for a device that decodes (`pipeline.gpu_decode`). No torch here.

    slot    records (count x 8 int32: start, length, left, top, width, height, flip, 0), then the JPEGs themselves

Each JPEG is a cut: a valid file of little more than the region, so that few bytes are sent and few blocks decoded.
"""

from typing import Any

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import crop_jpeg
from feedline.pipeline.draw import regions
from feedline.pipeline.workers.fill import Filler
from feedline.pipeline.workers.messages import Bad
from feedline.pipeline.workers.slots import Images, Numbers

RECORD = 8
SLOT_PX = 256
"""Slots are at least so large: 196 KB a sample, which also holds what could not be cut."""
_BORDER_PX = 2  # chroma is smoothed across the region's edge


class RegionFiller(Filler):
    """What is no JPEG is a bad sample, or one of four colours, and what does not fit into the slot. No padding."""

    def fill(self, samples_N: Numbers, epoch: int, px: int, images: Images,
             labels_N: Numbers) -> tuple[int, int, Bad]:  # fmt: skip
        records = images[: len(samples_N) * RECORD * 4].view(np.int32).reshape(-1, RECORD)
        end = records.nbytes

        def put(sample: int, position: int) -> None:
            nonlocal end
            cut, box = self._cut(self.read(sample), epoch, sample, px)
            begin, end = end, end + len(cut)
            if end > len(images):
                end = begin
                raise DatasetError(f"the batch's JPEGs do not fit into {len(images):,} bytes: use decode='cpu'")
            images[begin:end] = np.frombuffer(cut, np.uint8)
            records[position] = (begin, len(cut), *box, 0)
            self.clock.transformed()

        bad: Bad = []
        return self.one_by_one(samples_N, labels_N, put, bad), end, bad

    def _cut(self, data: bytes, epoch: int, sample: int, px: int) -> tuple[bytes, tuple[int, int, int, int, int]]:
        """The JPEG, and left, top, width, height in it, flip."""
        frame = crop_jpeg.parse(data)
        if data[frame.size_at + 4] > 3:
            raise DatasetError("a JPEG of four colours is nothing for the GPU's decoder: use decode='cpu'")
        region = regions.choose(frame.width_px, frame.height_px, px, self.augment, self.spec.seed, epoch, sample)
        cut = crop_jpeg.cut(data, *region[:4], border_px=_BORDER_PX, frame=frame)
        left, top, width, height = region.inner or (0, 0, region.width_px, region.height_px)
        corner = cut.left_px + round(left), cut.top_px + round(top)
        return cut.data, (*corner, max(1, round(width)), max(1, round(height)), int(region.flip))


def unpack(flat: Images, count: int) -> list[tuple[Images, list[int]]]:
    """(JPEG bytes as a view, [left, top, width, height, flip]) of each sample."""
    records: Any = flat[: count * RECORD * 4].view(np.int32).reshape(count, RECORD)
    return [(flat[start : start + length], rest[:5]) for start, length, *rest in records.tolist()]
