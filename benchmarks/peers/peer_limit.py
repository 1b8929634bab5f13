"""The limit: a bare loop in each of `workers` processes over bytes in memory. No loader, no batches handed over.

`kernel` in the spec: "feedline" (cut, decode, resize, flip into one place, as workers do), "decode" (whole images,
and nothing else), "gather" (raw samples copied one by one from mapped shards), "take" (the same bytes as one array in
memory, a batch being one `numpy.take`).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from feedline.pipeline.base.process import keep_freed_memory
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.pipeline.workers.counters import ROW_BYTES, Clock, rows_of

CHUNK = 64


def main(spec: dict[str, Any]) -> None:
    keep_freed_memory()  # as workers do
    cv2.setNumThreads(1)
    work = WORK[spec["kernel"]](spec)
    pipes: list[int] = []
    for number in range(spec["workers"]):
        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, json.dumps(loop(lambda n, w=number: work(n + 7919 * w), spec["seconds"])).encode())
            os._exit(0)
        pipes.append(reader)
    rates = [json.loads(os.read(reader, 4096)) for reader in pipes]
    for _ in rates:
        os.wait()
    print(json.dumps({"samples_per_s": sum(rates), "batch": "none"}))


def loop(chunk: Callable[[int], None], seconds: float) -> float:
    """Samples per second after half a second of warming up."""
    number, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < 0.5:
        chunk(number)
        number += 1
    done, started_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started_s) < seconds:
        chunk(number)
        number, done = number + 1, done + CHUNK
    return done / taken_s


def samples(spec: dict[str, Any]) -> list[bytes]:
    folder = Path(spec["split"])
    index = read_index(folder)
    files = LocalFiles(folder, read_manifest(folder).shard_names)
    chosen = np.random.default_rng(0).permutation(len(index))
    return [files.read(*index.place(sample)) for sample in chosen.tolist()]


def kernel_work(spec: dict[str, Any]) -> Callable[[int], None]:
    data, px = samples(spec), spec["px"]
    kernel = SampleKernel(read_manifest(Path(spec["split"])).codec, Augment(**spec.get("augment", {})), 0)
    slots = np.empty((CHUNK, px, px, 3), np.uint8)
    clock = Clock(rows_of(memoryview(bytearray(ROW_BYTES)), 1)[0])

    def chunk(number: int) -> None:
        for place in range(CHUNK):
            sample = number * CHUNK + place
            kernel(data[sample % len(data)], slots[place], sample, 0, clock)

    return chunk


def decode_work(spec: dict[str, Any]) -> Callable[[int], None]:
    data = samples(spec)

    def chunk(number: int) -> None:
        for place in range(CHUNK):
            simplejpeg.decode_jpeg(data[(number * CHUNK + place) % len(data)], "RGB")

    return chunk


def gather_work(spec: dict[str, Any]) -> Callable[[int], None]:
    folder = Path(spec["split"])
    index, manifest = read_index(folder), read_manifest(folder)
    maps = [np.memmap(folder / shard.name, np.uint8, "r") for shard in manifest.shards]
    px = spec["px"]
    bytes_each = px * px * 3
    slots = np.empty((CHUNK, bytes_each), np.uint8)
    order = np.random.default_rng(0).permutation(len(index))

    def chunk(number: int) -> None:
        for place in range(CHUNK):
            sample = order[(number * CHUNK + place) % len(order)]
            end = index.offsets_N[sample] + index.lengths_N[sample]
            slots[place] = maps[index.shards_N[sample]][end - bytes_each : end]

    return chunk


def take_work(spec: dict[str, Any]) -> Callable[[int], None]:
    bytes_each = spec["px"] ** 2 * 3
    pictures = np.stack([np.frombuffer(one[-bytes_each:], np.uint8) for one in samples(spec)])
    order = np.resize(np.random.default_rng(0).permutation(len(pictures)), 64 * CHUNK)
    batch = np.empty((CHUNK, bytes_each), np.uint8)

    def chunk(number: int) -> None:
        start = number % 64 * CHUNK
        np.take(pictures, order[start : start + CHUNK], axis=0, out=batch, mode="clip")

    return chunk


WORK = {"feedline": kernel_work, "decode": decode_work, "gather": gather_work, "take": take_work}

if __name__ == "__main__" and sys.argv[1] == "measure":
    main(json.loads(sys.argv[2]))
