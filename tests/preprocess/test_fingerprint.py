"""Equal fingerprints must write equal shards: what differs a little, or reads other formats, has another."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import read_manifest
from feedline.preprocess.fingerprint import fingerprint, optional_files
from feedline.preprocess.picture import BadImage, Output, Preparer
from feedline.preprocess.verify import verify
from tests.preprocess.making import Here, Killed, dies_after, digests, off_by_one, photo, prepare, saved, write_images

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
            Preparer((KEEP,))(data)
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


# --- jobs whose libraries change ---------------------------------------------------------------------


def test_shards_name_the_encoder_that_made_them(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "out")
    manifest = read_manifest(tmp_path / "out" / "train")
    mine = fingerprint((Output(),))
    assert {shard.fingerprint for shard in manifest.shards} == {mine.encoder}
    assert (manifest.format_version, manifest.formats) == (2, mine.formats)


def test_a_job_is_not_resumed_with_another_pillow(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(2))
    with monkeypatch.context() as patch:
        off_by_one(patch)
        fingerprint.cache_clear()
        with pytest.raises(UsageError, match=r"unfinished run of another plan .* libraries"):
            prepare(images, tmp_path / "out")
    fingerprint.cache_clear()
    assert prepare(images, tmp_path / "out")["resumed_samples"] == 27
    assert verify(str(tmp_path / "out"), full=True)["ok"]


@pytest.mark.parametrize("ended", ["killed", "too many bad", "finished"])
def test_more_formats_are_taken_up_by_retrying_what_is_in_quarantine(
    ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_images(tmp_path / "in", oddities=False), tmp_path / "out"
    for number in range(3):
        (source / "cup" / f"moving_{number}.gif").write_bytes(saved(photo(200 + number).convert("P"), "GIF"))
    with monkeypatch.context() as lean:
        lean.setattr("feedline.preprocess.fingerprint.optional_files", lambda: [("GIF", saved(photo(7), "GIF"))])
        fingerprint.cache_clear()
        prepare(source, tmp_path / "calm")
        Image.init()
        with monkeypatch.context() as leaner:
            leaner.setitem(Image.OPEN, "GIF", (Image.OPEN["GIF"][0], lambda prefix: "GIF support not installed"))
            fingerprint.cache_clear()
            if ended == "finished":
                prepare(source, out)
                prepare(source, out)
            else:
                engine, error = {"killed": (dies_after(2), Killed), "too many bad": (Here(), FeedlineError)}[ended]
                with pytest.raises(error):
                    prepare(source, out, engine=engine, max_bad=0.0 if ended == "too many bad" else 0.2)
        fingerprint.cache_clear()
        with pytest.raises(UsageError, match=r"\(there no optional format; here GIF\): give --retry-quarantine"):
            prepare(source, out)
        prepare(source, out, retry_quarantine=True)
        assert digests(out) == digests(tmp_path / "calm")
        assert verify(str(out), full=True)["ok"]
        assert prepare(source, out)["already_complete"]


def test_fewer_formats_are_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [("GIF", saved(photo(7), "GIF"))]
    monkeypatch.setattr("feedline.preprocess.fingerprint.optional_files", lambda: files)
    with pytest.raises(Killed):
        prepare(images, tmp_path / "out", engine=dies_after(1))
    files.clear()
    fingerprint.cache_clear()
    for retry in (False, True):
        with pytest.raises(UsageError, match=r"there GIF; here no optional format.*use the libraries"):
            prepare(images, tmp_path / "out", retry_quarantine=retry)
