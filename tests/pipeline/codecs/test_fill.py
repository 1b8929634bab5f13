"""What lands in a slot: the pixels that torchvision's and Pillow's transforms give, from every codec, every time."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import skimage.data
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.codecs.crop_jpeg import parse
from feedline.pipeline.codecs.planes import planes
from feedline.pipeline.codecs.table import CODECS as TABLE
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.regions import Augment, Region, choose
from feedline.pipeline.draw.resample import halved, is_antialiased
from feedline.pipeline.workers.counters import FIELD, ROW_BYTES, Clock

pytestmark = pytest.mark.usefixtures("kernel")
PHOTO = np.asarray(Image.fromarray(skimage.data.coffee()).resize((400, 300), Image.Resampling.BICUBIC))
CODECS = ["jpeg", "keep", "raw", "planes"]
EVAL = Augment(train=False)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def plain_jpeg(pixels: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **{"quality": 95, **options})  # type: ignore[arg-type]
    return file.getvalue()


def tiled_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    return jpeg.encode(Image.fromarray(pixels), quality)


def member(codec: str, pixels: np.ndarray, quality: int = 95) -> bytes:
    if codec == "jpeg":
        return tiled_jpeg(pixels, quality)
    if codec == "keep":
        return plain_jpeg(pixels, quality=quality)
    return npy(pixels if codec == "raw" else planes(pixels))


def fill(
    codec: str, data: bytes, px: int, config: Augment, sample: int = 0, epoch: int = 0, seed: int = 0
) -> np.ndarray:
    out_HWC = np.full((px, px, 3), 7, np.uint8)
    SampleKernel(codec, config, seed)(data, out_HWC, sample, epoch, new_clock())  # type: ignore[arg-type]
    return out_HWC


def new_clock() -> Clock:
    return Clock(np.zeros(ROW_BYTES // 8, np.int64))


def by_pillow(pixels: np.ndarray, region: Region, px: int) -> np.ndarray:
    """torchvision's resized_crop and hflip of a PIL image."""
    left, top, width, height, flip, _ = region
    image = Image.fromarray(pixels).crop((left, top, left + width, top + height))
    resized = np.asarray(image.resize((px, px), Image.Resampling.BILINEAR))
    return resized[:, ::-1] if flip else resized


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Mean over all values, in levels of 255."""
    return float(np.abs(one.astype(int) - other).mean())


# What a codec does to the picture, and what bilinear up to 8/7 does against the antialiased filter (0.8), in levels.
TOLERANCE = {"raw": 1.0, "jpeg": 2.5, "keep": 2.5, "planes": 2.5}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("px", [32, 96, 224, 320])
def test_training_shows_what_torchvision_would(codec: str, px: int) -> None:
    data = member(codec, PHOTO)
    for sample in range(12):
        region = choose(400, 300, px, Augment(), 0, 0, sample)
        if codec == "planes" and not is_antialiased(region, px, px):
            half = halved(region)  # planes are enlarged from even places on
            region = Region(*(2 * side for side in half[:4]), region.flip)
        assert difference(fill(codec, data, px, Augment(), sample), by_pillow(PHOTO, region, px)) < TOLERANCE[codec]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("px", [64, 128, 200, 224, 260])
def test_evaluation_shows_resize_and_centre_crop(codec: str, px: int) -> None:
    from torchvision.transforms import v2

    for pixels in (PHOTO, PHOTO[:, :222], PHOTO[:256, :256]):
        steps = v2.Compose([v2.Resize(round(px / EVAL.crop_fraction)), v2.CenterCrop(px)])
        expected = np.asarray(steps(Image.fromarray(pixels)))
        got = fill(codec, member(codec, np.ascontiguousarray(pixels)), px, EVAL)
        assert difference(got, expected) < (0.02 if codec == "raw" else TOLERANCE[codec])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("px", [64, 224, 260])
def test_whole_pictures_are_stretched_as_resize_does_and_flipped_as_often_as_asked(codec: str, px: int) -> None:
    from torchvision.transforms import v2

    for pixels in (PHOTO, np.ascontiguousarray(PHOTO[:, :222])):
        expected, data = np.asarray(v2.Resize((px, px))(Image.fromarray(pixels))), member(codec, pixels)
        tolerance = 0.02 if codec == "raw" else TOLERANCE[codec]
        assert difference(fill(codec, data, px, Augment(train=False, whole=True)), expected) < tolerance
        for flip, shown in ((0.0, expected), (1.0, expected[:, ::-1])):
            assert difference(fill(codec, data, px, Augment(whole=True, flip=flip)), shown) < tolerance
    flipped = [choose(8, 8, 8, Augment(whole=True, flip=0.25), 0, 0, sample).flip for sample in range(4000)]
    assert 0.22 < np.mean(flipped) < 0.28


def test_evaluation_at_full_size_is_a_full_decodes_centre() -> None:
    """The 256 to 224 case: nothing is resized, and only smooth chroma at the very edge can differ."""
    data = tiled_jpeg(PHOTO[:256, :341], 90)
    expected = jpeg.decode(data)[16:240, 58:282]
    got = fill("jpeg", data, 224, EVAL)
    assert np.array_equal(got[1:-1, 1:-1], expected[1:-1, 1:-1])
    assert difference(got, expected) < 0.05


@given(st.integers(0, 2**31), st.integers(0, 1000), st.sampled_from([48, 112, 224]))
@settings(max_examples=60)
def test_a_cut_gives_exactly_what_decoding_everything_gives(sample: int, epoch: int, px: int) -> None:
    config = Augment()
    with_tiles = tiled_jpeg(PHOTO, 90)
    without = plain_jpeg(PHOTO, quality=90, subsampling=2)  # the same coefficients, no restart markers
    assert np.array_equal(
        fill("jpeg", with_tiles, px, config, sample, epoch), fill("jpeg", without, px, config, sample, epoch)
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_sample_depends_on_seed_epoch_and_number_only(codec: str) -> None:
    data = member(codec, PHOTO)
    first = fill(codec, data, 96, Augment(), sample=5, epoch=2, seed=9)
    for other in ({"sample": 6}, {"epoch": 3}, {"seed": 8}):
        assert not np.array_equal(
            first, fill(codec, data, 96, Augment(), **{"sample": 5, "epoch": 2, "seed": 9, **other})
        )
    assert np.array_equal(first, fill(codec, data, 96, Augment(), sample=5, epoch=2, seed=9))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [(2, 2), (16, 300), (300, 16), (34, 22), (226, 226)])
def test_small_and_narrow_pictures_fill_the_slot(codec: str, size: tuple[int, int]) -> None:
    pixels = np.ascontiguousarray(PHOTO[: size[1], : size[0]])
    for config in (Augment(), EVAL):
        for px in (33, 64):
            got = fill(codec, member(codec, pixels), px, config, sample=3)
            assert abs(float(got.mean()) - float(pixels.mean())) < 60


@pytest.mark.parametrize("px", [64, 224])
def test_flipping_mirrors(px: int) -> None:
    whole = {"scale": (1.0, 1.0), "ratio": (4 / 3, 4 / 3)}
    for codec in CODECS:
        data = member(codec, PHOTO)
        plain = fill(codec, data, px, Augment(flip=0, **whole))  # type: ignore[arg-type]
        assert np.array_equal(plain[:, ::-1], fill(codec, data, px, Augment(flip=1, **whole)))  # type: ignore[arg-type]


def test_the_clock_gets_decode_and_transform() -> None:
    row = np.zeros(ROW_BYTES // 8, np.int64)
    SampleKernel("jpeg", Augment(), 0)(tiled_jpeg(PHOTO, 90), np.empty((64, 64, 3), np.uint8), 0, 0, Clock(row))
    assert row[FIELD["decode"]] > 0 and row[FIELD["transform"]] > 0 and row[FIELD["read"]] == 0


def test_kept_originals_may_be_anything_pillow_reads() -> None:
    for options in ({"format": "PNG"}, {"format": "BMP"}):
        file = io.BytesIO()
        Image.fromarray(PHOTO).save(file, **options)  # type: ignore[arg-type]
        assert difference(fill("keep", file.getvalue(), 64, EVAL), fill("raw", npy(PHOTO), 64, EVAL)) < 3
    for mode in ("L", "CMYK"):
        file = io.BytesIO()
        image = Image.fromarray(PHOTO).convert(mode)
        image.save(file, "JPEG", quality=95)
        for px in (64, 224):
            expected = fill("raw", npy(np.asarray(image.convert("RGB"))), px, EVAL)
            assert difference(fill("keep", file.getvalue(), px, EVAL), expected) < 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_kept_originals_of_sixteen_bits_keep_their_upper_eight(kind: str) -> None:
    """As `prepare` reads them; Pillow itself would clip them to white."""
    grey = (np.arange(64 * 64).reshape(64, 64) * 16).astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, kind)
    expected = np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    assert np.array_equal(TABLE["keep"].pixels(file.getvalue()), expected)
    whole = Augment(train=False, crop_fraction=1.0)
    assert np.array_equal(fill("keep", file.getvalue(), 64, whole), expected)


@pytest.mark.parametrize("make", [tiled_jpeg, plain_jpeg], ids=["tiles", "no tiles"])
@pytest.mark.parametrize("config", [Augment(), EVAL], ids=["train", "eval"])
def test_a_picture_that_is_cut_short_is_never_filled_up(make: Callable[..., bytes], config: Augment) -> None:
    data = make(PHOTO, quality=90)
    for length in (100, len(data) // 3, len(data) - len(data) // 4):
        with pytest.raises(DatasetError):
            fill("keep", data[:length], 224, config)


def test_damage_inside_the_picture_is_seen() -> None:
    data = bytearray(plain_jpeg(PHOTO))
    at = parse(bytes(data)).scan_at + 1000
    data[at : at + 2] = b"\xff\xd9"
    for px in (64, 224):
        with pytest.raises(DatasetError, match="damaged"):
            fill("keep", bytes(data), px, EVAL)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
@settings(max_examples=60)
def test_arbitrary_bytes_are_refused_in_one_way(codec: str, data: bytes) -> None:
    for start in (b"", b"\xff\xd8\xff", b"\x93NUMPY\x01\x00v\x00"):
        with pytest.raises(DatasetError):
            fill(codec, start + data, 32, EVAL)


@pytest.mark.parametrize(
    ("codec", "array"),
    [
        ("raw", np.zeros((8, 8), np.uint8)),
        ("raw", np.zeros((8, 8, 3), np.float32)),
        ("raw", np.zeros((0, 8, 3), np.uint8)),
        ("raw", np.asfortranarray(np.zeros((8, 6, 3), np.uint8))),
        ("planes", np.zeros((10, 8), np.uint8)),
        ("planes", np.zeros((9, 7), np.uint8)),
    ],
)
def test_arrays_of_another_kind_are_refused(codec: str, array: np.ndarray) -> None:
    with pytest.raises(DatasetError):
        fill(codec, npy(array), 32, EVAL)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_small_outputs_are_decoded_small(factor: int) -> None:
    region = Region(10, 10, 250, 250)
    assert jpeg.dct_factor(region, 250 // factor, 250 // factor) == factor


def test_a_picture_that_cannot_be_shortened_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without tiles is cut below the region; what the decoder then says of it must not be the last word."""
    data, config = plain_jpeg(PHOTO), Augment(scale=(0.2, 0.3))
    usual_HWC, whole_HWC = (np.empty((64, 64, 3), np.uint8) for _ in range(2))
    SampleKernel("keep", config, 0)(data, usual_HWC, 3, 0, new_clock())

    monkeypatch.setattr(crop_jpeg, "shorten", lambda data, *_: data[: len(data) // 2])
    SampleKernel("keep", config, 0)(data, whole_HWC, 3, 0, new_clock())
    assert np.abs(whole_HWC.astype(int) - usual_HWC).max() <= 2
