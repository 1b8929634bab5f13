"""Decoding on the device, as far as a machine without one can tell: the same code on torchvision's CPU decoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

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


def test_regions_of_a_batch_are_resized_as_one_by_one() -> None:
    draw = np.random.default_rng(1)
    images, boxes = list[torch.Tensor](), list[list[int]]()
    for height, width in ((40, 60), (32, 32), (17, 90), (8, 8)):
        images.append(torch.from_numpy(draw.integers(0, 256, (3, height, width), dtype=np.uint8)))
        high, wide = int(draw.integers(4, height + 1)), int(draw.integers(4, width + 1))
        left, top = int(draw.integers(0, width - wide + 1)), int(draw.integers(0, height - high + 1))
        boxes.append([left, top, wide, high, len(boxes) % 2])
    for px in (24, 7, 64):
        found_NHWC = gpu_decode.resized(images, boxes, px)
        assert found_NHWC.is_contiguous() and found_NHWC.dtype == torch.uint8
        for one_HWC, image_CHW, box in zip(found_NHWC, images, boxes, strict=True):
            left, top, wide, high, flip = box
            region_CHW = image_CHW[:, top : top + high, left : left + wide].float()
            region_CHW = region_CHW.flip(2) if flip else region_CHW
            exact_CHW = interpolate(region_CHW[None], (px, px), mode="bilinear", antialias=True)[0]
            assert (one_HWC.permute(2, 0, 1) - exact_CHW).abs().max() < 0.51


def test_memory_goes_by_the_regions_and_not_by_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """One photograph of a camera beside a batch of small ones, or a batch of them, must not fill the device."""
    draw, taken = np.random.default_rng(1), list[int]()
    sides = [(1500, 2000), *[(40, 60)] * 6, (900, 1200)]
    images = [torch.from_numpy(draw.integers(0, 256, (3, *size), dtype=np.uint8)) for size in sides]
    boxes = [[700, 300, 50, 40, 1], *[[10, 4, 30, 36, 0]] * 6, [100, 200, 400, 300, 0]]
    as_one = gpu_decode.resized(images, boxes, 24)
    zeros = torch.zeros

    def noted(size: tuple[int, ...], **options: Any) -> torch.Tensor:
        taken.append(4 * int(np.prod(size)))
        return zeros(size, **options)

    monkeypatch.setattr(torch, "zeros", noted)
    monkeypatch.setattr(gpu_decode, "PIECE_BYTES", 7 * 50 * 40 * 12)
    in_pieces = gpu_decode.resized(images, boxes, 24)
    assert taken == [7 * 50 * 40 * 12, 400 * 300 * 12], "the last one alone takes more"
    assert (in_pieces.int() - as_one.int()).abs().max() <= 1


@pytest.mark.gpu
def test_on_a_gpu(split: Path) -> None:
    normal = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3, "policy": "drop", "num_workers": 1}
    for (images_NCHW, labels_N), (expected_NHWC, expected_N) in zip(
        Loader(split, **OPTIONS | normal | {"decode": "gpu", "device": "cuda"}),
        Loader(split, **OPTIONS | normal),
        strict=True,
    ):
        difference = (images_NCHW.cpu().permute(0, 2, 3, 1) - expected_NHWC.float()).abs()
        assert difference.mean() < 2.5
        assert labels_N.tolist() == expected_N.tolist()


@pytest.mark.gpu
def test_a_batch_is_decoded_into_no_memory_that_is_still_read(split: Path) -> None:
    """The decoder has a stream of its own, and is given what ours freed, on which the batch before may be at work."""
    options = OPTIONS | {"policy": "drop", "num_workers": 2, "decode": "gpu", "device": "cuda", "batch_size": 16}
    alone = [images_NCHW.clone() for images_NCHW, _ in Loader(split, **options)]
    loader = Loader(split, **options)
    hurried: list[torch.Tensor] = []
    for images_NCHW, _ in loader:
        hurried.append(images_NCHW)
        with torch.cuda.stream(loader._delivery.stream):  # type: ignore[union-attr]
            torch.cuda._sleep(20_000_000)
    assert all(torch.equal(one, other) for one, other in zip(alone, hurried, strict=True))
