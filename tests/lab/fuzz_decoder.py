"""The kernel's decoder under a million damaged files, with sanitizers: no byte outside its memory, all levels alike.

    python -m tests.lab.fuzz_decoder --work DIR [--inputs 1000000] [--seed N]

`decode_cases.c` takes small JPEGs, changes, moves and cuts their bytes, and has a random region of each decoded at
every level of this processor; it is built with the address and undefined-behaviour sanitizers, and each piece of the
decoder's memory is a malloc of its own. The IDCT gets as many random blocks. Each input has a seed of its own, from N
(drawn, and told) on: a finding is printed with it and the command that repeats it, and makes the exit status 1.
That accepted files have libjpeg-turbo's pixels is for tests/pipeline/kernel/test_decode.py.
"""

import argparse
import os
import re
import secrets
import subprocess
import time
from pathlib import Path

from tests.lab.kernel_builds import LAB, SANITIZERS, built, pictures

STRETCH = 50_000
"""Inputs to a process."""
MOST_FINDINGS = 20
OPTIONS = dict.fromkeys(("ASAN_OPTIONS", "UBSAN_OPTIONS"), "abort_on_error=1")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="of the first input (drawn)")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    program, files = args.work / "decode_cases-fuzz", pictures(args.work)
    if trouble := built(LAB / "decode_cases.c", SANITIZERS, program):
        print(trouble)
        return 1
    seed = secrets.randbits(40) if args.seed is None else args.seed
    end, findings, began_s = seed + args.inputs, 0, time.monotonic()
    while seed < end and findings < MOST_FINDINGS:
        count = min(STRETCH, end - seed)
        told, found = stretch([str(program), str(count), str(seed), str(files)])
        print(f"{count:,} inputs from seed {seed}, {time.monotonic() - began_s:.0f} s: {told}", flush=True)
        if found is not None:
            findings += 1
            print(f"  once more: ASAN_OPTIONS=abort_on_error=1 {program} 1 {found} {files}", flush=True)
        seed = seed + count if found is None else found + 1
    print(f"{args.inputs - max(0, end - seed):,} inputs, {findings} findings")
    return int(findings > 0)


def stretch(command: list[str]) -> tuple[str, int | None]:
    """What the program said, and the seed of the input at which it ended, if it did."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=os.environ | OPTIONS)
    if not done.returncode:
        return done.stdout.strip(), None
    seeds = re.findall(r"^seed (\d+)$", done.stderr, re.MULTILINE)
    words = re.findall(r"SUMMARY: .+|runtime error: .+|it takes too long", done.stderr)
    seed = int(seeds[-1]) if seeds else int(command[2])
    return f"seed {seed}: {'; '.join(words) or 'two levels differ, or a byte is out of place'}", seed


if __name__ == "__main__":
    raise SystemExit(main())
