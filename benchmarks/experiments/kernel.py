"""What one sample costs on one core: feedline's kernel against full decoding, stage by stage, and its choices.

    python -m feedline.benchmarks.experiments.kernel [--rounds 9] [--images 48]        ten seconds

Bytes lie in memory; nothing is read or handed on. Every cell fills 224x224 slots (unless its name says otherwise)
from the same pictures: 500x375 photographs, prepared by feedline's own job kernel. Time is the thread's CPU time, so
other programs on the machine disturb less; rounds visit all cells in an order drawn anew, and ratios are taken within
a round. Writes benchmarks/results/kernel.json.
"""

import argparse
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from feedline.benchmarks.commands import this_command
from feedline.benchmarks.experiments.prepare_speed import photographs
from feedline.benchmarks.measure.rounds import rounds
from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.codecs.table import make_kernel
from feedline.pipeline.draw import regions
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.draw.resample import bilinear_into, needs_pillow, shrink_into
from feedline.pipeline.workers.counters import ROW_BYTES, Clock
from feedline.preprocess.picture import Kernel as Prepare
from feedline.preprocess.picture import Output
from feedline.profiling.record.host import describe_host

Pixels = npt.NDArray[np.uint8]
Cell = Callable[[], object]
"""Works through all samples once."""

RESULT = Path(__file__).parents[1] / "results" / "kernel.json"
TRAIN, EVAL = Augment(), Augment(train=False)
PX = 224
STAGES = ("parse", "choose", "cut", "decode", "resize")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m feedline.benchmarks.experiments.kernel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--out", type=Path, default=RESULT)
    said = parser.parse_args()
    figures = measure(said.images, said.rounds)
    said.out.parent.mkdir(parents=True, exist_ok=True)
    said.out.write_text(json.dumps({"command": this_command(), "host": describe_host()} | figures, indent=1) + "\n")
    print(table(figures))


def measure(images: int, count: int) -> dict[str, Any]:
    cv2.setNumThreads(1)
    originals = photographs(images)
    prepared = by_codec(originals)
    cells = decoders(prepared) | kernels(prepared, originals) | tile_widths(prepared["jpeg"])
    for cell in cells.values():  # warm-up
        cell()
    by_round: list[dict[str, float]] = [{} for _ in range(count)]
    for number, name in rounds(list(cells), count):
        started_s = time.thread_time()
        cells[name]()
        by_round[number][name] = round(1e6 * (time.thread_time() - started_s) / images, 2)
    return {
        "what": f"CPU µs per sample on one core; 256 px short side, q90; {PX} px out, RandomResizedCrop and flip",
        "n": images,
        "rounds": count,
        "warm_up_rounds": 1,
        "load_average": os.getloadavg()[0],
        "mean_bytes": {name: round(float(np.mean([len(one) for one in data]))) for name, data in prepared.items()},
        "microseconds": {name: spread([one[name] for one in by_round]) for name in cells},
        "faster_than_full_decode": against(by_round, "full decode", cells),
        "faster_than_full_decode_without_markers": against(by_round, "full decode, no markers", cells),
        "unprepared_faster_than_full_decode": against(by_round, "unprepared: full decode", cells),
        "stages_us": stages(prepared["jpeg"], count),
        "qualities": qualities(originals[:24]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(values), 1), "low": min(values), "high": max(values)}


def against(by_round: Sequence[dict[str, float]], base: str, cells: dict[str, Cell]) -> dict[str, dict[str, float]]:
    """Ratios of speed within rounds."""
    ratios = {name: [one[base] / one[name] for one in by_round] for name in cells}
    return {
        name: {"median": round(median(found), 3), "low": round(min(found), 3), "high": round(max(found), 3)}
        for name, found in ratios.items()
    }


# --- cells --------------------------------------------------------------------------------------------


