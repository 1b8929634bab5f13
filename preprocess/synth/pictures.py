"""One synthetic picture: a real photograph, cropped, warped, re-coloured, with grain, and a textured shape on it.

The photographs are in `photos/` (public domain or CC0). Which one is used says nothing of the class. The class is a
texture (stripes, checks, rings …) in a shape, at a pitch that survives scaling to 64 px, multiplied in with mean
zero, random sign and phase, so that neither a channel's mean nor a pixel template gives it away. All of a picture
follows from (seed, split, class, number); about 5 ms on one core at 500×375. Some are the odd files that ImageNet
really has, or that every copy of it gets sooner or later.
"""

import io
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image as PillowImage

PHOTOS = Path(__file__).with_name("photos")
SIZES = {
    (500, 375): 0.58,
    (375, 500): 0.16,
    (500, 333): 0.10,
    (333, 500): 0.05,
    (500, 400): 0.04,
    (500, 500): 0.04,
    (640, 480): 0.03,
}
"""(width, height) and how often, as in ImageNet."""
PITCHES = (0.15, 0.10, 0.22, 0.075)
"""Of a texture, relative to the short side: 0.1 is 6 px at 64 px."""
COARSE = 4
"""Patterns are drawn at a quarter of the size: their pitch is 28 px and more."""
GRAIN_SIDE_PX = 1024
TYPICAL_LONG_SIDE_PX = 500
ORIENTATION_TAG = 0x0112
ODDITIES = ("cmyk", "png", "grey", "orientation", "bad exif", "truncated", "empty")

Image = npt.NDArray[np.uint8]
Field = npt.NDArray[np.float32]

