"""Is the verdict right, every time? Scripts with one planted cause each, profiled again and again.

    python -m feedline.benchmarks.experiments.verdicts [--repeats 10 --seconds 3 --busy 0 2]

`tests/profiling/scripts/planted.py` runs unmodified under `profiling.profile_run`, once per kind and repeat, kinds in
random order. Right is a run whose bound, whose named place (the workers' top stage, the slow worker, unpickling)
and whose first remedy all fit the plant. `--busy 0 2` runs each alone and beside two processes that burn CPU. Writes
results/verdicts.json.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.benchmarks.exit import end_with
from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.explain.verdict import Diagnosis, diagnose
from feedline.profiling.profile_run import StudyConfig, study
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "verdicts.json"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One planted cause and what must be said of it."""

    bound: str
    place: str | None
    """Of `place_of`; None where no place is asked for."""
    remedies: tuple[str, ...]
    """What the first remedy may start with."""
    arguments: tuple[str, ...] = ()
    """More of the script's own."""


NONE_HELPS = "none helps"
ENDED_BY_US = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
KINDS = {
    "decode": Kind(bound="data", place="decode", remedies=("cheaper decode",)),
    "read": Kind(bound="data", place="read", remedies=("cache in RAM", "faster storage", "num_workers=")),
    "collate": Kind(bound="data", place="collate", remedies=("cheaper collate",)),
    "slow_worker": Kind(bound="data", place="worker 0", remedies=("mend worker 0",)),
    "serialise": Kind(bound="data", place="send", remedies=("cheaper send",)),
    "compute": Kind(bound="compute", place=None, remedies=("freed memory kept", "channels_last", NONE_HELPS)),
    "main_thread": Kind(bound="trainer", place=None, remedies=("less Python in the training loop",)),
}


def place_of(found: Diagnosis) -> str | None:
    """Where the diagnosis says the time goes: a slow worker before stages; unpickling is sending's other end."""
    slow = found.measured.workers.slow
    if slow is not None:
        return f"worker {slow[0].worker}"
    return "send" if found.measured.unpickling_limits else found.top_stage


def judged(kind: Kind, found: Diagnosis) -> dict[str, Any]:
    top = next((one.remedy for one in found.predictions if one.helps), NONE_HELPS)
    place = place_of(found)
    said = {
        "bound": found.bound,
        "place": place,
        "top_remedy": top,
        "wait_fraction": found.measured.trainer.wait_fraction,
    }
    right = found.bound == kind.bound and kind.place in (None, place) and top.startswith(kind.remedies)
    return {**said, "right": right}


@contextmanager
def busy(count: int) -> Generator[None]:
    """So many processes burn CPU meanwhile."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run(plant: str, pictures: Path, seconds: float, hogs: int, keep: Path | None) -> dict[str, Any]:
    argv = [str(SCRIPT), plant, str(pictures), "--samples", "1000000", *KINDS[plant].arguments]
    with busy(hogs):
        done = study(StudyConfig(argv=argv, seconds=seconds))
    if done.recording.script.exit_status in ENDED_BY_US:  # signals are the script's while it runs
        raise KeyboardInterrupt
    found = judged(KINDS[plant], diagnose(done.recording))
    if keep is not None and not found["right"]:
        keep.mkdir(parents=True, exist_ok=True)
        done.recording.save(keep / f"{plant}-{hogs}-{int(time.time())}.json")
    return {**found, "busy": hogs, "steps": len(done.recording.steps), "load_average": os.getloadavg()[0]}


def measure(pictures: Path, plants: Sequence[str], args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {plant: [] for plant in plants}
    if args.more and args.out.exists():
        found |= json.loads(args.out.read_text())["runs"]
    dice = random.Random(0)
    for repeat in range(args.repeats):
        for plant in dice.sample(plants, len(plants)):
            for hogs in args.busy:
                found[plant].append(one := run(plant, pictures, args.seconds, hogs, args.keep))
                words = "right" if one["right"] else f"WRONG: {one}"
                print(f"{repeat + 1}/{args.repeats} {plant:12} beside {hogs} busy: {words}", flush=True)
        write(found, args)
    return found


def write(found: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    whole = {
        "command": f"python -m feedline.benchmarks.experiments.verdicts --repeats 10 --seconds {args.seconds} --more",
        "host": describe_host(),
        "warm_up": "as the profiler's rule: see its recordings",
        "right_by_busy_processes": {plant: summary(runs) for plant, runs in found.items()},
        "runs": found,
    }
    write_atomically(args.out, (json.dumps(whole, indent=1) + "\n").encode())


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right runs by how many processes burnt CPU beside them."""
    return {
        str(hogs): {"right": sum(one["right"] for one in runs if one["busy"] == hogs),
                    "of": sum(one["busy"] == hogs for one in runs)}
        for hogs in sorted({one["busy"] for one in runs})
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="of training, warm-up included")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0, 2], help="processes that burn CPU beside it: a run for each"
    )
    parser.add_argument("--more", action="store_true", help="add to the runs of the result file")
    parser.add_argument("--only", choices=list(KINDS), nargs="*", default=list(KINDS))
    parser.add_argument("--keep", type=Path, help="a folder for the recordings of wrong runs")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_pictures(Path(name))
        found = measure(Path(name), args.only, args)
    for plant, runs in found.items():
        print(f"{plant:12} {summary(runs)}")


if __name__ == "__main__":
    end_with(main)
