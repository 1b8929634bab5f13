"""The compiled filters: the bytes of their formulas, at every level, for any region, stride and flip."""

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.pipeline.draw.regions import Region
from feedline.pipeline.draw.resample import halved
from feedline.pipeline.kernel.compiled import Box, Kernel, Pixels
from tests.pipeline.kernel import formula
from tests.pipeline.kernel.levels import at_every_level, kernel

KERNEL = kernel()
Layout = Literal["rgb", "rgbx", "i420"]


@dataclass
class Case:
    """A picture, the region of it that is shown, and the output's size."""

    layout: Layout
    pixels: Pixels
    left: int
    top: int
    width: int
    height: int
    box: Box | None  # None: all of it
    antialias: bool
    flip: bool
    rows: int
    columns: int

    @property
    def shown(self) -> Box:
        return self.box or (0, 0, self.width, self.height)

    def expected(self) -> Pixels:
        if self.layout == "i420" and not self.antialias:
            whole = self.expected_of_planes()
        else:
            colours = formula.rgb(*formula.planes_of(self.pixels)) if self.layout == "i420" else self.pixels
            part = colours[self.top : self.top + self.height, self.left : self.left + self.width, :3]
            if self.antialias:
                whole = formula.pillow(part, self.shown, self.rows, self.columns)
            else:
                whole = formula.plain(part, self.rows, self.columns)
        return whole[:, ::-1] if self.flip else whole

    def expected_of_planes(self) -> Pixels:
        half = halved(Region(self.left, self.top, self.width, self.height))
        luma, *chroma = formula.planes_of(self.pixels)
        left, top, width, height = (2 * side for side in half[:4])
        parts = [plane[half.top_px :, half.left_px :][: half.height_px, : half.width_px] for plane in chroma]
        grown = luma[top : top + height, left : left + width]
        blue, red = (formula.plain(part, self.rows // 2, self.columns // 2) for part in parts)
        return formula.rgb(formula.plain(grown, self.rows, self.columns), blue, red)

    def run(self, used: Kernel) -> Pixels:
        """The output, in the middle of other memory, which stays as it is."""
        around = np.full((self.rows + 2, self.columns, 3), 77, np.uint8)
        out_HWC = around[1:-1]
        region = (self.left, self.top, self.width, self.height)
        job = (self.pixels, *region, self.shown, self.antialias, self.flip)
        assert used.fill([job], True, out_HWC[None]) == (1, 0)
        made = out_HWC.copy()
        out_HWC[:] = 77
        assert (around == 77).all()
        return made


def picture(layout: Layout, height: int, width: int, seed: int, margin: int = 0) -> Pixels:
    """Noise; `margin` pixels more lie between its rows in memory."""
    random = np.random.default_rng(seed)
    if layout == "i420":
        return random.integers(0, 256, (height * 3 // 2, width), dtype=np.uint8)
    wide = random.integers(0, 256, (height, width + margin, 3 + (layout == "rgbx")), dtype=np.uint8)
    return wide[:, :width]


@st.composite
def cases(draw: Any, most_px: int = 70) -> Case:
    layout: Layout = draw(st.sampled_from(["rgb", "rgbx", "i420"]))
    antialias = draw(st.booleans())
    even = 2 if layout == "i420" else 1
    height, width = (even * draw(st.integers(1, most_px // even)) for _ in range(2))
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    across, down = draw(st.integers(1, width - left)), draw(st.integers(1, height - top))
    even = 2 if layout == "i420" and not antialias else 1
    rows, columns = (even * draw(st.integers(1, 40)) for _ in range(2))
    if draw(st.booleans()) and even == 1:
        rows = down
    box = None
    if antialias and draw(st.booleans()):
        edges = [sorted(draw(st.floats(0, side, width=32)) for _ in range(2)) for side in (across, down)]
        if edges[0][0] < edges[0][1] and edges[1][0] < edges[1][1]:
            box = (edges[0][0], edges[1][0], edges[0][1], edges[1][1])
    pixels = picture(layout, height, width, draw(st.integers(0, 99)), draw(st.integers(0, 3)))
    return Case(layout, pixels, left, top, across, down, box, antialias, draw(st.booleans()), rows, columns)


@given(cases())
@settings(max_examples=400)
def test_any_region_has_the_formulas_bytes_at_every_level(case: Case) -> None:
    assert np.array_equal(at_every_level(case.run), case.expected())


@pytest.mark.parametrize("layout", ["rgb", "rgbx", "i420"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("antialias", "region", "rows", "columns"),
    [
        (False, (3, 5, 180, 201), 224, 224),
        (False, (0, 0, 256, 256), 224, 224),
        (False, (16, 16, 224, 224), 224, 224),
        (False, (0, 0, 1999, 33), 64, 256),
        (True, (1, 1, 330, 250), 224, 224),
        (True, (0, 7, 2000, 25), 7, 333),
        (True, (0, 0, 500, 375), 256, 341),
        (True, (0, 0, 2000, 400), 3, 2),
        (True, (5, 1, 30, 20), 61, 63),
    ],
)
def test_the_usual_and_the_large_have_them_too(
    layout: Layout, flip: bool, antialias: bool, region: tuple[int, int, int, int], rows: int, columns: int
) -> None:
    case = Case(layout, picture(layout, 420, 2000, 1, 5), *region, None, antialias, flip, rows, columns)
    assert np.array_equal(at_every_level(case.run), case.expected())


@pytest.mark.parametrize("layout", ["rgb", "rgbx"])
def test_extremes_stay_what_they_are(layout: Layout) -> None:
    """Black beside white: sums of weights that were rounded reach no level further."""
    stripes = np.where(np.indices((40, 60)).sum(0)[..., None] // 7 % 2, 255, 0).astype(np.uint8)
    for grey in (stripes, np.full_like(stripes, 255)):
        pixels = np.repeat(grey, 3 + (layout == "rgbx"), axis=2)
        for rows, columns in ((97, 131), (11, 13)):
            case = Case(layout, pixels, 0, 0, 60, 40, None, True, False, rows, columns)
            assert np.array_equal(at_every_level(case.run), case.expected())


def test_upside_down_and_every_other_row_are_strides_like_others() -> None:
    pixels = picture("rgb", 80, 90, 3)
    for view in (pixels[::-1], pixels[::2], pixels[10::-3]):
        for antialias in (False, True):
            case = Case("rgb", view, 0, 0, 90, len(view), None, antialias, False, 48, 64)
            assert np.array_equal(at_every_level(case.run), case.expected())


@pytest.mark.parametrize("layout", ["rgb", "rgbx", "i420"])
def test_planes_and_pixels_are_opencvs_within_a_level(layout: Layout) -> None:
    """Equal where OpenCV takes its own way, which the formula was read from."""
    for height, width in ((96, 120), (180, 202), (254, 256), (400, 224)):
        pixels = picture(layout, height, width, height)
        case = Case(layout, pixels, 0, 0, width, height, None, False, False, 224, 224)
        if layout == "i420":
            stacked = np.empty((336, 224), np.uint8)
            for part, place in zip(formula.planes_of(pixels), formula.planes_of(stacked), strict=True):
                cv2.resize(part, place.shape[::-1], dst=place, interpolation=cv2.INTER_LINEAR)
            theirs = cv2.cvtColor(stacked, cv2.COLOR_YUV2RGB_I420)
        else:
            theirs = cv2.resize(pixels, (224, 224), interpolation=cv2.INTER_LINEAR)[..., :3]
        assert np.abs(case.run(KERNEL).astype(int) - theirs).max() <= 1
