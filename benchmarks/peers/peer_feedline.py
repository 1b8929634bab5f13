"""feedline's own row: the same protocol, the same window, uint8 NHWC batches from the split in the spec."""

from collections.abc import Iterator
from typing import Any

from peer_protocol import Spec, serve  # pyright: ignore[reportMissingImports]

from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader import Loader

loaders: list[Loader] = []


def batches(spec: Spec) -> Iterator[Any]:
    if not loaders:
        options = {name: spec[name] for name in ("batch_size", "prefetch_factor") if name in spec}
        loaders.append(
            Loader(spec["split"], image_size=spec["px"], num_workers=spec["workers"], train=True,
                   augment=Augment(**spec.get("augment", {})), rank=0, world_size=1, **options)
        )  # fmt: skip
    for images_NHWC, _ in loaders[0]:
        yield images_NHWC


if __name__ == "__main__":
    serve(batches)
