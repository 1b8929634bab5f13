"""Is a new version slower than an old one? Two checkouts, each with its own environment, measured in turn.

    python -m feedline.benchmarks.experiments.versions --before CHECKOUT [--rounds 11 --images 10000]

Every measurement is a fresh process of that checkout's own Python, on shards that this checkout prepared from the
same pictures; the order within a round is random. Ratios above 1 mean that this checkout is faster. Writes
results/versions.json.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.intervals import estimate
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "versions.json"
HERE = Path(__file__).resolve().parents[2]
OUTPUTS = ("256:jpeg", "256:raw:square", "256:planes")
CONFIDENCE = 0.90
LOAD = """
import sys, time
from pathlib import Path
from feedline.pipeline.loader import Loader
if __name__ == "__main__":
    folder, workers, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    loader = Loader(folder, batch_size=64, image_size=224, train=True, num_workers=workers, seed=0)
    began, samples, epoch, batches = None, 0, 0, 0
    while began is None or time.perf_counter() - began < seconds:
        loader.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            batches += 1
            if began is None and batches == 15:
                began = time.perf_counter()
            elif began is not None:
                samples += len(labels)
                if time.perf_counter() - began > seconds:
                    break
    print(samples / (time.perf_counter() - began))
"""


class Version:
    """A checkout, its shards, and how to measure it."""

    def __init__(self, checkout: Path, work: Path, pictures: Path) -> None:
        self.bin, self.work, self.pictures = checkout / ".venv" / "bin", work, pictures
        work.mkdir()
        (work / "load.py").write_text(LOAD)
        self.prepare(work / "shards", *OUTPUTS)

    def run(self, *command: str | Path) -> tuple[float, str]:
        """Seconds it took, and what it printed."""
        began = time.perf_counter()
        done = subprocess.run(
            [str(word) for word in command], check=False, capture_output=True, text=True, cwd=self.work
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-500:]}")
        return time.perf_counter() - began, done.stdout

    def prepare(self, out: Path, *outputs: str) -> float:
        wanted = [word for output in outputs for word in ("--output", output)]
        return self.run(self.bin / "feedline", "prepare", self.pictures, out, *wanted, "--overwrite")[0]

    def loading(self, codec: str, workers: int = 2, seconds: float = 4.0) -> float:
        [train] = [path.parent for path in (self.work / "shards").rglob("manifest.json")
                   if codec in str(path) and path.parent.name == "train"]  # fmt: skip
        return 1 / float(self.run(self.bin / "python", "load.py", train, str(workers), str(seconds))[1])


CELLS: dict[str, Callable[[Version], float]] = {
    "loader, jpeg": lambda version: version.loading("jpeg"),
    "loader, jpeg, no workers": lambda version: version.loading("jpeg", workers=0),
    "loader, raw": lambda version: version.loading("raw"),
    "loader, planes": lambda version: version.loading("planes"),
    "feedline --help": lambda version: version.run(version.bin / "feedline", "--help")[0],
    "import of the loader": lambda version: version.run(
        version.bin / "python", "-c", "import feedline.pipeline.loader"
    )[0],
    "import of the probe": lambda version: version.run(version.bin / "python", "-c", "import feedline.profiling.probe")[0],  # noqa: E501
    "verify": lambda version: version.run(version.bin / "feedline", "verify", version.work / "shards")[0],
    "prepare": lambda version: version.prepare(version.work / "again", "256:jpeg"),
}  # fmt: skip
"""Seconds (per sample, per command): less is better."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--only", nargs="*", default=list(CELLS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synth = [str(HERE / ".venv" / "bin" / "feedline"), "synth", str(folder / "pictures")]
        subprocess.run([*synth, "--layout", "folder", "--images", str(args.images)], check=True)
        versions = {
            "before": Version(args.before.resolve(), folder / "before", folder / "pictures"),
            "after": Version(HERE, folder / "after", folder / "pictures"),
        }
        seconds: dict[str, dict[str, list[float]]] = {cell: {"before": [], "after": []} for cell in args.only}
        dice = random.Random(0)
        for number in range(args.rounds):
            for cell in args.only:
                for version in dice.sample(sorted(versions), 2):
                    seconds[cell][version].append(CELLS[cell](versions[version]))
                before, after = (seconds[cell][version][-1] for version in ("before", "after"))
                print(f"{number + 1}/{args.rounds} {cell:26} {before / after:.3f}", flush=True)
    commits = {name: commit(path) for name, path in (("before", args.before), ("after", HERE))}
    result: dict[str, Any] = {
        "command": f"python -m feedline.benchmarks.experiments.versions --before CHECKOUT --rounds {args.rounds} --images {args.images}",  # noqa: E501
        "host": describe_host(), "load_average": os.getloadavg()[0], "commits": commits, "confidence": CONFIDENCE,
        "before_over_after": {
            cell: asdict(estimate([b / a for b, a in zip(rows["before"], rows["after"], strict=True)], CONFIDENCE))
            for cell, rows in seconds.items()
        },
        "seconds": seconds,
    }  # fmt: skip
    write_atomically(RESULT, (json.dumps(result, indent=1) + "\n").encode())
    for cell, ratio in result["before_over_after"].items():
        print(f"{cell:26} {ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}, n = {ratio['n']})")


def commit(checkout: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
