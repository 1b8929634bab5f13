"""Crop-addressable JPEG: any decoder reads it, a cut shows the same pixels, and nothing else is ever cut wrongly."""

import io
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
import skimage.data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.io import decode_image

from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.codecs.base import Subsampling
from feedline.pipeline.codecs.crop_jpeg import JpegError

PHOTO = np.asarray(Image.fromarray(skimage.data.astronaut()).resize((400, 400)))


def encoded(pixels: np.ndarray, quality: int, subsampling: Subsampling = "420") -> bytes:
    return jpeg.encode(Image.fromarray(pixels), quality, subsampling)


def photo(width: int, height: int) -> np.ndarray:
    return np.ascontiguousarray(PHOTO[:height, :width])


sides = st.integers(1, 400)


@st.composite
def regions(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    width, height = draw(sides), draw(sides)
    across, down = draw(st.integers(1, width)), draw(st.integers(1, height))
    return width, height, draw(st.integers(0, width - across)), draw(st.integers(0, height - down)), across, down


@given(regions(), st.sampled_from(["420", "444"]), st.integers(5, 100))
@settings(max_examples=150)
def test_a_cut_with_a_border_shows_exactly_the_pixels_of_a_full_decode(
    region: tuple[int, int, int, int, int, int], subsampling: Subsampling, quality: int
) -> None:
    width, height, left, top, across, down = region
    data = encoded(photo(width, height), quality, subsampling)
    part = crop_jpeg.cut(data, left, top, across, down, border_px=2)
    pixels = simplejpeg.decode_jpeg(part.data)[part.top_px :, part.left_px :][:down, :across]
    assert np.array_equal(pixels, simplejpeg.decode_jpeg(data)[top : top + down, left : left + across])


@given(regions())
@settings(max_examples=100)
def test_a_close_cut_differs_only_at_its_border(region: tuple[int, int, int, int, int, int]) -> None:
    width, height, left, top, across, down = region
    data = encoded(photo(width, height), 90)
    part = crop_jpeg.cut(data, left, top, across, down)
    pixels = simplejpeg.decode_jpeg(part.data)[part.top_px :, part.left_px :][:down, :across]
    whole = simplejpeg.decode_jpeg(data)[top : top + down, left : left + across]
    assert pixels.shape == whole.shape
    inner = (slice(1, -1), slice(1, -1))
    assert np.array_equal(pixels[inner], whole[inner])


def test_a_cut_is_smaller_than_the_file_and_is_itself_a_crop_addressable_jpeg() -> None:
    data = encoded(photo(352, 256), 90)
    part = crop_jpeg.cut(data, 100, 100, 60, 60)
    assert len(part.data) < len(data) / 2
    assert crop_jpeg.is_crop_addressable(part.data)
    again = crop_jpeg.cut(part.data, part.left_px, part.top_px, 60, 60)
    assert simplejpeg.decode_jpeg(again.data).shape == simplejpeg.decode_jpeg(part.data).shape


@pytest.mark.parametrize("width", [16, 200, 256, 341, 384])
def test_tiles_are_whole_columns_of_at_most_64_px(width: int) -> None:
    blocks = crop_jpeg.restart_interval(width)
    assert blocks * 16 <= 64 and -(-width // 16) % blocks == 0


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision")
def test_every_decoder_reads_the_same_pixels(tmp_path: Path) -> None:
    """Within what decoders differ by on any JPEG: chroma upsampling and rounding."""
    pixels = photo(341, 256)
    data = encoded(pixels, 90)
    pillow = np.asarray(Image.open(io.BytesIO(data)))
    opencv = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    torchs = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8)).permute(1, 2, 0).numpy()
    for other in (jpeg.decode(data), simplejpeg.decode_jpeg(data), opencv, torchs):
        assert np.abs(pillow.astype(int) - other).mean() < 0.5
    if shutil.which("djpeg"):
        (tmp_path / "x.jpg").write_bytes(data)
        ppm = subprocess.run(["djpeg", tmp_path / "x.jpg"], capture_output=True, check=True)
        assert ppm.stderr == b""
        assert np.abs(pillow.astype(int) - np.asarray(Image.open(io.BytesIO(ppm.stdout)))).mean() < 0.5


def other_files() -> dict[str, bytes]:
    image = Image.fromarray(photo(200, 150))
    made: dict[str, bytes] = {}
    for name, options in {
        "no markers": {},
        "progressive": {"progressive": True, "restart_marker_blocks": 2},
        "uneven": {"restart_marker_blocks": 5, "subsampling": 2},
        "across rows": {"restart_marker_rows": 2},
    }.items():
        file = io.BytesIO()
        image.save(file, "JPEG", **options)  # type: ignore[arg-type]
        made[name] = file.getvalue()
    return made


@pytest.mark.parametrize("name", list(other_files()))
def test_files_without_a_grid_come_back_whole(name: str) -> None:
    data = other_files()[name]
    assert not crop_jpeg.is_crop_addressable(data)
    assert crop_jpeg.cut(data, 30, 20, 50, 50) == (data, 30, 20)


