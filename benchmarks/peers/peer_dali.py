"""NVIDIA DALI on the CPU: region decode, resize, mirror in native threads; uint8 NHWC batches as NumPy arrays."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from peer_protocol import Epoch, Spec, image_files, serve


@pipeline_def
def graph(files: list[str], labels: list[int], px: int) -> Any:
    encoded, label = fn.readers.file(files=files, labels=labels, random_shuffle=True, initial_fill=1024)
    images = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=px, resize_y=px, antialias=True)
    return fn.flip(images, horizontal=fn.random.coin_flip()), label


def make(spec: Spec) -> Epoch:
    files = image_files(spec["folder"])
    pipe = graph([str(path) for path, _ in files], [label for _, label in files], spec["px"],
                 batch_size=spec["batch_size"], num_threads=max(1, spec["workers"]), device_id=None)  # fmt: skip
    pipe.build()

    def epoch() -> Any:
        while True:
            yield pipe.run()[0].as_array()

    return epoch


if __name__ == "__main__":
    serve(make)