TEXTURES: list[Any] = [
    lambda u, v, k, p: np.sin(k * v + p[0]),  # rows
    lambda u, v, k, p: np.sin(k * u + p[0]),  # columns
    lambda u, v, k, p: np.sin(k * u + p[0]) * np.sin(k * v + p[1]),  # checks
    lambda u, v, k, p: np.sin(k * np.hypot(u, v) + p[0]),  # rings
    lambda u, v, k, p: np.sin(np.rint(k * np.ptp(v) / 4) * np.arctan2(v, u) + p[0]),  # spokes
    lambda u, v, k, p: np.maximum(np.cos(0.7 * k * u + p[0]) + np.cos(0.7 * k * v + p[1]), 0.2),  # dots
    lambda u, v, k, p: np.sin(k * (u + v) * 0.7071 + p[0]) + np.sin(k * (u - v) * 0.7071 + p[1]),  # lattice
    lambda u, v, k, p: np.sin(k * v + 2.2 * np.sin(0.5 * k * u + p[1]) + p[0]),  # waves
]
"""Each of (u, v, wave number, two phases). Mirroring a picture left to right leaves each what it is."""
SHAPES: list[Any] = [
    lambda u, v, s: np.ones_like(u),  # all
    lambda u, v, s: (np.hypot(u, v) < 0.42 * s).astype(np.float32),  # disc
    lambda u, v, s: (np.maximum(abs(u), abs(v)) < 0.38 * s).astype(np.float32),  # square
    lambda u, v, s: (np.maximum(abs(u), abs(v)) > 0.28 * s).astype(np.float32),  # frame
    lambda u, v, s: (abs(u) + abs(v) < 0.52 * s).astype(np.float32),  # diamond
    lambda u, v, s: (v > 0).astype(np.float32),  # halves
    lambda u, v, s: (np.minimum(abs(u), abs(v)) < 0.17 * s).astype(np.float32),  # cross
    lambda u, v, s: (abs(v) > 0.17 * s).astype(np.float32),  # bars
]
"""Where the texture is strong, of (u, v in short sides from the shape's centre, scale)."""
CLASSES_MAX = len(TEXTURES) * len(SHAPES) * len(PITCHES) * 4


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Which picture: everything about it follows from these."""

    seed: int
    split: str
    label: int
    number: int
    """Within its class and split."""
    oddity: str = ""
    """"" or one of ODDITIES."""


def picture_bytes(picture: Picture, long_side_px: int = TYPICAL_LONG_SIDE_PX) -> bytes:
    """The file's bytes, odd or not."""
    image, quality = draw(picture, long_side_px)
    pillow = PillowImage.fromarray(image)
    match picture.oddity:
        case "cmyk":  # four channels, inverted as Adobe has it (Pillow writes them so)
            return saved(pillow.convert("CMYK"), "JPEG", quality=quality)
        case "png":  # with an alpha channel, under a JPEG's name
            alpha = np.full((*image.shape[:2], 1), 255, np.uint8)
            return saved(PillowImage.fromarray(np.concatenate([image, alpha], axis=2)), "PNG")
        case "grey":
            grey = np.ascontiguousarray(np.asarray(pillow.convert("L"))[..., None])
            return simplejpeg.encode_jpeg(grey, quality=quality, colorspace="GRAY")
        case "orientation":  # says that it lies on its side
            exif = PillowImage.Exif()
            exif[ORIENTATION_TAG] = 6
            return saved(pillow, "JPEG", quality=quality, exif=exif.tobytes())
        case "empty":
            return b""
        case _:
            jpeg = simplejpeg.encode_jpeg(
                image, quality=quality, colorspace="RGB", colorsubsampling="420", fastdct=False
            )
    if picture.oddity == "bad exif":  # a segment whose directory points nowhere
        payload = b"Exif\0\0MM\0*\xff\xff\xff\xf0" + bytes(range(7, 39))
        return jpeg[:2] + b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload + jpeg[2:]
    return jpeg[: len(jpeg) * 3 // 5] if picture.oddity == "truncated" else jpeg


def saved(image: PillowImage.Image, kind: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def draw(picture: Picture, long_side_px: int) -> tuple[Image, int]:
    """(HWC RGB, JPEG quality). The class is not asked for until the photograph is drawn."""
    rng = np.random.default_rng([picture.seed, picture.split == "val", picture.label, picture.number])
    shares = np.array(list(SIZES.values()))
    width, height = list(SIZES)[int(rng.choice(len(SIZES), p=shares / shares.sum()))]
    scale = long_side_px / TYPICAL_LONG_SIDE_PX
    jitter = int(rng.integers(-2, 3)) if scale == 1 and rng.random() < 0.1 else 0
    width, height = max(8, round(width * scale) + jitter), max(8, round(height * scale))
    image = photograph(rng, width, height)
    gain = class_gain(rng, picture.label, width, height)
    lit = np.asarray(cv2.multiply(image, cv2.merge([gain, gain, gain]), dtype=cv2.CV_32F))
    # Clean pictures compress too well: real ones have grain, more or less of it.
    strength = float(rng.uniform(5.0, 11.0))
    canvas = grain_canvas(-(-max(width, height) // GRAIN_SIDE_PX))
    x = int(rng.integers(canvas.shape[1] - width + 1))
    y = int(rng.integers(canvas.shape[0] - height + 1))
    grained = cv2.scaleAdd(canvas[y : y + height, x : x + width], strength, lit)
    return np.clip(np.rint(grained), 0, 255).astype(np.uint8), int(rng.choice((90, 94, 95, 95, 95, 96)))


# --- the photograph -----------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def photographs() -> list[Image]:
    """HWC RGB."""
    return [np.asarray(simplejpeg.decode_jpeg(path.read_bytes()), np.uint8) for path in sorted(PHOTOS.glob("*.jpg"))]


def photograph(rng: np.random.Generator, width: int, height: int) -> Field:
    """A cropped, turned, mirrored, re-coloured piece of some photograph, as float32 HWC."""
    photo = photographs()[int(rng.integers(len(photographs())))]
    rows, columns = photo.shape[:2]
    fit = min(columns / width, rows / height)
    scale = fit * float(rng.uniform(0.45, 0.95))  # photo pixels per picture pixel
    turn = float(rng.normal(0, 0.12))
    mirror = -1.0 if rng.random() < 0.5 else 1.0
    shear = float(rng.normal(0, 0.06))
    linear = scale * np.array([[mirror * math.cos(turn), shear - math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    slack_x, slack_y = columns - scale * width, rows - scale * height
    centre = np.array([columns / 2 + slack_x * rng.uniform(-0.5, 0.5), rows / 2 + slack_y * rng.uniform(-0.5, 0.5)])
    shift = centre - linear @ np.array([width / 2, height / 2])
    warped = cv2.warpAffine(
        photo,
        np.column_stack([linear, shift]),
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    # Saturation, white balance, contrast and brightness in one 3×4 matrix; brightness towards a common middle.
    saturation = float(rng.uniform(0.4, 1.4))
    matrix = saturation * np.eye(3) + (1 - saturation) * np.full((3, 3), 1 / 3)
    matrix = np.diag(rng.uniform(0.85, 1.15, 3)) @ matrix * float(rng.uniform(0.75, 1.1))
    mean = np.array(cv2.mean(warped)[:3])
    target = rng.uniform(85, 150) + rng.normal(0, 8, 3)
    whole = np.column_stack([matrix, target - matrix @ mean])
    return np.asarray(cv2.transform(np.asarray(warped, np.float32), whole), np.float32)


@lru_cache(maxsize=4)
def grain_canvas(repeats: int) -> Field:
    """Noise with a little smoothness, as a sensor's after demosaicing; the same for every run."""
    noise = np.random.default_rng(20120731).standard_normal((GRAIN_SIDE_PX, GRAIN_SIDE_PX, 3), np.float32)
    soft = np.asarray(cv2.GaussianBlur(noise, (3, 3), 0.5))
    canvas = (0.75 * soft + 0.25 * soft.mean(axis=2, keepdims=True)).astype(np.float32) / float(soft.std())
    return np.tile(canvas, (repeats, repeats, 1))


# --- the class ----------------------------------------------------------------------------------------


def class_gain(rng: np.random.Generator, label: int, width: int, height: int) -> Field:
    """What the picture's brightness is multiplied with, HW, about 1 on average.

    The first classes differ in texture, which a small network tells most easily.
    """
    rest, texture = divmod(label, len(TEXTURES))
    rest, shape = divmod(rest, len(SHAPES))
    rest, pitch = divmod(rest, len(PITCHES))
    columns, rows = max(2, -(-width // COARSE)), max(2, -(-height // COARSE))
    short = min(columns, rows)
    # x and y of each coarse pixel, in short sides from the centre
    x, y = np.meshgrid(
        (np.arange(columns, dtype=np.float32) - (columns - 1) / 2) / short,
        (np.arange(rows, dtype=np.float32) - (rows - 1) / 2) / short,
    )
    turn = float(rng.normal(0, 0.06)) + (rest % 4) * math.pi / 8
    u = (x * math.cos(turn) + y * math.sin(turn)) * short + short * float(rng.uniform(-0.15, 0.15))
    v = (y * math.cos(turn) - x * math.sin(turn)) * short + short * float(rng.uniform(-0.15, 0.15))
    phase = rng.uniform(0, 2 * math.pi, 2)
    wave = TEXTURES[texture](u, v, 2 * math.pi / (PITCHES[pitch] * short * float(rng.uniform(0.9, 1.1))), phase)
    wave -= wave.mean()
    wave /= max(float(wave.std()), 1e-6)
    mask = SHAPES[(shape + texture) % len(SHAPES)](u / short, v / short, float(rng.uniform(0.9, 1.1)))
    sign = -1.0 if rng.random() < 0.5 else 1.0
    pattern = np.clip(wave, -1.6, 1.6) * (0.12 + 0.88 * mask)
    pattern -= pattern.mean()
    coarse = (1 + sign * float(rng.uniform(0.26, 0.40)) * pattern).astype(np.float32)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR))