def test_grey_and_cmyk_are_decoded_to_rgb() -> None:
    for mode in ("L", "CMYK"):
        file = io.BytesIO()
        Image.fromarray(photo(64, 48)).convert(mode).save(file, "JPEG", restart_marker_rows=1)
        decoded = jpeg.decode(file.getvalue())
        expected = np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
        assert np.abs(decoded.astype(int) - expected).max() <= 2


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"\xff\xd8\xff" + tail))
@settings(max_examples=300)
def test_arbitrary_bytes_are_refused_in_one_way(data: bytes) -> None:
    for reader in (crop_jpeg.parse, crop_jpeg.is_crop_addressable, lambda d: crop_jpeg.cut(d, 0, 0, 1, 1)):
        try:
            reader(data)
        except JpegError:
            pass


SMALL = encoded(photo(96, 80), 90)


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255), st.integers(0, len(SMALL)))
@settings(max_examples=400)
def test_a_damaged_file_is_refused_or_still_a_jpeg(at: int, value: int, length: int) -> None:
    damaged = (SMALL[:at] + bytes([value]) + SMALL[at + 1 :])[:length]
    try:
        part = crop_jpeg.cut(damaged, 10, 10, 40, 40)
    except JpegError:
        return
    assert part.data[:2] == b"\xff\xd8"
    assert len(part.data) <= len(damaged)


@pytest.mark.parametrize("region", [(-1, 0, 5, 5), (0, 0, 0, 5), (90, 0, 10, 5), (0, 79, 5, 2)])
def test_a_region_outside_the_picture_is_refused(region: tuple[int, int, int, int]) -> None:
    with pytest.raises(JpegError):
        crop_jpeg.cut(SMALL, *region)


def plain(image: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **options)  # type: ignore[arg-type]
    return file.getvalue()


@given(st.integers(17, 300), st.integers(17, 300), st.sampled_from([0, 1, 2]), st.data())
@settings(max_examples=80)
def test_a_file_without_tiles_is_decoded_down_to_a_row(
    width: int, height: int, subsampling: int, drawn: st.DataObject
) -> None:
    data = plain(photo(width, height), subsampling=subsampling)
    bottom = drawn.draw(st.integers(1, height))
    frame = crop_jpeg.parse(data)
    part = jpeg.decode(crop_jpeg.shorten(data, bottom, frame), fast_chroma=True, shortened=True)
    assert bottom <= len(part) <= min(height, bottom + 15)
    whole = jpeg.decode(data, fast_chroma=True)
    assert np.array_equal(part[:bottom], whole[:bottom])


def test_what_has_tiles_or_scans_is_not_shortened() -> None:
    for data in (encoded(photo(200, 150), 90), other_files()["progressive"], other_files()["across rows"]):
        assert crop_jpeg.shorten(data, 20, crop_jpeg.parse(data)) is data


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_picture_cut_short_is_refused_by_every_door(share: float) -> None:
    data = plain(photo(200, 150))
    frame = crop_jpeg.parse(data)
    for broken in (data[: int(len(data) * share)], data[: int(len(data) * share)] + crop_jpeg.EOI):
        with pytest.raises(JpegError):
            jpeg.decode(broken)
        with pytest.raises(JpegError):
            jpeg.decode(crop_jpeg.shorten(broken, 144, frame), shortened=True)


def test_what_is_harmless_is_passed_over() -> None:
    data = plain(photo(200, 150))
    padded = data[:-2] + b"\0\0\0" + crop_jpeg.EOI
    future = data.replace(b"JFIF\0\x01\x01", b"JFIF\0\x07\x07")
    for odd in (padded, future, data + b"trailing"):
        assert np.array_equal(jpeg.decode(odd), jpeg.decode(data))


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_smaller_decoding_rounds_sides_up(factor: int) -> None:
    pixels = jpeg.decode(encoded(photo(203, 151), 90), "RGBX", factor=factor)
    assert pixels.shape == (-(-151 // factor), -(-203 // factor), 4)


def test_markers_out_of_order_are_no_grid() -> None:
    data = bytearray(encoded(photo(96, 80), 90))
    at = data.index(b"\xff\xd3")
    data[at + 1] = 0xD5
    assert not crop_jpeg.is_crop_addressable(bytes(data))


def test_a_recognised_header_says_what_walking_it_says() -> None:
    first, second = encoded(photo(96, 80), 90), encoded(photo(112, 200), 90)
    frames = [crop_jpeg.parse(data) for data in (first, second, first, second)]
    assert frames[0] == frames[2] and frames[1] == frames[3]
    assert frames[:2] == [crop_jpeg._walk(first), crop_jpeg._walk(second)]
    empty = bytearray(first)
    empty[frames[0].size_at : frames[0].size_at + 4] = bytes(4)
    with pytest.raises(JpegError):
        crop_jpeg.parse(bytes(empty))
