"""The decoder: libjpeg-turbo's very pixels on every level, or a refusal; whatever the file, never anything else."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from feedline.pipeline.kernel import compiled

if compiled.KERNEL is None:
    pytest.skip(f"there is no compiled kernel: {compiled.TROUBLE}", allow_module_level=True)
KERNEL = compiled.KERNEL
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
GUARD = 77
ImageFile.MAXBLOCK = 1 << 22  # libjpeg optimises tables of noise in one piece only
SOF0, SOS = b"\xff\xc0", b"\xff\xda"


@pytest.fixture(autouse=True)
def best_level() -> Iterator[None]:
    level = KERNEL.level()
    yield
    KERNEL.use(level)


def picture(width: int, height: int, seed: int, texture: str) -> Image.Image:
    rng = np.random.default_rng(seed)
    if texture == "noise":
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    if texture == "flat":
        return Image.new("RGB", (width, height), tuple(rng.integers(0, 256, 3).tolist()))
    hills = rng.normal(0, 25, (height // 8 + 2, width // 8 + 2, 3)).cumsum(0).cumsum(1) / 2 + 128
    return Image.fromarray(np.clip(hills, 0, 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, quality: int = 90, subsampling: int = 2, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, subsampling=subsampling, **options)
    return file.getvalue()


def decode(data: bytes, left: int, top: int, width: int, height: int, smooth: bool = True) -> Pixels | None:
    """As they are, in the middle of other memory, which must stay as it is."""
    room = np.full((3, height, width, 3), GUARD, np.uint8)
    places = room[1:2]
    filled, _ = KERNEL.fill([(data, left, top, width, height, (0, 0, width, height), False, False)], smooth, places)
    pixels = places[0].copy()
    places[:] = GUARD
    assert (room == GUARD).all()
    return pixels if filled else None


def reference(data: bytes, smooth: bool = True, strict: bool = True) -> Pixels:
    return simplejpeg.decode_jpeg(data, "RGB", fastupsample=not smooth, strict=strict)


@st.composite
def regions(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    width, height = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    across, down = draw(st.integers(1, width)), draw(st.integers(1, height))
    return width, height, draw(st.integers(0, width - across)), draw(st.integers(0, height - down)), across, down


@given(
    region=regions(),
    texture=st.sampled_from(["noise", "flat", "hills"]),
    seed=st.integers(0, 1000),
    quality=st.integers(1, 100),
    subsampling=st.sampled_from([0, 2]),
    interval=st.integers(0, 60),
    optimize=st.booleans(),
    smooth=st.booleans(),
)
@settings(max_examples=400)
def test_every_level_gives_libjpegs_pixels(
    region: tuple[int, int, int, int, int, int], texture: str, seed: int, quality: int, subsampling: int,
    interval: int, optimize: bool, smooth: bool
) -> None:  # fmt: skip
    width, height, left, top, across, down = region
    image = picture(width, height, seed, texture)
    data = encode(image, quality, subsampling, restart_marker_blocks=interval, optimize=optimize)
    expected = reference(data, smooth)[top : top + down, left : left + across]
    for level in KERNEL.LEVELS:
        KERNEL.use(level)
        pixels = decode(data, left, top, across, down, smooth)
        assert pixels is not None, level
        assert np.array_equal(pixels, expected), level


@pytest.mark.parametrize("interval", [0, 1, 3])
@pytest.mark.parametrize("smooth", [True, False])
def test_every_place_of_a_small_region(interval: int, smooth: bool) -> None:
    data = encode(picture(53, 51, 1, "hills"), restart_marker_blocks=interval)
    expected = reference(data, smooth)
    for level in KERNEL.LEVELS:
        KERNEL.use(level)
        for top in range(48):
            for left in range(50):
                pixels = decode(data, left, top, 3, 3, smooth)
                assert pixels is not None and np.array_equal(pixels, expected[top : top + 3, left : left + 3])


def test_headers_that_other_encoders_write() -> None:
    image = picture(60, 40, 2, "hills")
    plain = encode(image)
    jfif_at = plain.index(b"JFIF") - 4
    jfif_end = jfif_at + 2 + int.from_bytes(plain[jfif_at + 2 : jfif_at + 4], "big")
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\1"
    for data in (
        encode(image, exif=b"Exif\0\0" + bytes(500), comment=b"a comment"),
        plain[:jfif_at] + plain[jfif_end:],
        plain[:jfif_at] + adobe + plain[jfif_end:],
        plain.replace(SOF0, b"\xff\xc1"),
        plain + b"more than the picture",
        simplejpeg.encode_jpeg(np.asarray(image), 90, colorsubsampling="420"),
        simplejpeg.encode_jpeg(np.asarray(image), 90, colorsubsampling="444"),
    ):
        pixels = decode(data, 0, 0, 60, 40)
        assert pixels is not None and np.array_equal(pixels, reference(data))


def other_kinds() -> dict[str, bytes]:
    image = picture(60, 40, 3, "hills")
    plain = encode(image)
    sof, sos = plain.index(SOF0), plain.index(SOS)
    one_component = SOS + b"\0\x08\1\1\0\0\x3f\0"
    return {
        "not a JPEG": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "empty": b"",
        "grey": encode(image.convert("L")),
        "CMYK": encode(image.convert("CMYK")),
        "RGB": encode(image, keep_rgb=True, subsampling=0),
        "4:2:2": encode(image, subsampling=1),
        "4:4:0": simplejpeg.encode_jpeg(np.asarray(image), colorsubsampling="440"),
        "4:1:1": simplejpeg.encode_jpeg(np.asarray(image), colorsubsampling="411"),
        "progressive": encode(image, progressive=True),
        "arithmetic": plain.replace(SOF0, b"\xff\xc9"),
        "12 bits": plain[: sof + 4] + b"\x0c" + plain[sof + 5 :],
        "several scans": plain[:sos] + one_component + plain[sos + 14 :],
        "spectral selection": plain.replace(b"\0\x3f\0", b"\0\x3e\0", 1),
        "height 0": plain[: sof + 5] + b"\0\0" + plain[sof + 7 :],
        "JFIF 2": plain.replace(b"JFIF\0\1", b"JFIF\0\2"),
        "Adobe without transform": plain[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0" + plain[2:],
        "a frame only": plain[:sos] + b"\xff\xd9",
    }


@pytest.mark.parametrize("kind", other_kinds())
def test_other_kinds_are_left_to_libjpeg(kind: str) -> None:
    assert decode(other_kinds()[kind], 0, 0, 8, 8) is None


@pytest.mark.parametrize("region", [(53, 0, 8, 8), (0, 33, 8, 8), (0, 0, 61, 8), (2**31 - 1, 0, 8, 8)])
def test_a_region_outside_the_picture_is_refused(region: tuple[int, int, int, int]) -> None:
    assert decode(encode(picture(60, 40, 4, "hills")), *region) is None


@pytest.mark.parametrize("interval", [0, 2])
def test_a_file_cut_short_anywhere_is_refused(interval: int) -> None:
    data = encode(picture(70, 50, 5, "hills"), restart_marker_blocks=interval)
    for length in range(len(data)):
        assert decode(data[:length], 0, 0, 70, 50) is None


def test_without_restart_markers_only_what_is_above_the_regions_end_must_be_there() -> None:
    data = encode(picture(64, 160, 6, "noise"))
    torn = data[: len(data) * 3 // 4] + data[-2:]
    pixels = decode(torn, 0, 0, 64, 60)
    assert pixels is not None and np.array_equal(pixels, reference(data)[:60])
    assert decode(torn, 0, 100, 64, 60) is None


def test_damage_in_a_tile_is_refused_where_all_of_it_is_needed() -> None:
    data = encode(picture(64, 64, 7, "noise"), restart_marker_blocks=2)
    second = data.index(b"\xff\xd0") + 2
    damaged = data[: second + 10] + data[second + 20 :]
    assert decode(damaged, 0, 0, 64, 64) is None
    assert decode(damaged, 60, 0, 4, 4) is None
    pixels = decode(damaged, 0, 32, 64, 32)
    assert pixels is not None and np.array_equal(pixels[1:], reference(data)[33:])


def assert_refused_or_right(data: bytes, region: tuple[int, int, int, int] | None = None) -> None:
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        assert decode(data, 0, 0, 1, 1) is None
        return
    if width * height > 1 << 20:
        return
    left, top, across, down = region or (0, 0, width, height)
    for smooth in (True, False):
        pixels = [(KERNEL.use(level), decode(data, left, top, across, down, smooth))[1] for level in KERNEL.LEVELS]
        if pixels[0] is None:
            assert all(one is None for one in pixels)
            continue
        expected = reference(data, smooth, strict=region is None)[top : top + down, left : left + across]
        for one in pixels:
            assert one is not None and np.array_equal(one, expected)


@given(data=st.data(), interval=st.integers(0, 5), subsampling=st.sampled_from([0, 2]), seed=st.integers(0, 100))
@settings(max_examples=400)
def test_a_mutated_file_gives_libjpegs_pixels_or_none(
    data: st.DataObject, interval: int, subsampling: int, seed: int
) -> None:
    file = bytearray(encode(picture(48, 40, seed, "hills"), 80, subsampling, restart_marker_blocks=interval))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    assert_refused_or_right(bytes(file))
    assert_refused_or_right(bytes(file), (17, 9, 14, 20))


@given(st.binary(max_size=2000))
@settings(max_examples=200)
def test_any_bytes_in_place_of_a_scan(scan: bytes) -> None:
    data = encode(picture(48, 40, 8, "hills"))
    start = data.index(SOS) + 14
    assert_refused_or_right(data[:start] + scan.replace(b"\xff", b"\xff\0") + b"\xff\xd9")


def test_coefficients_beyond_all_that_encoders_write_are_refused() -> None:
    data = encode(picture(64, 64, 9, "noise"), 100)
    table = data.index(b"\xff\xdb") + 5
    loud = data[:table] + bytes([255]) * 64 + data[table + 64 :]
    for level in KERNEL.LEVELS:
        KERNEL.use(level)
        assert decode(loud, 0, 0, 64, 64) is None
