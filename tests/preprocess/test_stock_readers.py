"""Prepared shards as anyone reads them: stock webdataset and every common JPEG decoder, unaware of feedline."""

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from PIL import Image
from torchvision.io import decode_image
from webdataset.compat import WebDataset

from feedline.pipeline import jpeg
from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig, parse_output
from tests.preprocess.making import CLASSES, PER_CLASS, run_here

Pixels = npt.NDArray[np.uint8]
SAMPLES = len(CLASSES) * PER_CLASS
USUAL = 0.5
"""Mean difference of 255 between decoders of any JPEG: chroma upsampling and rounding."""


@pytest.fixture(scope="module")
def shards(clean_images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("stock") / "out"
    config = PrepareConfig(source=str(clean_images), out=str(out), outputs=(parse_output("64:jpeg"),), shards=2)
    door.prepare(config, runner=run_here)
    return [str(path) for path in sorted((out / "train").glob("*.tar"))]


def samples(shards: list[str], decode: str = "") -> dict[str, Any]:
    data: Any = WebDataset(shards, shardshuffle=False)
    return {sample["__key__"]: sample for sample in (data.decode(decode) if decode else data)}


def with_pillow(file: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(file)))


def with_opencv(file: bytes) -> Pixels:
    blue_first = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    assert blue_first is not None
    return blue_first[..., ::-1].astype(np.uint8)


def with_torchvision(file: bytes) -> Pixels:
    return decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8)).permute(1, 2, 0).numpy()


def with_djpeg(file: bytes) -> Pixels:
    if shutil.which("djpeg") is None:
        pytest.skip("djpeg is not installed (libjpeg-turbo-progs)")
    done = subprocess.run(["djpeg"], input=file, capture_output=True, check=True)
    assert done.stderr == b""
    return with_pillow(done.stdout)


def test_stock_webdataset_decodes_to_pillow_and_to_torch(shards: list[str]) -> None:
    stored = samples(shards)
    as_pillow = {key: sample["jpg"] for key, sample in samples(shards, decode="pil").items()}
    as_torch = {key: sample["jpg"] for key, sample in samples(shards, decode="torch").items()}
    assert len(stored) == len(as_pillow) == len(as_torch) == SAMPLES
    for key, sample in stored.items():
        expected = with_pillow(sample["jpg"])
        assert np.array_equal(as_pillow[key], expected)
        assert as_torch[key].dtype == torch.float32
        assert np.array_equal((as_torch[key] * 255).round().to(torch.uint8).permute(1, 2, 0), expected)
    assert {sample["cls"] for sample in samples(shards, decode="pil").values()} == {0, 1, 2}


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision")
@pytest.mark.parametrize("decoder", [with_opencv, with_torchvision, simplejpeg.decode_jpeg, with_djpeg])
def test_every_decoder_sees_what_pillow_sees(shards: list[str], decoder: Callable[[bytes], Pixels]) -> None:
    files = [sample["jpg"] for sample in samples(shards).values()]
    assert all(jpeg.is_crop_addressable(file) for file in files)
    for file in files:
        expected, found = with_pillow(file), decoder(file)
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).mean() < USUAL