def by_codec(originals: Sequence[bytes]) -> dict[str, list[bytes]]:
    prepare = Prepare((Output(), Output(codec="planes"), Output(codec="raw")))
    made = [prepare(data) for data in originals]
    forms = {name: [one[place].data for one in made] for place, name in enumerate(("jpeg", "planes", "raw"))}
    return forms | {"plain": [rewritten(data, 0) for data in forms["raw"]]}


def rewritten(raw: bytes, tile_mcus: int, quality: int = 90) -> bytes:
    """The same pixels as a JPEG with another tile width (0: no restart markers)."""
    file = io.BytesIO()
    image = Image.fromarray(np.load(io.BytesIO(raw)))
    image.save(file, "JPEG", quality=quality, subsampling=2, restart_marker_blocks=tile_mcus)
    return file.getvalue()


def each(data: Sequence[bytes], work: Callable[[bytes, int], object]) -> Cell:
    def cell() -> None:
        for number, one in enumerate(data):
            work(one, number)

    return cell


def decoders(prepared: dict[str, list[bytes]]) -> dict[str, Cell]:
    """What everybody does: decode everything, then crop and resize."""
    out_HWC = np.empty((PX, PX, 3), np.uint8)

    def whole(data: bytes, number: int) -> None:
        pixels_HWC = simplejpeg.decode_jpeg(data)
        region = regions.random_region(pixels_HWC.shape[1], pixels_HWC.shape[0], TRAIN, 0, 0, number)
        bilinear_into(pixels_HWC, region, out_HWC)

    return {
        "full decode": each(prepared["jpeg"], lambda data, _: simplejpeg.decode_jpeg(data)),
        "full decode, no markers": each(prepared["plain"], lambda data, _: simplejpeg.decode_jpeg(data)),
        "full decode, fast chroma": each(prepared["jpeg"], lambda data, _: jpeg.decode(data, fast_chroma=True)),
        "full decode, cv2": each(prepared["jpeg"], lambda data, _: opencv(data)),
        "full decode, crop, bilinear": each(prepared["jpeg"], whole),
    }


def opencv(data: bytes) -> object:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def kernels(prepared: dict[str, list[bytes]], originals: Sequence[bytes]) -> dict[str, Cell]:
    cells = {
        "jpeg": filling("jpeg", TRAIN, prepared["jpeg"], PX),
        "jpeg, evaluation": filling("jpeg", EVAL, prepared["jpeg"], PX),
        "planes": filling("planes", TRAIN, prepared["planes"], PX),
        "raw": filling("raw", TRAIN, prepared["raw"], PX),
        "unprepared: full decode": each(originals, lambda data, _: simplejpeg.decode_jpeg(data)),
        "unprepared: feedline": filling("keep", TRAIN, originals, PX),
    }
    small = {f"jpeg to {px} px": filling("jpeg", TRAIN, prepared["jpeg"], px) for px in (64, 128)}
    return cells | small


