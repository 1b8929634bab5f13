"""Bilinear resizing of a region against its formula, for three and four channels."""

import numpy as np
import numpy.typing as npt
import pytest

from feedline.pipeline.codecs.planes import planes
from feedline.pipeline.draw.regions import Augment, Region, choose
from feedline.pipeline.draw.resample import is_antialiased, planes_into, resize_into
from feedline.pipeline.kernel import compiled

pytestmark = pytest.mark.usefixtures("kernel")
KERNEL = compiled.KERNEL
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
    resize_into(pixels, Region(7, 11, 61, 50, flip), out_HWC)
    wanted = formula(PHOTO_HWX[11:61, 7:68, :3], 64)
    assert np.abs(out_HWC - (wanted[:, ::-1] if flip else wanted)).max() < 1


@pytest.mark.parametrize("channels", [3, 4])
def test_a_region_of_the_outputs_size_is_copied(channels: int) -> None:
    out_HWC = np.empty((64, 64, 3), np.uint8)
    resize_into(np.ascontiguousarray(PHOTO_HWX[:, :, :channels]), Region(9, 2, 64, 64), out_HWC)
    assert (out_HWC == PHOTO_HWX[2:66, 9:73, :3]).all()


def test_a_fourth_channel_changes_a_pixel_by_one_level_at_most() -> None:
    three, four = np.empty((2, 48, 48, 3), np.uint8)
    region = Region(3, 5, 40, 31, True)
    resize_into(np.ascontiguousarray(PHOTO_HWX[:, :, :3]), region, three)
    resize_into(PHOTO_HWX, region, four)
    assert np.abs(three.astype(int) - four).max() <= 1


def by_both(pixels: npt.NDArray[np.uint8], region: Region, px: int) -> list[npt.NDArray[np.int64]]:
    """The compiled kernel's, then the fallback's."""
    made: list[npt.NDArray[np.int64]] = []
    for kernel in (KERNEL, None):
        out_HWC = np.empty((px, px, 3), np.uint8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "KERNEL", kernel)
            (planes_into if pixels.ndim == 2 else resize_into)(pixels, region, out_HWC)
        made.append(out_HWC.astype(np.int64))
    return made


@pytest.mark.skipif(KERNEL is None, reason="there is no compiled kernel")
@pytest.mark.parametrize("layout", ["rgb", "rgbx", "planes"])
@pytest.mark.parametrize("train", [True, False])
def test_the_fallback_shows_the_same_within_a_level(layout: str, train: bool) -> None:
    """Two levels in few values, where Pillow-SIMD rounds twice with shorter coefficients; noise is the worst case."""
    pixels = PHOTO_HWX if layout == "rgbx" else np.ascontiguousarray(PHOTO_HWX[:, :, :3])
    if layout == "planes":
        pixels = planes(pixels)
    differences: list[npt.NDArray[np.int64]] = []
    for sample in range(60):
        for px in (64, 33, 20):
            region = choose(120, 96, px, Augment(train=train), 1, 0, sample)
            ours, theirs = by_both(pixels, region, px)
            differences.append(np.abs(ours - theirs).ravel())
            if not is_antialiased(region, px, px) and not (layout == "planes" and px % 2):
                assert differences[-1].max() <= 1
    together = np.concatenate(differences)
    assert together.max() <= 2 and (together > 1).mean() < 1e-4


@pytest.mark.skipif(KERNEL is None, reason="there is no compiled kernel")
def test_an_antialiased_region_is_no_farther_from_the_exact_one_than_the_fallbacks() -> None:
    exact_HWC = antialiased(PHOTO_HWX[:, :, :3].astype(np.float64), 40)
    ours, theirs = by_both(np.ascontiguousarray(PHOTO_HWX[:, :, :3]), Region(0, 0, 120, 96), 40)
    assert ((ours - exact_HWC) ** 2).mean() <= ((theirs - exact_HWC) ** 2).mean() * 1.001


def antialiased(image_HWC: npt.NDArray[np.float64], px: int) -> npt.NDArray[np.float64]:
    """A triangle as wide as the scale, over each axis, in float64."""
    for axis in (0, 1):
        side = image_HWC.shape[axis]
        scale = side / px
        centres = (np.arange(px)[:, None] + 0.5) * scale
        weights = np.maximum(0, 1 - np.abs(np.arange(side) + 0.5 - centres) / scale)
        weights /= weights.sum(1, keepdims=True)
        image_HWC = np.moveaxis(np.tensordot(weights, image_HWC, (1, axis)), 0, axis)
    return image_HWC
