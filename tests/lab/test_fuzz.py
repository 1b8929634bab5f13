"""The readers under hostile bytes: shortly with hypothesis, and over everything a longer run has found so far."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.format import manifest as shards
from tests.lab.fuzz_targets import TARGETS, Finding

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*.bin"))
EDITS = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=4)

PICTURE = np.random.default_rng(0).integers(0, 255, (24, 40, 3), np.uint8)


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(path: Path) -> None:
    TARGETS[path.name.partition("-")[0]].check(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_edited_files_end_in_an_answer_or_in_the_readers_own_error(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()

    @settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(seeds), EDITS, st.integers(0, 1 << 16))
    def edited(seed: bytes, edits: list[tuple[float, bytes, int]], chance: int) -> None:
        for place, put, cut in edits:
            at = int(place * len(seed))
            seed = seed[:at] + put + seed[at + cut :]
        target.check(target.repair(seed, random.Random(chance)) if target.repair and chance % 2 else seed)

    edited()


def test_the_checks_see_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = crop_jpeg.cut
    monkeypatch.setattr(crop_jpeg, "cut", lambda *region, frame: cut(*region, frame=frame)._replace(left_px=0))
    with pytest.raises(Finding, match="differs from a full decode"):
        for seed in TARGETS["jpeg"].seeds():
            TARGETS["jpeg"].check(seed)


def test_a_picture_that_cannot_be_decoded_is_an_error_and_no_uninitialised_memory() -> None:
    data = next(path for path in FINDINGS if path.stem == "jpeg-undefined-table").read_bytes()
    with pytest.raises(crop_jpeg.JpegError, match="cannot be decoded"):
        jpeg.decode(data[:-4])


def test_a_header_of_gigapixels_is_refused_before_any_memory_is_taken() -> None:
    data = bytearray(jpeg.encode(Image.fromarray(PICTURE), 90))
    at = crop_jpeg.parse(bytes(data)).size_at
    data[at : at + 4] = b"\xff\xff\xff\xff"
    for read in (crop_jpeg.parse, jpeg.decode, lambda data: crop_jpeg.cut(data, 0, 0, 8, 8)):
        with pytest.raises(crop_jpeg.JpegError, match="65535x65535"):
            read(bytes(data))


def test_what_libjpeg_only_wonders_at_is_read_and_its_damage_is_seen() -> None:
    data = jpeg.encode(Image.fromarray(PICTURE), 90)
    at = data.index(b"JFIF\0") + 5
    odd = data[:at] + b"\x07" + data[at + 1 :]  # a revision nobody knows
    assert (jpeg.decode(odd) == jpeg.decode(data)).all()
    with pytest.raises(crop_jpeg.JpegError, match="damaged"):
        jpeg.decode(odd[:-40] + b"\xff\xd9")


def test_a_manifest_nested_without_end_or_full_of_lies_is_refused(tmp_path: Path) -> None:
    good = TARGETS["manifest"].seeds()[1].decode()
    for text in (
        good.replace('"samples":2', '"samples":"2"'), good.replace('"train-000000.tar"', '".."'),
        good.replace('"versions":{', '"versions":{"a":' + "[" * 200 + "]" * 200 + ","), "[" * 100_000,
        good.replace('"codec":"jpeg"', '"codec":"pickle"'), good.replace('"samples":2', '"samples":1e999'),
    ):  # fmt: skip
        assert text != good
        (tmp_path / shards.MANIFEST).write_text(text)
        with pytest.raises(DatasetError):
            shards.read_manifest(tmp_path)
