"""What every codec keeps to, a new one too."""

import io
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.base import Codec, Pixels
from feedline.pipeline.codecs.raw import npy_view
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.draw.regions import Region
from feedline.pipeline.kernel import compiled

pytestmark = pytest.mark.usefixtures("kernel")
KERNEL = compiled.KERNEL
WIDTH, HEIGHT = 64, 48
X, Y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
PICTURE = np.stack([3 * X, 5 * Y, 128 + X - Y], -1).astype(np.uint8)


class Laps:
    def __init__(self) -> None:
        self.names: list[str] = []

    def decoded(self) -> None:
        self.names.append("decoded")

    def transformed(self) -> None:
        self.names.append("transformed")

    def filled(self, decoding_ns: int) -> None:
        self.names += ["decoded", "transformed"]


@pytest.fixture(params=CODECS.values(), ids=CODECS)
def codec(request: Any) -> Codec:
    return request.param


def member(codec: Codec) -> bytes:
    image = Image.fromarray(PICTURE)
    if codec.encode is not None:
        return codec.encode(image, 95, "420")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def distance(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(int) - other).mean())


def test_its_name_is_a_word_and_its_key(codec: Codec) -> None:
    assert codec.name.isalpha() and codec.name.islower()
    assert CODECS[codec.name] is codec, "`NAMES` and the codecs are in one order"


def test_pixels_are_the_picture(codec: Codec) -> None:
    pixels_HWC = codec.pixels(member(codec))
    assert pixels_HWC.dtype == np.uint8 and pixels_HWC.shape == PICTURE.shape
    assert distance(pixels_HWC, PICTURE) < 3 if codec.lossy else np.array_equal(pixels_HWC, PICTURE)


def test_a_picture_with_a_fourth_unused_channel_gives_the_same_member(codec: Codec) -> None:
    """The decoder of `prepare` hands pictures over like that."""
    if codec.encode is not None:
        padded = np.dstack([PICTURE, np.full_like(PICTURE[..., :1], 7)])
        image = Image.frombuffer("RGBX", (WIDTH, HEIGHT), padded.tobytes(), "raw", "RGBX", 0, 1)
        assert codec.encode(image, 95, "420") == member(codec)


@pytest.mark.parametrize("fast_chroma", [False, True])
@pytest.mark.parametrize("px", [16, 32])
def test_fill_shows_the_chosen_region(codec: Codec, fast_chroma: bool, px: int) -> None:
    asked: list[tuple[int, int]] = []
    laps = Laps()
    out_HWC = np.zeros((px, px, 3), np.uint8)

    def choose(width_px: int, height_px: int) -> Region:
        asked.append((width_px, height_px))
        return Region(16, 8, 32, 32)

    codec.fill(member(codec), out_HWC, choose, laps, fast_chroma)
    expected = Image.fromarray(PICTURE[8:40, 16:48]).resize((px, px), Image.Resampling.BILINEAR)
    assert distance(out_HWC, np.asarray(expected)) < 4
    assert asked == [(WIDTH, HEIGHT)]
    assert laps.names == ["decoded", "transformed"]


@pytest.mark.parametrize("region", [Region(16, 8, 32, 32), Region(3, 1, 60, 47, True), Region(5, 5, 20, 21)])
@pytest.mark.parametrize("px", [16, 32, 33])
@pytest.mark.skipif(KERNEL is None, reason="there is no compiled kernel")
def test_what_the_kernel_is_told_gives_the_same_pixels(codec: Codec, region: Region, px: int) -> None:
    """As `fill` with its filters; within two levels of the fallback's."""
    assert KERNEL is not None
    out_HWC, places = np.zeros((px, px, 3), np.uint8), np.zeros((1, px, px, 3), np.uint8)
    codec.fill(member(codec), out_HWC, lambda w, h: region, Laps(), True)
    job = codec.job(member(codec), px, lambda w, h: region)
    if job is not None:
        assert KERNEL.fill([job], False, places)[0] == 1
        assert np.abs(places[0].astype(int) - out_HWC).max() <= (0 if compiled.KERNEL else 2)
    assert (job is None) == (codec.name == "keep" or (codec.name == "jpeg" and min(region[2:4]) >= 2 * px))


def test_check_finds_nothing_wrong_with_its_own_member(codec: Codec) -> None:
    settings = {"codec": codec.name, **codec.settings(95, "420")}
    assert codec.check(member(codec), WIDTH, HEIGHT, settings) == ""
    assert "the index says" in codec.check(member(codec), WIDTH + 2, HEIGHT, settings)


def test_other_bytes_are_refused(codec: Codec) -> None:
    whole = member(codec)
    for data in (b"", b"not a picture", whole[: len(whole) // 2]):
        with pytest.raises(DatasetError):
            codec.pixels(data)
        with pytest.raises(DatasetError):
            codec.fill(data, np.zeros((16, 16, 3), np.uint8), lambda w, h: Region(0, 0, w, h), Laps(), True)
        with suppress(DatasetError):
            job = codec.job(data, 16, lambda w, h: Region(0, 0, w, h))
            assert job is None or codec.name == "jpeg", "the kernel itself refuses half a JPEG"
        with pytest.raises((DatasetError, ValueError)):
            codec.check(data, WIDTH, HEIGHT, {})


def test_what_it_says_of_itself_is_true(codec: Codec) -> None:
    data = member(codec)
    assert codec.sized == (codec.encode is not None) == bool(codec.extension)
    if codec.image_file:
        assert Image.open(io.BytesIO(data)).size == (WIDTH, HEIGHT)
    if codec.encode is not None:
        worse = codec.encode(Image.fromarray(PICTURE), 20, "420")
        assert (worse != data) == codec.has_quality
    assert json.loads(json.dumps(codec.settings(90, "420"))) == codec.settings(90, "420")
    assert codec.estimate_bytes(256 * 341, 90, 110_000) > 1000


def test_the_command_line_names_every_codec() -> None:
    from feedline.cli.main import app

    for verb in ("prepare", "compare"):
        shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
        assert not [name for name in CODECS if name not in shown]


@pytest.mark.parametrize("shape", ["(3", "(3,, 2)", "3 3", "(3, 2"])
def test_a_header_that_is_no_python_is_a_damaged_member(shape: str) -> None:
    """NumPy tokenises what it cannot parse, and then raises what its tokeniser raises."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}".ljust(117).encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(DatasetError, match=r"damaged \.npy member"):
        npy_view(data)
