"""Kills a running prepare at random moments and checks that a rerun gives the very bytes of an undisturbed one.

    python -m feedline.benchmarks.chaos_prepare SOURCE --kills 10

The driver, the executor's JVM and a Python worker are each killed (SIGKILL) that many times, at a moment drawn
between Spark's start and the end of the job; then the same command runs again. Every file but report.json must have
the same SHA-256, no file may be left over in the output or the temporary folder, and no process may be left.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from feedline.profiling.host import describe_host

RESULTS = Path(__file__).with_name("results") / "prepare-chaos.json"
VICTIMS = ("driver", "jvm", "worker")
GONE_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m feedline.benchmarks.chaos_prepare", description=__doc__)
    parser.add_argument("source", help="raw images, as for feedline prepare")
    parser.add_argument("--kills", type=int, default=10, help="of each victim")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--out", type=Path, default=RESULTS)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-chaos-") as folder:
        kills = chaos(said.source, Path(folder), said.kills, random.Random(said.seed), said.shards)
    bad = [kill for kill in kills if kill["problems"]]
    figures = {
        "command": " ".join(["python -m feedline.benchmarks.chaos_prepare", *sys.argv[1:]]),
        "host": describe_host(),
        "n": len(kills),
        "killed_in_flight": sum(kill["in_flight"] for kill in kills),
        "identical_after_rerun": len(kills) - len(bad),
        "kills": kills,
    }
    said.out.parent.mkdir(parents=True, exist_ok=True)
    said.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{len(kills) - len(bad)} of {len(kills)} kills: byte-identical after a rerun, nothing left over")
    sys.exit(1 if bad else 0)


def chaos(source: str, folder: Path, count: int, rng: random.Random, shards: int) -> list[dict[str, Any]]:
    command = Command(source, folder, shards)
    spark_up_s, whole_s = command.run(folder / "calm")
    calm = digests(folder / "calm")
    kills: list[dict[str, Any]] = []
    for number in range(count):
        for victim in VICTIMS:
            share = rng.random()
            kill = one_kill(command, folder / f"{victim}-{number}", victim, share, whole_s - spark_up_s, calm)
            print(f"{victim} {number} at {share:.0%}: {kill['problems'] or 'identical'}", file=sys.stderr, flush=True)
            kills.append(kill)
    return kills


class Command:
    """`feedline prepare` on one source, with a temporary folder of its own."""

    def __init__(self, source: str, folder: Path, shards: int) -> None:
        self.source, self.shards = source, shards
        self.scratch = folder / "tmp"
        self.scratch.mkdir()

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("feedline")), "prepare", self.source, str(out)]
        options = ["--shards", str(self.shards), "--max-bad", "1", "--master", "local[2]"]
        environment = os.environ | {"TMPDIR": str(self.scratch)}
        return subprocess.Popen(
            [*command, *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def run(self, out: Path) -> tuple[float, float]:
        """Seconds to the first receipt, and to the end. Raises RuntimeError when it fails."""
        started = time.monotonic()
        process = self.start(out)
        wait_for(lambda: process.poll() is not None or receipts(out) > 0, 600)
        first = time.monotonic() - started
        if process.wait() != 0:
            raise RuntimeError("an undisturbed prepare failed: run it by hand to see why")
        return first, time.monotonic() - started


def one_kill(
    command: Command, out: Path, victim: str, share: float, work_s: float, calm: dict[str, str]
) -> dict[str, Any]:
    process = command.start(out)
    wait_for(lambda: process.poll() is not None or receipts(out) > 0, 600)
    time.sleep(share * work_s)
    family = children(process.pid)
    in_flight = process.poll() is None
    target = choose(victim, process.pid, family)
    if target is not None:
        with suppress(psutil.Error):
            target.kill()
    process.wait()
    problems: list[str] = []
    if not wait_for(lambda: not alive(family), GONE_S):
        problems.append(f"{len(alive(family))} processes left")
    rerun = command.start(out)
    if rerun.wait() != 0:
        problems.append(f"the rerun ended with {rerun.returncode}")
    found = digests(out)
    if found != calm:
        wrong = sorted(name for name in found.keys() | calm.keys() if found.get(name) != calm.get(name))
        problems.append(f"{len(wrong)} files differ or are left over: {', '.join(wrong[:5])}")
    left = [path.name for path in command.scratch.iterdir()]
    if left:
        problems.append(f"left in the temporary folder: {', '.join(left[:5])}")
    return {"victim": victim, "moment": round(share, 3), "in_flight": in_flight, "problems": problems}


def choose(victim: str, driver: int, family: Sequence[psutil.Process]) -> psutil.Process | None:
    """The process to kill; None when it has ended already."""
    with suppress(psutil.Error):
        if victim == "driver":
            return psutil.Process(driver)
        if victim == "jvm":
            return next((one for one in family if one.name() == "java"), None)
        daemons = {one.pid for one in family if "pyspark.daemon" in one.cmdline()}
        return next((one for one in family if one.pid in daemons and one.ppid() in daemons), None)
    return None


def children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def alive(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Zombies count as gone: whoever adopts them reaps them in its own time."""
    found: list[psutil.Process] = []
    for one in family:
        with suppress(psutil.Error):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def receipts(out: Path) -> int:
    return len(list(out.glob(".feedline/receipts-*/*.receipt")))


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def digests(out: Path) -> dict[str, str]:
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    main()
