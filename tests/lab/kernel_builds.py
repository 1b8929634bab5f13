"""The kernel's C built in other ways: with sanitizers, and for ARM; what it gives must not depend on that.

    python -m tests.lab.kernel_builds --work DIR [--cases 20000] [--seed 1]

Each `*_cases.c` here (filters; the decoder and its IDCT) is a program that prints, for each level of its processor or
of all, a hash of what random calls gave. They are built with gcc as set-up does, again with the address and
undefined-behaviour sanitizers and every piece of memory in a malloc of its own, and for ARM by aarch64-linux-gnu-gcc,
run by qemu-user (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static). The exit status is 1 where a
build failed, a sanitizer complained or two hashes differ; a compiler that is not there is passed over, in words.
"""

import argparse
import io
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile

LAB = Path(__file__).parent
KERNEL = LAB.parents[1] / "pipeline" / "kernel"
FLAGS = ("-std=c11", "-ffp-contract=off", "-fno-math-errno", f"-I{KERNEL}")
SANITIZERS = ("gcc", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DARENA_BYTES=0")
ARM = "aarch64-linux-gnu-gcc"
BUILDS: dict[str, tuple[str, ...]] = {
    "as set-up builds it": ("gcc", "-O3"),
    "sanitizers": SANITIZERS,
    "unoptimised": ("gcc", "-O0"),
    "ARM, under qemu": (ARM, "-O3", "-static"),
}
EMULATORS = {ARM: ("qemu-aarch64-static",)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    words = [str(args.cases), str(args.seed), str(pictures(args.work))]
    failed = 0
    for driver in sorted(LAB.glob("*_cases.c")):
        hashes: set[str] = set()
        for name, build in BUILDS.items():
            emulator = EMULATORS.get(build[0], ())
            if missing := [tool for tool in (build[0], *emulator) if shutil.which(tool) is None]:
                print(f"{driver.stem}, {name}: not tried, there is no {missing[0]}")
                continue
            program = args.work / f"{driver.stem}-{build[0]}"
            told = built(driver, build, program) or outcome(*emulator, str(program), *words)
            print(f"{driver.stem}, {name}: {told.replace(chr(10), ', ')}", flush=True)
            hashes |= {line.split()[-1] for line in told.splitlines()}
        failed += len(hashes) != 1
    return int(failed > 0)


def built(driver: Path, build: tuple[str, ...], program: Path) -> str:
    """Why there is no program; empty where there is."""
    if shutil.which(build[0]) is None:
        return f"not tried, there is no {build[0]}"
    sources = map(str, sorted(KERNEL.glob("*.c")))
    command = [*build, *FLAGS, "-o", str(program), str(driver), *sources, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"does not build: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


def outcome(*command: str) -> str:
    """What the program prints, or how it ended."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stderr.strip() or 'no message').splitlines()[0]}"
    return done.stdout.strip()


def pictures(work: Path, count: int = 60) -> Path:
    """Small JPEGs for decode_cases, each time the same: smooth, noisy and flat, of all qualities, with and without
    restart markers and tables of their own, now and then of a kind that the decoder refuses."""
    ImageFile.MAXBLOCK = 1 << 22  # tables of noise are made in one piece only
    random = np.random.default_rng(0)
    parts: list[bytes] = []
    for number in range(count):
        width, height = random.integers(1, 120, 2).tolist()
        hills = random.normal(0, 9, (height, width, 3)).cumsum(0).cumsum(1) / 4 + 128
        noise = random.integers(0, 256, (height, width, 3))
        pixels = (hills, noise, np.full_like(noise, 200))[number // 5 % 3]
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
            file, "JPEG", quality=int(random.integers(1, 101)), subsampling=(2, 2, 0)[number % 3],
            restart_marker_blocks=(0, 1, 2, 3, 7)[number % 5], optimize=number % 4 == 3,
            progressive=number % 30 == 29,
        )  # fmt: skip
        parts += [struct.pack("=3I", len(file.getvalue()), width, height), file.getvalue()]
    path = work / "pictures"
    path.write_bytes(b"".join(parts))
    return path


if __name__ == "__main__":
    raise SystemExit(main())
