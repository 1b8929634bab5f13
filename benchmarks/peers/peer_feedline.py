"""feedline's own row: the same protocol, the same window, uint8 NHWC batches from the split in the spec."""

from peer_protocol import Epoch, Spec, serve  # pyright: ignore[reportMissingImports]

from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.loader import Loader


def make(spec: Spec) -> Epoch:
    augment = Augment(**spec.get("augment", {}))
    chosen = {name: spec[name] for name in ("window_shards", "cache_dir", "cache_bytes") if name in spec}
    loader = Loader(spec["split"], image_size=spec["px"], num_workers=spec["workers"], train=True, rank=0,
                    world_size=1, batch_size=spec["batch_size"], augment=augment, **chosen)  # fmt: skip
    return lambda: (images_NHWC for images_NHWC, _ in loader)


if __name__ == "__main__":
    serve(make)
