"""Decoding on the device, as far as a machine without one can tell: the same code on torchvision's CPU decoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.pipeline import gpu_decode
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.loader import Loader
from feedline.pipeline.workers.dispatch import HostBatch

OPTIONS: dict[str, Any] = {"batch_size": 8, "image_size": 32, "rank": 0, "world_size": 1, "seed": 5}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("train", [True, False])
def test_packed_regions_give_the_same_images_to_a_grey_level_or_two(
    split: Path, workers: int, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = OPTIONS | {"train": train, "policy": "drop", "num_workers": workers}
    plain = Loader(split, **options)
    monkeypatch.setattr(gpu_decode, "available", lambda device: True)
    packed = Loader(split, **options | {"decode": "gpu"})
    batches = iter(packed)
    assert packed._fill_spec().decode == "gpu"
    for images_NHWC, labels_N in plain:
        batch = next(batches._run)  # type: ignore[attr-defined]
        assert batch.labels_N.tolist() == labels_N.tolist()
        decoded_NHWC = gpu_decode.decode(batch, torch.device("cpu"))
        difference = (decoded_NHWC.float() - images_NHWC.float()).abs()
        assert decoded_NHWC.shape == images_NHWC.shape
        # pictures of pure noise, the worst case; evaluation also rounds its box to whole pixels
        assert difference.mean() < (1.5 if train else 2.5)


def test_a_batch_whose_samples_were_all_skipped_is_an_empty_one() -> None:
    batch = HostBatch(np.empty(0, np.uint8), np.empty(0, np.int64), 32)
    assert gpu_decode.decode(batch, torch.device("cpu")).shape == (0, 32, 32, 3)


def test_without_cuda_it_says_so_and_the_workers_decode(split: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.warns(UserWarning, match="decode='gpu' is not possible here"):
        loader = Loader(split, **OPTIONS, decode="gpu", num_workers=0, policy="drop")
    assert next(iter(loader))[0].shape == (8, 32, 32, 3)


def test_what_it_cannot_do_is_refused(split: Path) -> None:
    for wrong in ({"policy": "pad"}, {"train": False}, {"batch_transform": np.copy}, {"decode": "tpu"}):
        with pytest.raises(UsageError):
            Loader(split, **{**OPTIONS, "decode": "gpu", **wrong})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(split: Path) -> None:
    normal = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3, "policy": "drop", "num_workers": 1}
    for (images_NCHW, _), (expected_NHWC, _) in zip(
        Loader(split, **OPTIONS | normal | {"decode": "gpu", "device": "cuda"}),
        Loader(split, **OPTIONS | normal),
        strict=True,
    ):
        difference = (images_NCHW.cpu().permute(0, 2, 3, 1) - expected_NHWC.float()).abs()
        assert difference.mean() < 2.5
