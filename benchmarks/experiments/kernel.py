"""What one sample costs on one core: feedline's kernel against full decoding, stage by stage, and its choices.

    python -m feedline.benchmarks.experiments.kernel [--rounds 9] [--images 48]        ten seconds

Bytes lie in memory; nothing is read or handed on. Every cell fills 224x224 slots (unless its name says otherwise)
from the same pictures: 500x375 photographs, prepared as by feedline's own job; the same with the kernel's Python
fallback ("…, python") stands beside it. Time is the thread's CPU time, so other programs on the machine disturb less;
rounds visit all cells in an order drawn anew, and ratios are taken within a round. Writes
benchmarks/results/kernel.json.
"""

import io
import os
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.experiments.prepare_speed import photographs
from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.draw.resample import bilinear_into, job_of, resize_into
from feedline.pipeline.kernel import compiled
from feedline.pipeline.workers.counters import ROW_BYTES, Clock
from feedline.preprocess.picture import Output, Preparer

Pixels = npt.NDArray[np.uint8]
Cell = Callable[[], float]
"""Works through all samples once: CPU µs per sample."""

TRAIN, EVAL = Augment(), Augment(train=False)
PX = 224
FULL = "full decode"
BASES = {"faster_than_full_decode": FULL, "faster_than_full_decode_without_markers": "full decode, no markers",
         "unprepared_faster_than_full_decode": "unprepared: full decode"}  # fmt: skip


def main() -> None:
    given = options(__doc__, "kernel.json", rounds=9, images=48)
    cv2.setNumThreads(1)
    originals = photographs(given.images)
    prepared = by_codec(originals)
    ours = kernels(prepared, originals)
    cells = decoders(prepared, originals) | ours | tile_widths(prepared["jpeg"])
    if compiled.KERNEL is not None:
        cells |= {f"{name}, python": with_python(cell) for name, cell in ours.items()}
    in_rounds(cells, 1)  # warm-up
    by_round = in_rounds(cells, given.rounds)
    gains = {name: spread([one[f"{name}, python"] / one[name] for one in by_round], 3)
             for name in ours if f"{name}, python" in cells}  # fmt: skip
    ratios = {
        key: {name: spread([one[base] / one[name] for one in by_round], 3) for name in cells}
        for key, base in BASES.items()
    }
    figures: dict[str, Any] = {
        "kernel": "python" if compiled.KERNEL is None else compiled.KERNEL.level(),
        "what": f"CPU µs per sample on one core; {Output().size_px} px short side, q{Output().quality}; {PX} px out, "
        "RandomResizedCrop and flip",
        "n": given.images,
        "rounds": given.rounds,
        "warm_up_rounds": 1,
        "load_average": os.getloadavg()[0],
        "mean_bytes": {name: round(float(np.mean([len(one) for one in data]))) for name, data in prepared.items()},
        "microseconds": {name: spread(column(by_round, name), 2) for name in cells},
        **ratios,
        "faster_than_python": gains,
        "stages_us": stages(compiled_sample, prepared["jpeg"], given.rounds) if compiled.KERNEL else None,
        "stages_python_us": stages(python_sample, prepared["jpeg"], given.rounds),
        "qualities": qualities(originals[:24]),
    }
    write(given.out, figures)
    rows: list[list[object]] = []
    for name, one in figures["microseconds"].items():
        key = list(BASES)[2 if name.startswith("unprepared") else 0]
        rows.append([name, *one.values(), f"{ratios[key][name]['median']:.2f}"])
    show(("CPU µs per sample", "median", "low", "high", "× full decode"), rows)
    for one in (figures["stages_us"] or {}, figures["stages_python_us"], *figures["qualities"]):
        print(", ".join(f"{name} {value}" for name, value in one.items()))


# --- cells --------------------------------------------------------------------------------------------


