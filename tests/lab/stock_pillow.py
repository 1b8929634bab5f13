"""The kernel's antialiasing filter against stock Pillow itself, which this project's environment has not.

    python -m tests.lab.stock_pillow --work DIR [--cases 3000]

Installs the Pillow that requirements.txt names, and NumPy, into an environment under DIR, and there compares random
regions, boxes and sizes: each byte must be equal. Prints how many were, and exits with 1 at the first
that is not.
"""

import argparse
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return compare(args.cases)
    venv, uv = args.work / "venv", str(Path(sys.executable).with_name("uv"))
    pins = re.findall(r"^(?:pillow|numpy)==\S+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    subprocess.run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, venv], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", venv / "bin" / "python", *pins], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    command = [venv / "bin" / "python", __file__, "--inside", "--cases", str(args.cases)]
    return subprocess.run(command, env=environment).returncode


def compare(count: int) -> int:
    """In the environment with stock Pillow."""
    import numpy as np
    import PIL
    from PIL import Image

    from feedline.pipeline.kernel import compiled

    kernel = compiled.KERNEL
    if kernel is None or "post" in PIL.__version__:
        print(f"not possible: the kernel: {compiled.TROUBLE or 'there'}, Pillow {PIL.__version__}")
        return 1
    draw, noise = random.Random(0), np.random.default_rng(0)
    for number in range(count):
        most = draw.choice((8, 60, 400, 1200))
        width, height = draw.randint(1, most), draw.randint(1, most)
        columns, rows = draw.randint(1, 300), draw.randint(1, 300)
        channels = draw.choice((3, 4))
        pixels = noise.integers(0, 256, (height, width, channels), dtype=np.uint8)
        if number % 3 == 0:
            pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
        left, top = draw.uniform(0, width - 0.5), draw.uniform(0, height - 0.5)
        box = (left, top, draw.uniform(left + 0.25, width), draw.uniform(top + 0.25, height))
        box = box if number % 2 else (0, 0, width, height)
        image = Image.frombuffer("RGB" if channels == 3 else "RGBX", (width, height), pixels.tobytes())
        theirs = np.asarray(image.resize((columns, rows), Image.Resampling.BILINEAR, box))[..., :3]
        ours = np.empty((rows, columns, 3), np.uint8)
        for level in kernel.LEVELS:
            kernel.use(level)
            kernel.fill([(pixels, 0, 0, width, height, box, True, False)], True, ours[None])
            if not np.array_equal(ours, theirs):
                print(f"case {number}, {level}: {width}x{height} {box} to {columns}x{rows} differs")
                return 1
    print(f"Pillow {PIL.__version__}: {count} regions, {', '.join(kernel.LEVELS)}: every byte equal")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
