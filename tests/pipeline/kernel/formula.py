"""The kernel's filters once more, slowly and in NumPy: OpenCV's bilinear in integers and Pillow's, which antialiases.

`pillow` is the formula of stock Pillow's 8-bit resampling, not Pillow-SIMD's, which has shorter coefficients;
`python -m tests.lab.stock_pillow` compares it, and the kernel, with the library itself.
"""

import numpy as np
import numpy.typing as npt

from feedline.pipeline.kernel.compiled import Box, Pixels

Numbers = npt.NDArray[np.int64]


def plain(image: Pixels, height: int, width: int) -> Pixels:
    """Bilinear between pixel centres, as OpenCV's INTER_LINEAR has it; two or three dimensions."""
    rows, columns = image.shape[:2]
    first, low, high = plain_weights(columns, width)
    beyond = (first < 0) | (first >= columns - 1)
    low, high, first = np.where(beyond, 2048, low), np.where(beyond, 0, high), first.clip(0, columns - 1)
    values = image.astype(np.int64)
    across = values[:, first] * along(low, 1, image) + values[:, (first + 1).clip(0, columns - 1)] * along(
        high, 1, image
    )
    across >>= 4
    first, low, high = plain_weights(rows, height)
    above = across[first.clip(0, rows - 1)] * along(low, 0, image) >> 16
    below = across[(first + 1).clip(0, rows - 1)] * along(high, 0, image) >> 16
    return ((above + below + 2) >> 2).astype(np.uint8)


def plain_weights(side: int, outputs: int) -> tuple[Numbers, Numbers, Numbers]:
    scale = 1 / (np.float64(outputs) / side)
    places = ((np.arange(outputs) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(places)
    share = places - first
    low, high = (np.rint(one * np.float32(2048)).astype(np.int64) for one in (np.float32(1) - share, share))
    return first.astype(np.int64), low, high


def along(weights: Numbers, axis: int, image: Pixels) -> Numbers:
    return weights.reshape([-1 if n == axis else 1 for n in range(image.ndim)])


def pillow(image: Pixels, box: Box, height: int, width: int) -> Pixels:
    return one_axis(one_axis(image, 1, box[0], box[2], width), 0, box[1], box[3], height)


def one_axis(image: Pixels, axis: int, start: float, end: float, outputs: int) -> Pixels:
    side, start32, end32 = image.shape[axis], np.float32(start), np.float32(end)
    scale = float(end32 - start32) / outputs
    support = max(scale, 1.0)
    values = np.moveaxis(image.astype(np.int64), axis, 0)
    made = np.empty((outputs, *values.shape[1:]), np.int64)
    for number in range(outputs):
        centre = float(start32) + (number + 0.5) * scale
        low, high = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), side)
        weights = [max(0.0, 1 - abs((at - centre + 0.5) * (1.0 / support))) for at in range(low, high)]
        whole = sum(weights)
        integers = np.array([int(weight / whole * (1 << 22) + 0.5) for weight in weights], np.int64)
        made[number] = (1 << 21) + np.tensordot(integers, values[low:high], 1)
    return np.moveaxis((made >> 22).clip(0, 255), 0, axis).astype(np.uint8)


def planes_of(stacked: Pixels) -> tuple[Pixels, Pixels, Pixels]:
    height, width = stacked.shape[0] * 2 // 3, stacked.shape[1]
    blue, red = stacked[height:].reshape(2, height // 2, width // 2)
    return stacked[:height], blue, red


def rgb(luma: Pixels, blue: Pixels, red: Pixels) -> Pixels:
    """OpenCV's I420 (BT.601, video range) in integers."""
    grey = np.maximum(luma.astype(np.int64) - 16, 0) * 1220542 + (1 << 19)
    u, v = (plane.astype(np.int64).repeat(2, 0).repeat(2, 1) - 128 for plane in (blue, red))
    colours = (grey + 1673527 * v, grey - 852492 * v - 409993 * u, grey + 2116026 * u)
    return (np.stack(colours, -1) >> 20).clip(0, 255).astype(np.uint8)
