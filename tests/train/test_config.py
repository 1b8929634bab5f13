from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.train.config import TrainConfig


def config(**options: Any) -> TrainConfig:
    return TrainConfig(dataset=Path("OUT"), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "--epochs 0"),
        ({"batch_size": -1}, "--batch-size -1"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"lr": float("inf")}, "--lr inf"),
        ({"momentum": float("nan")}, "--momentum nan"),
        ({"warmup_epochs": float("nan")}, "--warmup-epochs nan"),
        ({"mean": (0.5, float("nan"), 0.5)}, "--mean"),
        ({"threads": 10**11}, "--threads 100000000000"),
        ({"threads": 10**8}, "--threads 100000000"),  # a segmentation fault in OpenMP
        ({"widths": (6, 10**12)}, "--widths"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**64}, "--seed"),
        ({"target_top1": 90.0}, "--target-top1 90.0"),
        ({"target_top1": 0.9, "eval_every": 0}, "--target-top1 0.9: --eval-every 0 never measures it"),
        ({"keep_last": 0, "checkpoint_every": 5}, "--keep-last 0: .* --checkpoint-every asks for some"),
        ({"progressive": ((4, 128), (2, 160))}, "epochs must rise"),
        ({"keep_epochs": (11,), "epochs": 10}, "--keep-epochs"),
        ({"crop_scale": (0.5, 0.2)}, "--crop-scale"),
        ({"device": "tpu"}, "--device 'tpu'"),
        ({"device": "cudax"}, "--device 'cudax'"),
        ({"device": "cuda:x"}, "--device 'cuda:x'"),
        ({"std": (0.2, 0.0, 0.2)}, "--std"),
        ({"eval_ratio": 0.0}, "--eval-ratio 0.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config(**options)


def test_progressive_sizes_hold_until_the_next() -> None:
    sizes = config(progressive=((0, 128), (3, 160), (5, 224)), image_size=64)
    assert [sizes.image_size_at(epoch) for epoch in range(7)] == [128, 128, 128, 160, 160, 224, 224]
    assert config(progressive=((2, 160),), image_size=64).image_size_at(1) == 64
