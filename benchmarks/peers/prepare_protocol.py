"""What the preparing peers share: the files, the same resize with Pillow, and how they report.

A peer's `prepare(source, out, processes)` is a generator: it may yield "start" (from here to "ready" is its start, to
be taken off again), yields "ready" when its work begins, and at last the bytes it wrote. Standard library and Pillow.
"""

# pyright: basic
import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path


def image_files(source):
    """(path, label) of class folders, in a fixed random order."""
    classes = sorted(path for path in Path(source).iterdir() if path.is_dir())
    files = [(str(path), label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]
    import random

    random.Random(0).shuffle(files)
    return files


def resized(path):
    """Short side 256, bicubic."""
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    short = min(width, height)
    return image.resize((256 * width // short, 256 * height // short), Image.Resampling.BICUBIC)


def resized_jpeg(item):
    """The same as JPEG of quality 90."""
    path, label = item
    file = io.BytesIO()
    resized(path).save(file, "JPEG", quality=90)
    return file.getvalue(), label


def warm(_):
    import PIL.JpegImagePlugin  # noqa: F401


def serve(prepare):
    """Runs once; the last line on standard output is the figures as JSON."""
    source, out, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    said = os.dup(1)
    os.dup2(2, 1)  # peers print; only the figures go to standard output
    marks, size = {}, 0
    with contextlib.closing(prepare(source, out, processes)) as steps:
        for step in steps:
            if isinstance(step, str):
                marks[step] = time.perf_counter()
            else:
                marks["end"], size = time.perf_counter(), step
    start_s = marks["ready"] - marks["start"] if "start" in marks else 0.0
    figures = {"seconds": max(marks["end"] - marks["ready"] - start_s, 1e-9), "bytes": size,
               "samples": len(image_files(source))}  # fmt: skip
    os.write(said, (json.dumps(figures) + "\n").encode())
