"""Bilinear resizing of a region against its formula, for three and four channels."""

import numpy as np
import numpy.typing as npt
import pytest

from feedline.pipeline.draw.regions import Region
from feedline.pipeline.draw.resample import bilinear_into

PHOTO_HWX = np.random.default_rng(0).integers(0, 256, (96, 120, 4), dtype=np.uint8)


def formula(image_HWC: npt.NDArray[np.uint8], px: int) -> npt.NDArray[np.float64]:
    """Pixel centres at n + 1/2, edges repeated, in float64."""
    result = image_HWC.astype(np.float64)
    for axis in (0, 1):
        side = result.shape[axis]
        places = (np.arange(px) + 0.5) * side / px - 0.5
        first = np.floor(places).astype(int)
        share = (places - first).reshape([-1 if axis == n else 1 for n in range(3)])
        low, high = (np.take(result, np.clip(first + step, 0, side - 1), axis) for step in (0, 1))
        result = low * (1 - share) + high * share
    return result


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_pixels_are_the_formulas_within_a_level(channels: int, flip: bool) -> None:
    out_HWC = np.empty((64, 64, 3), np.uint8)
    pixels = np.ascontiguousarray(PHOTO_HWX[:, :, :channels])
    bilinear_into(pixels, Region(7, 11, 61, 50, flip), out_HWC)
    wanted = formula(PHOTO_HWX[11:61, 7:68, :3], 64)
    assert np.abs(out_HWC - (wanted[:, ::-1] if flip else wanted)).max() < 1


@pytest.mark.parametrize("channels", [3, 4])
def test_a_region_of_the_outputs_size_is_copied(channels: int) -> None:
    out_HWC = np.empty((64, 64, 3), np.uint8)
    bilinear_into(np.ascontiguousarray(PHOTO_HWX[:, :, :channels]), Region(9, 2, 64, 64), out_HWC)
    assert (out_HWC == PHOTO_HWX[2:66, 9:73, :3]).all()


def test_a_fourth_channel_changes_a_pixel_by_one_level_at_most() -> None:
    three, four = np.empty((2, 48, 48, 3), np.uint8)
    region = Region(3, 5, 40, 31, True)
    bilinear_into(np.ascontiguousarray(PHOTO_HWX[:, :, :3]), region, three)
    bilinear_into(PHOTO_HWX, region, four)
    assert np.abs(three.astype(int) - four).max() <= 1