def by_codec(originals: Sequence[bytes]) -> dict[str, list[bytes]]:
    prepare = Preparer((Output(), Output(codec="planes"), Output(codec="raw")))
    made = [prepare(data) for data in originals]
    forms = {name: [one[place].data for one in made] for place, name in enumerate(("jpeg", "planes", "raw"))}
    return forms | {"plain": [rewritten(Image.fromarray(np.load(io.BytesIO(one))), 0) for one in forms["raw"]]}


def rewritten(image: Image.Image, tile_mcus: int) -> bytes:
    """As a JPEG with another tile width (0: no restart markers)."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=Output.quality, subsampling=2, restart_marker_blocks=tile_mcus)
    return file.getvalue()


def each(data: Sequence[bytes], work: Callable[[bytes, int], object]) -> Cell:
    def cell() -> float:
        started_s = time.thread_time()
        for number, one in enumerate(data):
            work(one, number)
        return round(1e6 * (time.thread_time() - started_s) / len(data), 2)

    return cell


with_python = patch.object(compiled, "KERNEL", None)
"""Makes of a cell the same one without the compiled kernel."""


def decoders(prepared: dict[str, list[bytes]], originals: Sequence[bytes]) -> dict[str, Cell]:
    """What everybody does: decode everything, then crop and resize."""
    out_HWC = np.empty((PX, PX, 3), np.uint8)

    def whole(data: bytes, number: int) -> None:
        pixels_HWC = simplejpeg.decode_jpeg(data)
        region = regions.random_region(pixels_HWC.shape[1], pixels_HWC.shape[0], TRAIN, 0, 0, number)
        bilinear_into(pixels_HWC, region, out_HWC)

    def opencv(data: bytes, _: int) -> object:
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)

    data = prepared["jpeg"]
    return {
        FULL: each(data, lambda one, _: simplejpeg.decode_jpeg(one)),
        "full decode, no markers": each(prepared["plain"], lambda one, _: simplejpeg.decode_jpeg(one)),
        "full decode, fast chroma": each(data, lambda one, _: jpeg.decode(one, fast_chroma=True)),
        "full decode, cv2": each(data, opencv),
        "full decode, crop, bilinear": with_python(each(data, whole)),
        "unprepared: full decode": each(originals, lambda data, _: simplejpeg.decode_jpeg(data)),
    }


def kernels(prepared: dict[str, list[bytes]], originals: Sequence[bytes]) -> dict[str, Cell]:
    return {
        "jpeg": filling("jpeg", prepared["jpeg"]),
        "jpeg, evaluation": filling("jpeg", prepared["jpeg"], EVAL),
        "planes": filling("planes", prepared["planes"]),
        "raw": filling("raw", prepared["raw"]),
        "unprepared: feedline": filling("keep", originals),
        "jpeg to 64 px": filling("jpeg", prepared["jpeg"], px=64),
        "jpeg to 128 px": filling("jpeg", prepared["jpeg"], px=128),
    }


def filling(codec: Any, data: Sequence[bytes], config: Augment = TRAIN, px: int = PX) -> Cell:
    kernel = SampleKernel(codec, config, 0)
    out_HWC = np.empty((px, px, 3), np.uint8)
    clock = Clock(np.zeros(ROW_BYTES // 8, np.int64))
    return each(data, lambda one, number: kernel(one, out_HWC, number, 0, clock))


def tile_widths(data: Sequence[bytes]) -> dict[str, Cell]:
    """Cut and decode alone, from the same pictures at 384x256, where every width is a divisor of the row."""
    pictures = [Image.open(io.BytesIO(one)).resize((384, 256)) for one in data]

    def cut_and_decode(one: bytes, number: int) -> None:
        frame = crop_jpeg.parse(one)
        region = regions.random_region(frame.width_px, frame.height_px, TRAIN, 0, 0, number)
        jpeg.decode(crop_jpeg.cut(one, *region[:4], frame=frame).data, fast_chroma=True)

    return {
        f"cut and decode, {16 * mcus} px tiles": each([rewritten(one, mcus) for one in pictures], cut_and_decode)
        for mcus in (1, 2, 3, 4, 24)
    }


# --- inside the kernel --------------------------------------------------------------------------------

Stage = tuple[str, int]
"""A step's name, and the clock after it (ns)."""


