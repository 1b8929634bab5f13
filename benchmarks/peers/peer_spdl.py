"""SPDL: its pipeline of threads, FFmpeg decode with crop, scale and flip as filters, batches of uint8 NHWC."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
import math
import random
from typing import Any

import spdl.io
from peer_protocol import Epoch, Spec, image_files, serve
from spdl.pipeline import PipelineBuilder


def region(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return w, h, random.randint(0, width - w), random.randint(0, height - h)
    return width, height, 0, 0


def make(spec: Spec) -> Epoch:
    px = spec["px"]
    files = [str(path) for path, _ in image_files(spec["folder"])]

    def decode(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        width, height = packets.codec.width, packets.codec.height
        w, h, x, y = region(width, height)
        flip = ",hflip" if random.random() < 0.5 else ""
        wanted = f"crop={w}:{h}:{x}:{y},scale={px}:{px}:flags=bilinear{flip},format=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=wanted)

    def collate(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    def epoch() -> Any:
        random.shuffle(files)
        pipeline = (
            PipelineBuilder()
            .add_source(files)
            .pipe(decode, concurrency=max(1, spec["workers"]), output_order="completion")
            .aggregate(spec["batch_size"], drop_last=True)
            .pipe(collate)
            .add_sink(3)
            .build(num_threads=max(1, spec["workers"]))
        )
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


if __name__ == "__main__":
    serve(make)
