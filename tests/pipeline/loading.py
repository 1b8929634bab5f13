"""A small loader's settings, and what comes out of one."""

from typing import Any

from feedline.pipeline.loader import Loader

SMALL: dict[str, Any] = {"batch_size": 8, "image_size": 16, "num_workers": 2, "seed": 3, "rank": 0, "world_size": 1}


def labels(loader: Loader) -> list[int]:
    return [int(label) for _, labels_N in loader for label in labels_N]