Sample = Callable[[bytes, int, Pixels], list[Stage]]


def stages(sample: Sample, data: Sequence[bytes], count: int) -> dict[str, float]:
    """Where the jpeg kernel's time goes: medians over rounds, wall clock (a thread's CPU clock is too coarse)."""
    out_HWC = np.empty((PX, PX, 3), np.uint8)
    names = [name for name, _ in sample(data[0], 0, out_HWC)[1:]]
    taken = np.zeros((count, len(data), len(names)))
    for turn in range(count):
        for number, one in enumerate(data):
            taken[turn, number] = np.diff([tick for _, tick in sample(one, number, out_HWC)])
    return dict(zip(names, np.round(np.median(taken, axis=0).mean(axis=0) / 1e3, 1).tolist(), strict=True))


def now(step: str) -> Stage:
    return step, time.perf_counter_ns()


def python_sample(data: bytes, number: int, out_HWC: Pixels) -> list[Stage]:
    """The fallback's steps one by one (output not smaller than half the region)."""
    ticks = [now("")]
    frame = crop_jpeg.parse(data)
    ticks.append(now("parse"))
    region = regions.random_region(frame.width_px, frame.height_px, TRAIN, 0, 0, number)
    ticks.append(now("choose"))
    part = crop_jpeg.cut(data, *region[:4], frame=frame)
    ticks.append(now("cut"))
    pixels = jpeg.decode(part.data, "RGBX", fast_chroma=True)
    ticks.append(now("decode"))
    inside = regions.Region(part.left_px, part.top_px, *region[2:])
    kernel, compiled.KERNEL = compiled.KERNEL, None
    resize_into(pixels, inside, out_HWC)
    compiled.KERNEL = kernel
    return [*ticks, now("resize")]


def compiled_sample(data: bytes, number: int, out_HWC: Pixels) -> list[Stage]:
    """The compiled kernel's."""
    kernel = compiled.KERNEL
    assert kernel is not None
    ticks = [now("")]
    frame = crop_jpeg.parse(data)
    ticks.append(now("parse"))
    region = regions.random_region(frame.width_px, frame.height_px, TRAIN, 0, 0, number)
    ticks.append(now("choose"))
    job = job_of(data, region, PX, PX)
    ticks.append(now("job"))
    _, decoding_ns = kernel.fill([job], False, out_HWC[None])
    return [*ticks, ("decode", ticks[-1][1] + decoding_ns), now("resize")]


def qualities(originals: Sequence[bytes]) -> list[dict[str, Any]]:
    """What JPEG quality and subsampling cost: bytes, dB from the resized original, and the kernel's time."""
    prepare = Preparer((Output(codec="raw"),))
    pictures = [np.load(io.BytesIO(prepare(data)[0].data)) for data in originals]
    found: list[dict[str, Any]] = []
    choices: list[tuple[int, jpeg.Subsampling]] = [(80, "420"), (85, "420"), (90, "420"), (95, "420"), (90, "444")]
    for quality, subsampling in choices:
        data = [jpeg.encode(Image.fromarray(picture), quality, subsampling) for picture in pictures]
        cell = filling("jpeg", data)
        errors = [np.mean((one.astype(np.int32) - jpeg.decode(coded)) ** 2)
                  for one, coded in zip(pictures, data, strict=True)]  # fmt: skip
        found.append({"quality": quality, "subsampling": subsampling,
                      "bytes": round(float(np.mean([len(one) for one in data]))),
                      "psnr_db": round(float(np.mean(10 * np.log10(255**2 / np.array(errors)))), 2),
                      "kernel_us": round(min(cell() for _ in range(5)), 1)})  # fmt: skip
    return found


if __name__ == "__main__":
    end_with(main)
