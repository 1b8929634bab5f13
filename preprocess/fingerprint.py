"""What this process makes of images, as a hash: equal fingerprints write equal shards.

Pillow and Pillow-SIMD resample differently, and a build of either reads the formats it was built with. Encoding hides
small differences in most pictures but not in all, so many noisy ones are compared, before encoding and after.
"""

import base64
import hashlib
import io
import os
import platform
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from PIL import Image

from feedline.pipeline.codecs.pillow import LIBRARIES, OPTIONAL
from feedline.pipeline.codecs.raw import rgb_array
from feedline.preprocess.picture import BadImage, Output, Preparer, encoded, resized

IMPORTS = ("feedline", "PIL", "numpy", "simplejpeg", "cv2")
PACKAGES = ("feedline", "numpy", *LIBRARIES, "simplejpeg", "pyarrow", "pyspark")
Code = frozenset[tuple[int, int, int]]
PICTURES = 24
LARGEST_PX = 512
"""Larger outputs are compared at this size: resamplers that differ do so at every size, and it must not take long."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    encoder: str
    """SHA-256 of what the pictures become. Part of the plan's identity."""
    formats: dict[str, str]
    """By format that not every build of Pillow reads: the hash of what a small file of it becomes."""

    def __str__(self) -> str:
        return f"{self.encoder[:12]}, reading {', '.join(self.formats) or 'no optional format'}"


def inherit(outputs: tuple[Output, ...], of_parent: Fingerprint, parents_code: Code) -> None:
    """Where all the code that is loaded here is what our parent has loaded, its fingerprint is ours. Else it is
    measured when it is asked for."""
    if loaded_code() <= parents_code:
        _inherited[outputs] = of_parent


def loaded_code() -> Code:
    """Of each shared library in this process, and of our and the image libraries' Python files: device, inode and
    time of its last change (ns)."""
    ours = [module for name, module in [*sys.modules.items()] if name.partition(".")[0] in IMPORTS]
    files = {str(getattr(module, "__file__", None)) for module in ours}
    with suppress(OSError), open("/proc/self/maps") as maps:  # noqa: PTH123 no file that pathlib would know better
        files |= {line.split(maxsplit=5)[-1].strip() for line in maps if ".so" in line}
    stats = [os.stat(path) for path in files if os.path.isfile(path)]  # noqa: PTH113, PTH116 hundreds of them
    return frozenset((stat.st_dev, stat.st_ino, stat.st_mtime_ns) for stat in stats)


_inherited: dict[tuple[Output, ...], Fingerprint] = {}


@lru_cache(maxsize=4)
def fingerprint(outputs: tuple[Output, ...]) -> Fingerprint:
    """Of this process, for these outputs. 0.1 to 0.5 s, once."""
    if outputs in _inherited:
        return _inherited[outputs]
    preparer = Preparer(())
    formats: dict[str, str] = {}
    for name, data in optional_files():
        with suppress(BadImage):
            formats[name] = hashlib.sha256(rgb_array(preparer.decode(data)[0]).tobytes()).hexdigest()[:16]
    digest = hashlib.sha256()
    small = [replace(output, size_px=min(output.size_px, LARGEST_PX)) for output in outputs if output.form.sized]
    for data in battery(max((output.size_px for output in small), default=0)) if small else ():
        image, _ = preparer.decode(data)
        for output in small:
            ready = resized(image, output)
            digest.update(rgb_array(ready).tobytes() + encoded(ready, output)[0])
    return Fingerprint(encoder=digest.hexdigest(), formats=formats)


@cache
def versions() -> dict[str, str]:
    """Of whatever can change the prepared bytes, and of what ran the job."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


GRAINS_PX = (1, 2, 5, 13, 37)
MODES: tuple[tuple[str, int, str, dict[str, Any]], ...] = (  # mode, bytes a pixel, file format, how it is saved
    ("RGB", 3, "JPEG", {"quality": 95, "subsampling": 2}),
    ("RGB", 3, "PPM", {}),
    ("L", 1, "JPEG", {"quality": 95}),
    ("CMYK", 4, "JPEG", {"quality": 95}),
    ("RGB", 3, "JPEG", {"quality": 75, "subsampling": 0, "progressive": True}),
    ("P", 1, "PNG", {"compress_level": 0}),
    ("I;16", 2, "PNG", {"compress_level": 0}),
    ("RGBA", 4, "PNG", {"compress_level": 0}),
    ("RGB", 3, "JPEG", {"quality": 90, "subsampling": 1}),
    ("LA", 2, "PNG", {"compress_level": 0}),
    ("RGB", 3, "BMP", {}),
    ("CMYK", 4, "TIFF", {}),
)


def battery(size_px: int) -> Generator[bytes]:
    """Files of noisy pictures with odd sides: up to 170 px larger than `size_px`, the last two smaller.

    The noise is a hash's output, which stays the same in every version of every library.
    """
    noise = np.frombuffer(hashlib.shake_128(b"feedline").digest(1 << 18), np.uint8)
    for n in range(PICTURES):
        mode, depth_bytes, kind, options = MODES[n % len(MODES)]
        width, height = size_px + 7 * n + 3 | 1, size_px + 7 * (7 * n % PICTURES) + 5 | 1
        if n >= PICTURES - 2:
            width, height = width // 3 | 1, height // 4 | 1
        grain_px = GRAINS_PX[n % len(GRAINS_PX)]
        coarse_HWC = np.resize(noise[n:], (height // grain_px + 1, width // grain_px + 1, depth_bytes))
        pixels_HWC = coarse_HWC.repeat(grain_px, 0).repeat(grain_px, 1)[:height, :width]
        image = Image.frombytes(mode, (width, height), pixels_HWC.tobytes())
        if mode == "P":
            image.putpalette(noise[: 3 * 256].tolist())
        file = io.BytesIO()
        image.save(file, kind, **options)
        yield file.getvalue()


def optional_files() -> list[tuple[str, bytes]]:
    """What needs a part that Pillow may have been built without, and a small file of it."""
    return [(part.reads, base64.b85decode(part.example)) for part in OPTIONAL]
