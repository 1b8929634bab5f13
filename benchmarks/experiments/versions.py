"""Is a new version slower than an old one? Two checkouts, each with its own environment, measured in turn.

    python -m feedline.benchmarks.experiments.versions --before CHECKOUT [--rounds 11 --images 10000]

Every measurement is a fresh process of that checkout's own Python, on shards that this checkout prepared from the
same pictures. In every round each cell is measured once with either, one right after the other in random order, since
shared machines drift within minutes. Two figures a cell: wall time, and the CPU time of all its processes, which
neighbours disturb less. Ratios above 1: this checkout is faster. Writes results/versions.json.
"""

import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, output_of, show, write
from feedline.benchmarks.measure.intervals import estimate

HERE = Path(__file__).resolve().parents[2]
OUTPUTS = ("256:jpeg", "256:raw:square", "256:planes")
LOAD = """
import sys, time
from pathlib import Path
import psutil
from feedline.pipeline.loader import Loader
def cpu_s():
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [me, *me.children(recursive=True)])
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
                began, cpu_began = time.perf_counter(), cpu_s()
            elif began is not None:
                samples += len(labels)
                if time.perf_counter() - began > seconds:
                    break
    print((time.perf_counter() - began) / samples, (cpu_s() - cpu_began) / samples)
"""
Seconds = tuple[float, float]
"""Wall and CPU."""
CACHING = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Interpreters keep what they have compiled, as users' do: else importing a module would be compiling it."""


class Version:
    """A checkout, its shards, and how to measure it."""

    def __init__(self, checkout: Path, work: Path, pictures: Path) -> None:
        self.bin, self.work, self.pictures = checkout / ".venv" / "bin", work, pictures
        work.mkdir()
        (work / "load.py").write_text(LOAD)
        self.prepare(work / "shards", *OUTPUTS)
        make_pictures(work)

    def run(self, *command: str | Path) -> tuple[Seconds, str]:
        """What it took, and what it printed."""
        began, cpu_began = time.perf_counter(), ended_cpu_s()
        said = output_of(command, " ".join(map(str, command)), cwd=self.work, env=CACHING)
        return (time.perf_counter() - began, ended_cpu_s() - cpu_began), said

    def prepare(self, out: Path, *outputs: str) -> Seconds:
        wanted = [word for output in outputs for word in ("--output", output)]
        shutil.rmtree(out, ignore_errors=True)
        return self.run(self.bin / "feedline", "prepare", self.pictures, out, *wanted)[0]

    def loading(self, codec: str, workers: int = 2, seconds: float = 4.0) -> Seconds:
        [train] = [path.parent for path in (self.work / "shards").rglob("manifest.json")
                   if codec in str(path) and path.parent.name == "train"]  # fmt: skip
        wall_s, cpu_s = self.run(self.bin / "python", "load.py", train, str(workers), str(seconds))[1].split()
        return float(wall_s), float(cpu_s)

    def profiled(self) -> Seconds:
        """Wall seconds of a watched script's loop; the CPU time is that of the whole verb."""
        took = self.work / "took"
        (_, cpu_s), _ = self.run(self.bin / "feedline", "profile", SCRIPT, "decode", self.work, "--samples", "3000",
                                 "--workers", "1", "--log", took)  # fmt: skip
        return float(took.read_text()), cpu_s


def ended_cpu_s() -> float:
    """Of all our children that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


CELLS: dict[str, Callable[[Version], Seconds]] = {
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
    "a script under profile": lambda version: version.profiled(),
    "prepare": lambda version: version.prepare(version.work / "again", "256:jpeg"),
}  # fmt: skip
"""Seconds (per sample, per command): less is better."""


def main() -> None:
    given = options(__doc__, "versions.json", "--before", rounds=11, images=10000, only=tuple(CELLS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synth = [HERE / ".venv" / "bin" / "feedline", "synth", folder / "pictures", "--layout", "folder"]
        subprocess.run([*map(str, synth), "--images", str(given.images)], check=True)
        versions = {
            "before": Version(given.before.resolve(), folder / "before", folder / "pictures"),
            "after": Version(HERE, folder / "after", folder / "pictures"),
        }

        def both(cell: str) -> dict[str, Seconds]:
            """One right after the other."""
            return {name: CELLS[cell](versions[name]) for name in random.sample([*versions], 2)}

        by_round = in_rounds({cell: partial(both, cell) for cell in given.only}, given.rounds)
    commits = {"before": commit(given.before), "after": commit(HERE)}
    figures: dict[str, Any] = {"commits": commits, "load_average": os.getloadavg()[0]}
    rows: list[tuple[Any, ...]] = []
    for place, kind in enumerate(("wall", "cpu")):
        seconds = {cell: {name: [took[name][place] for took in column(by_round, cell)] for name in versions}
                   for cell in given.only}  # fmt: skip
        ratios = {
            cell: estimate([b / a for b, a in zip(took["before"], took["after"], strict=True)])
            for cell, took in seconds.items()
        }
        figures[kind] = {"before_over_after": {cell: asdict(r) for cell, r in ratios.items()}, "seconds": seconds}
        rows += [(f"{cell}, {kind}", *(f"{end or 0:.3f}" for end in (r.value, r.low, r.high)), r.n)
                 for cell, r in ratios.items()]  # fmt: skip
    write(given.out, figures)
    show(("", "before/after", "low", "high", "n"), rows)


def commit(checkout: Path) -> str:
    return output_of(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], f"git in {checkout}").strip()


if __name__ == "__main__":
    end_with(main)
