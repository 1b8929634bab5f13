"""The kernel's C built in other ways: with sanitizers, and for ARM; what it gives must not depend on that.

    python -m tests.lab.kernel_builds --work DIR [--cases 20000] [--seed 1]

Each `*_cases.c` here is a program that prints, for each level of its processor, a hash of what random calls gave.
They are built with gcc as set-up does, again with the address and undefined-behaviour sanitizers and every piece of
memory in a malloc of its own, and for ARM by aarch64-linux-gnu-gcc, run by qemu-user (Debian: gcc-aarch64-linux-gnu
libc6-dev-arm64-cross qemu-user-static). The exit status is 1 where a build failed, a sanitizer complained or two
hashes differ; a compiler that is not there is passed over, in words.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

LAB = Path(__file__).parent
KERNEL = LAB.parents[1] / "pipeline" / "kernel"
FLAGS = ("-std=c11", "-ffp-contract=off", "-fno-math-errno", f"-I{KERNEL}")
BUILDS: dict[str, tuple[str, ...]] = {
    "as set-up builds it": ("gcc", "-O3"),
    "sanitizers": ("gcc", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
                   "-DARENA_BYTES=0"),
    "unoptimised": ("gcc", "-O0"),
    "ARM, under qemu": ("aarch64-linux-gnu-gcc", "-O3", "-static"),
}  # fmt: skip
EMULATORS = {"aarch64-linux-gnu-gcc": ("qemu-aarch64-static",)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    failed = 0
    for driver in sorted(LAB.glob("*_cases.c")):
        hashes: set[str] = set()
        for name, build in BUILDS.items():
            missing = [tool for tool in (build[0], *EMULATORS.get(build[0], ())) if shutil.which(tool) is None]
            if missing:
                print(f"{driver.stem}, {name}: not tried, there is no {missing[0]}")
                continue
            told = outcome(driver, build, args.work / f"{driver.stem}-{build[0]}", [str(args.cases), str(args.seed)])
            print(f"{driver.stem}, {name}: {told.replace(chr(10), ', ')}", flush=True)
            hashes |= {line.split()[-1] for line in told.splitlines()}
        failed += len(hashes) != 1
    return int(failed > 0)


def outcome(driver: Path, build: tuple[str, ...], program: Path, words: list[str]) -> str:
    """What the program prints, or why there is nothing."""
    sources = [str(path) for path in sorted(KERNEL.glob("*.c")) if path.name != "module.c"]
    command = [*build, *FLAGS, "-o", str(program), str(driver), *sources, "-lm"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        return f"does not build: {built.stderr.strip().splitlines()[-1]}"
    done = subprocess.run([*EMULATORS.get(build[0], ()), str(program), *words], capture_output=True, text=True)
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stderr.strip() or 'no message').splitlines()[0]}"
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
