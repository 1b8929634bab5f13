"""Equal fingerprints must write equal shards: what differs a little, or reads other formats, has another."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.table import CODECS
from feedline.preprocess.fingerprint import fingerprint, optional_files
from feedline.preprocess.picture import BadImage, Kernel, Output
from tests.preprocess.making import off_by_one

KEEP = Output(codec="keep", resize="none", size_px=0)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    fingerprint.cache_clear()
    yield
    fingerprint.cache_clear()


def test_it_depends_on_what_is_written() -> None:
    forms = (Output(), Output(quality=80), Output(filter="bilinear"), Output(size_px=255), Output(codec="raw"))
    found = [fingerprint((form,)).encoder for form in forms]
    assert len(set(found)) == len(forms)
    fingerprint.cache_clear()
    assert [fingerprint((form,)).encoder for form in forms] == found


@pytest.mark.parametrize("size_px", [64, 256, 1024])
@pytest.mark.parametrize("codec", ["jpeg", "planes", "raw"])
def test_a_resampler_that_is_off_by_one_in_one_pixel_is_noticed(
    codec: Any, size_px: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(codec=codec, size_px=size_px)
    before = fingerprint((output,)).encoder
    fingerprint.cache_clear()
    off_by_one(monkeypatch)
    assert fingerprint((output,)).encoder != before


def test_what_is_only_kept_depends_on_no_resampler(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint((KEEP,))
    fingerprint.cache_clear()
    off_by_one(monkeypatch)
    assert fingerprint((KEEP,)) == before


def test_an_encoder_that_differs_in_its_bytes_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint((Output(),)).encoder
    fingerprint.cache_clear()
    encode = jpeg.encode
    monkeypatch.setitem(CODECS, "jpeg", replace(CODECS["jpeg"], encode=lambda *what: encode(*what) + b"\0"))
    assert fingerprint((Output(),)).encoder != before


def test_it_names_the_formats_that_this_build_of_pillow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    readable: list[str] = []
    for name, data in optional_files():
        try:
            Kernel((KEEP,))(data)
            readable.append(name)
        except BadImage as bad:
            assert "format not supported" in bad.reason
    assert list(fingerprint((KEEP,)).formats) == readable

    file = io.BytesIO()
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(file, "GIF")
    monkeypatch.setattr("feedline.preprocess.fingerprint.optional_files", lambda: [("GIF", file.getvalue())])
    fingerprint.cache_clear()
    assert list(fingerprint((KEEP,)).formats) == ["GIF"]
    monkeypatch.setitem(Image.OPEN, "GIF", (Image.OPEN["GIF"][0], lambda prefix: "GIF support not installed"))
    fingerprint.cache_clear()
    assert fingerprint((KEEP,)).formats == {}