def filling(codec: Any, config: Augment, data: Sequence[bytes], px: int) -> Cell:
    kernel = make_kernel(codec, config, 0)
    out_HWC = np.empty((px, px, 3), np.uint8)
    clock = Clock(np.zeros(ROW_BYTES // 8, np.int64))
    return each(data, lambda one, number: kernel(one, out_HWC, number, 0, clock))


def tile_widths(data: Sequence[bytes]) -> dict[str, Cell]:
    """Cut and decode alone, from the same pictures at 384x256, where every width is a divisor of the row."""
    pictures: list[bytes] = []
    for one in data:
        image = Image.open(io.BytesIO(one)).resize((384, 256))
        file = io.BytesIO()
        np.save(file, np.asarray(image))
        pictures.append(file.getvalue())

    def cut_and_decode(one: bytes, number: int) -> None:
        frame = crop_jpeg.parse(one)
        region = regions.random_region(frame.width_px, frame.height_px, TRAIN, 0, 0, number)
        jpeg.decode(crop_jpeg.cut(one, *region[:4], frame=frame).data, fast_chroma=True)

    return {
        f"cut and decode, {16 * mcus} px tiles": each([rewritten(one, mcus) for one in pictures], cut_and_decode)
        for mcus in (1, 2, 3, 4, 24)
    }


# --- inside the kernel --------------------------------------------------------------------------------


def stages(data: Sequence[bytes], count: int) -> dict[str, float]:
    """Where the jpeg kernel's time goes: medians over rounds, wall clock (a thread's CPU clock is too coarse)."""
    out_HWC = np.empty((PX, PX, 3), np.uint8)
    taken = np.zeros((count, len(data), len(STAGES)))
    for turn in range(count):
        for number, one in enumerate(data):
            taken[turn, number] = np.diff(one_sample(one, number, out_HWC))
    return dict(zip(STAGES, np.round(np.median(taken, axis=0).mean(axis=0) / 1e3, 1).tolist(), strict=True))


def one_sample(data: bytes, number: int, out_HWC: Pixels) -> list[int]:
    """The kernel's steps one by one (output not smaller than half the region); the clock after each."""
    ticks = [time.perf_counter_ns()]
    frame = crop_jpeg.parse(data)
    ticks.append(time.perf_counter_ns())
    region = regions.random_region(frame.width_px, frame.height_px, TRAIN, 0, 0, number)
    by_pillow = needs_pillow(region, out_HWC)
    ticks.append(time.perf_counter_ns())
    part = crop_jpeg.cut(data, *region[:4], frame=frame)
    ticks.append(time.perf_counter_ns())
    pixels = jpeg.decode(part.data, "RGBX", fast_chroma=True)
    ticks.append(time.perf_counter_ns())
    inside = regions.Region(part.left_px, part.top_px, *region[2:])
    if by_pillow:
        shrink_into(pixels, inside, 1, out_HWC)
    else:
        bilinear_into(pixels, inside, out_HWC)
    return [*ticks, time.perf_counter_ns()]


def qualities(originals: Sequence[bytes]) -> list[dict[str, float]]:
    """What JPEG quality and subsampling cost: bytes, dB from the resized original, and the kernel's time."""
    raw = [one[0].data for one in map(Prepare((Output(codec="raw"),)), originals)]
    found: list[dict[str, Any]] = []
    choices: list[tuple[int, jpeg.Subsampling]] = [(80, "420"), (85, "420"), (90, "420"), (95, "420"), (90, "444")]
    for quality, subsampling in choices:
        pictures = [np.load(io.BytesIO(one)) for one in raw]
        data = [jpeg.encode(picture, quality, subsampling) for picture in pictures]
        cell = filling("jpeg", TRAIN, data, PX)
        times: list[float] = []
        for _ in range(5):
            started_s = time.thread_time()
            cell()
            times.append(1e6 * (time.thread_time() - started_s) / len(data))
        psnr = float(np.mean([decibels(one, jpeg.decode(coded)) for one, coded in zip(pictures, data, strict=True)]))
        size = round(float(np.mean([len(one) for one in data])))
        found.append({"quality": quality, "subsampling": subsampling, "bytes": size, "psnr_db": round(psnr, 2),
                      "kernel_us": round(min(times), 1)})  # fmt: skip
    return found


def decibels(one: Pixels, other: Pixels) -> float:
    return 10 * float(np.log10(255**2 / np.mean((one.astype(np.int32) - other) ** 2)))


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'CPU µs per sample':36} {'median':>8} {'low':>8} {'high':>8}   × full decode"]
    for name, one in figures["microseconds"].items():
        unprepared = name.startswith("unprepared")
        ratios = figures["unprepared_faster_than_full_decode" if unprepared else "faster_than_full_decode"]
        lines.append(
            f"{name:36} {one['median']:8.1f} {one['low']:8.1f} {one['high']:8.1f}   {ratios[name]['median']:.2f}"
        )
    lines.append("stages of jpeg: " + ", ".join(f"{name} {us}" for name, us in figures["stages_us"].items()))
    lines += [", ".join(f"{name} {value}" for name, value in one.items()) for one in figures["qualities"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
