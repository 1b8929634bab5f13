"""The preparer: the right pixels for every kind of file, the right sizes, a reason for everything it refuses."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.preprocess.fingerprint import optional_files
from feedline.preprocess.picture import BadImage, Output, Preparer, geometry

RNG = np.random.default_rng(0)
RAW = Output(codec="raw", resize="none", size_px=0)


def picture(width: int = 100, height: int = 75) -> Image.Image:
    coarse = RNG.integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(data: bytes, output: Output = RAW) -> Any:
    return np.load(io.BytesIO(Preparer((output,))(data)[0].data))


def pillows(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(
    "data",
    [
        saved(picture(), quality=95),
        saved(picture(101, 77), quality=80, subsampling=0),
        saved(picture().convert("L")),
        saved(picture().convert("CMYK")),
        saved(picture(), progressive=True),
        saved(picture(), "PNG"),
        saved(picture().convert("RGBA"), "PNG"),
        saved(picture().convert("P"), "PNG"),
        saved(picture().convert("LA"), "PNG"),
        saved(picture().convert("1"), "PNG"),
        saved(picture(), "BMP"),
        saved(picture().convert("P"), "GIF"),
        saved(picture(), "TIFF"),
    ],
    ids=["jpeg", "444", "grey", "cmyk", "progressive", "png", "rgba", "palette", "la", "bits", "bmp", "gif", "tiff"],
)  # fmt: skip
def test_the_pixels_are_those_of_pillow(data: bytes) -> None:
    difference = np.abs(pixels(data).astype(int) - pillows(data))
    assert difference.max() <= 1  # two libjpeg-turbo versions may round one level apart


def test_adobe_cmyk_is_exactly_pillows() -> None:
    data = saved(picture().convert("CMYK"), quality=90)
    assert np.array_equal(pixels(data), pillows(data))


def test_16_bit_grey_keeps_its_upper_bits() -> None:
    deep = (np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16).astype(np.uint16)
    found = pixels(saved(Image.fromarray(deep), "PNG"))
    assert np.array_equal(found[..., 0], (deep >> 8).astype(np.uint8))


def test_pixels_of_32_bits_are_no_black_picture() -> None:
    """Pillow clips floats from 0 to 1, and 32-bit numbers, to nothing."""
    for deep in (np.linspace(0, 1, 4096, dtype=np.float32), np.arange(4096, dtype=np.int32) % 256):
        with pytest.raises(BadImage) as caught:
            pixels(saved(Image.fromarray(deep.reshape(64, 64)), "TIFF"))
        assert caught.value.reason == "format not supported" and "32 bits" in caught.value.detail
    deep16 = (np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16).astype(np.uint16)
    assert pixels(saved(Image.fromarray(deep16), "TIFF")).max() == 255


def test_the_limit_of_pixels_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has one of its own, which ended the whole job where a large picture was to be turned."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG"):
        data = saved(picture(100, 60), kind, exif=exif)
        (member,) = Preparer((replace(RAW, apply_orientation=True),))(data)
        assert member.height > member.width
    assert Image.MAX_IMAGE_PIXELS == 500


def test_colour_profiles_are_noted_whoever_decodes() -> None:
    profile = b"a profile"
    files = [saved(picture().convert(mode), kind, icc_profile=profile)
             for mode, kind in (("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"))]  # fmt: skip
    for output, said in ((RAW, "dropped"), (Output(codec="keep", resize="none", size_px=0), "kept")):
        preparer = Preparer((output,))
        for data in files:
            preparer(data)
        assert preparer.notes[f"icc profile {said}"] == 3
        assert not [note for note in preparer.notes if note.startswith("icc") and not note.endswith(said)]


def test_exif_is_ignored_and_stripped_unless_asked() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture(100, 60), exif=exif, quality=95)
    plain = Preparer((Output(size_px=40),))(data)[0]
    assert (plain.width, plain.height) == (66, 40)
    assert b"Exif" not in plain.data
    turned = Preparer((Output(size_px=40, apply_orientation=True),))(data)[0]
    assert (turned.width, turned.height) == (40, 66)


def test_exif_that_cannot_be_parsed_changes_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture(), exif=exif, quality=95)
    broken = data.replace(b"Exif\0\0MM", b"Exif\0\0XX")
    assert broken != data
    for apply in (False, True):
        output = Output(codec="raw", resize="none", size_px=0, apply_orientation=apply)
        assert pixels(broken, output).shape == (75, 100, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (saved(picture(), quality=95)[:700], "truncated"),
        (saved(picture(), "PNG")[:700], "truncated"),
        (b"hello, world", "not an image"),
        (b"\xff\xd8\xff", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not an image"),
    ],
    ids=["empty", "cut jpeg", "cut png", "text", "start only", "eps"],
)
def test_what_cannot_be_used_has_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage) as caught:
        Preparer((RAW,))(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("no LittleCMS"), "format not supported"),
        (
            ImportError("cannot import name '_imagingcms' from 'PIL'"),
            "format not supported (Pillow was built without liblcms2-dev)",
        ),
        (RuntimeError("odd"), "unreadable"),
    ],
)
def test_whatever_pillow_raises_ends_one_sample_and_not_the_job(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(image: Image.Image) -> Image.Image:
        raise error

    monkeypatch.setattr("feedline.pipeline.codecs.pillow.to_rgb", fails)
    with pytest.raises(BadImage) as caught:
        Preparer((RAW,))(saved(picture(), "PNG"))
    assert caught.value.reason == reason and str(error) in caught.value.detail


def test_a_format_that_this_pillow_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    monkeypatch.setitem(Image.OPEN, "BMP", (Image.OPEN["BMP"][0], lambda prefix: "BMP support not installed"))
    with pytest.raises(BadImage) as caught:
        Preparer((RAW,))(saved(picture(), "BMP"))
    assert caught.value.reason == "format not supported" and "BMP" in caught.value.detail


@pytest.mark.parametrize(("name", "package"), [("WebP", "libwebp-dev"), ("compressed TIFF", "libtiff-dev")])
def test_what_this_pillow_was_built_without_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.WebPImagePlugin.SUPPORTED", False)
    monkeypatch.delattr(Image.core, "libtiff_decoder", raising=False)
    data = dict(optional_files())[name]
    with pytest.raises(DatasetError, match=f"built without {package}"):
        open_rgb(data)
    with pytest.raises(BadImage) as caught:
        Preparer((RAW,))(data)
    assert caught.value.reason == f"format not supported (Pillow was built without {package})"
    assert f"install {package}, " in caught.value.detail and "--retry-quarantine" in caught.value.detail


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    for kind in ("JPEG", "PNG"):
        with pytest.raises(BadImage) as caught:
            Preparer((RAW,), max_pixels=5000)(saved(picture(), kind))
        assert caught.value.reason == "too many pixels"


def test_a_jpeg_with_harmless_complaints_is_read() -> None:
    data = saved(picture(), quality=95)
    assert pixels(data[:-2] + b"\x00\x00\x00\x00" + data[-2:]).shape == (75, 100, 3)


# --- sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resize", "enlarge", "source", "expected"),
    [
        ("shortest", False, (500, 375), (341, 256)),
        ("shortest", False, (375, 500), (256, 341)),
        ("shortest", False, (200, 100), (200, 100)),
        ("shortest", True, (200, 100), (512, 256)),
        ("square", False, (500, 375), (256, 256)),
        ("square", False, (200, 100), (100, 100)),
        ("square", True, (200, 100), (256, 256)),
        ("crop", False, (500, 375), (256, 256)),
        ("crop", True, (200, 300), (200, 256)),
        ("stretch", False, (500, 375), (256, 256)),
        ("stretch", False, (500, 100), (256, 100)),
        ("stretch", True, (500, 100), (256, 256)),
        ("none", False, (500, 375), (500, 375)),
    ],
)
def test_sizes(resize: Any, enlarge: bool, source: tuple[int, int], expected: tuple[int, int]) -> None:
    output = Output(codec="raw", resize=resize, enlarge=enlarge, size_px=256)
    prepared = Preparer((output,))(saved(picture(*source)))[0]
    assert (prepared.width, prepared.height) == expected
    assert np.load(io.BytesIO(prepared.data)).shape == (expected[1], expected[0], 3)


def test_a_strip_is_not_enlarged_beyond_all_bounds() -> None:
    enlarged = (Output(codec="raw", enlarge=True, size_px=256),)
    with pytest.raises(BadImage, match=r"1x20000 px would become 256x5120000"):
        Preparer(enlarged)(saved(picture(1, 20_000)))
    with pytest.raises(BadImage, match=r"1x20 px would become 256x5120"):
        Preparer(enlarged, max_pixels=1 << 20)(saved(picture(1, 20)))


@settings(max_examples=300)
@given(
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    size=st.integers(2, 600),
    resize=st.sampled_from(["shortest", "square", "crop", "stretch", "none"]),
    codec=st.sampled_from(["raw", "planes"]),
)
def test_geometry_stays_inside_and_never_enlarges(
    width: int, height: int, size: int, resize: Any, codec: Any
) -> None:
    output = Output(codec=codec, resize=resize, size_px=size)
    try:
        target_w, target_h, (left, top, right, bottom) = geometry(width, height, output)
    except BadImage:
        assert codec == "planes"
        return
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert target_w <= right - left + 1e-9
    assert target_h <= bottom - top + 1e-9
    if codec == "planes":
        assert target_w % 2 == target_h % 2 == 0
    if resize == "shortest" and codec == "raw":
        assert min(target_w, target_h) == min(size, width, height)


def test_square_takes_the_centre() -> None:
    image = Image.new("RGB", (300, 100), (255, 0, 0))
    image.paste((0, 255, 0), (100, 0, 200, 100))
    found = pixels(saved(image, "PNG"), Output(codec="raw", resize="square", size_px=50))
    assert np.array_equal(np.unique(found[:, 2:-2].reshape(-1, 3), axis=0), [[0, 255, 0]])
    assert found[:, :, 1].min() > 200  # at the edge the filter sees a little beyond, as resize-then-crop would


def test_the_resampler_antialiases() -> None:
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    found = pixels(saved(Image.fromarray(stripes), "PNG"), Output(codec="raw", resize="stretch", size_px=64))
    assert np.abs(found.astype(int) - 127)[:, 2:-2].max() < 12


# --- codecs -------------------------------------------------------------------------------------------


def test_several_outputs_are_the_same_as_one_by_one() -> None:
    data = saved(picture(500, 375), quality=95)
    outputs = (
        Output(size_px=256),
        Output(size_px=64, codec="raw", resize="square"),
        Output(size_px=96, codec="planes"),
        Output(codec="keep", resize="none", size_px=0),
    )
    together = Preparer(outputs)(data)
    assert [Preparer((output,))(data)[0] for output in outputs] == together
    assert [prepared.extension for prepared in together] == ["jpg", "npy", "npy", "jpg"]
    assert together[3].data == data


def test_a_buffer_used_before_leaves_no_trace() -> None:
    preparer = Preparer((RAW,))
    large, small = saved(picture(400, 300)), saved(picture(50, 40))
    first = [preparer(large)[0].data, preparer(small)[0].data, preparer(large)[0].data]
    assert first[0] == first[2]
    assert first[1] == Preparer((RAW,))(small)[0].data


def test_planes_hold_luma_and_half_size_chroma() -> None:
    flat = saved(Image.new("RGB", (61, 43), (200, 200, 200)), "PNG")
    prepared = Preparer((Output(codec="planes", resize="none", size_px=0),))(flat)[0]
    assert (prepared.width, prepared.height) == (60, 42)
    array = np.load(io.BytesIO(prepared.data))
    assert array.shape == (63, 60)
    assert np.ptp(array[:42]) == 0
    assert np.abs(array[42:].astype(int) - 128).max() <= 1


def test_keep_still_looks_at_the_image() -> None:
    keep = Preparer((Output(codec="keep", resize="none", size_px=0),))
    assert keep(saved(picture(), "PNG"))[0].extension == "png"
    with pytest.raises(BadImage):
        keep(saved(picture(), quality=95)[:800])


def test_a_kept_file_is_not_turned_nor_is_its_size() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture(100, 60), exif=exif, quality=95)
    turned, kept = Preparer(
        (Output(size_px=40, apply_orientation=True), Output(codec="keep", apply_orientation=True))
    )(data)
    assert (turned.width, turned.height) == (40, 66)
    assert (kept.data, kept.width, kept.height) == (data, 100, 60)


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "gif"},
        {"resize": "big"},
        {"quality": 0},
        {"size_px": 1},
        {"filter": "nearest"},
        {"subsampling": "422"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Output(**wrong)


def test_it_runs_without_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, feedline.preprocess.write_shard; assert 'torch' not in sys.modules and 'pyspark' not in sys.modules"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_picture_that_is_damaged_within_is_not_filled_up_with_something() -> None:
    """Pillow reads it and says nothing; the loader would refuse it."""
    data = bytearray(saved(picture(300, 300), quality=95))
    at = data.index(b"\xff\xda") + 1000
    data[at : at + 2] = b"\xff\xd9"
    Image.open(io.BytesIO(bytes(data))).load()
    for output in (RAW, Output(codec="keep")):
        with pytest.raises(BadImage) as caught:
            Preparer((output,))(bytes(data))
        assert caught.value.reason == "damaged" and "Corrupt JPEG data" in caught.value.detail
    data[data.index(b"JFIF\0") + 5] = 2  # of a revision that nobody knows
    with pytest.raises(BadImage, match="Corrupt JPEG data"):
        Preparer((RAW,))(bytes(data))
    sloppy = saved(picture(64, 64))
    at = 4 + int.from_bytes(sloppy[4:6], "big")
    sloppy = sloppy[:at] + bytes(2) + sloppy[at:]  # between two segments: Pillow reads on, the loader does not
    assert Preparer((RAW,))(sloppy)
    with pytest.raises(BadImage, match="no marker"):
        Preparer((Output(codec="keep"),))(sloppy)
    scans = bytearray(saved(picture(64, 64), progressive=True))
    second = scans.index(b"\xff\xda", scans.index(b"\xff\xda") + 1)
    scans[second + 9] = 0x10  # it refines what no scan before it has begun
    Image.open(io.BytesIO(bytes(scans))).load()
    with pytest.raises(BadImage, match="Inconsistent progression"):
        Preparer((Output(codec="keep"),))(bytes(scans))


@pytest.mark.parametrize("apply", [False, True])
def test_a_tiff_is_upright_whatever_was_asked_for(apply: bool) -> None:
    """Pillow turns it; it is not turned once more."""
    exif = Image.Exif()
    exif[0x0112] = 6
    shown = picture(60, 40)
    data = saved(shown, "TIFF", exif=exif)
    output = Output(codec="raw", resize="none", size_px=0, apply_orientation=apply)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(saved(shown, "PNG", exif=exif)))))
    assert np.array_equal(pixels(data, output), upright)
