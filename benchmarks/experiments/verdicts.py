"""Is the verdict right, every time? Scripts with one planted cause each, profiled again and again.

    python -m feedline.benchmarks.experiments.verdicts [--repeats 10 --seconds 3 --busy 0 2]

`tests/profiling/scripts/planted.py` runs unmodified under `profiling.profile_run`, once per kind and repeat, kinds in
random order. Right is a run whose bound, whose named place (the workers' top stage, the slow worker, unpickling)
and whose first remedy all fit the plant. `--busy 0 2` runs each alone and beside two processes that burn CPU.
`--more` adds to the runs of the result file, `--only` takes some kinds, `--keep DIR` keeps the recordings of wrong
runs. `--device cuda` trains on a GPU, which has causes of its own (then name another `--out`). Writes
results/verdicts.json.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from feedline.benchmarks.experiments.attribution import SCRIPT, make_pictures
from feedline.benchmarks.experiments.harness import beside, end_with, in_rounds, options, write
from feedline.profiling.explain.verdict import Diagnosis, diagnose
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig


@dataclass(frozen=True)
class Kind:
    """One planted cause and what must be said of it."""

    bound: str
    place: str | None
    """Of `place_of`; None where no place is asked for."""
    remedies: tuple[str, ...]
    """What the first remedy may start with."""


NONE_HELPS = "none helps"
ENDED_BY_US = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
KINDS = {
    "decode": Kind("data", "transform", ("cheaper transform", "num_workers=")),  # Python of the script's own
    "read": Kind("data", "blocked", ("num_workers=", "no waiting outside")),  # it sleeps
    "collate": Kind("data", "collate", ("cheaper collate", "num_workers=")),
    "slow_worker": Kind("data", "worker 0", ("mend worker 0",)),
    "serialise": Kind("data", "send", ("cheaper send",)),
    "compute": Kind("compute", None, ("freed memory kept", "channels_last", NONE_HELPS)),
    "main_thread": Kind("trainer", None, ("less Python in the training loop",)),
}
ON_GPU = KINDS | {
    "compute": Kind("compute", None, ("autocast", "channels_last", NONE_HELPS)),
    "slow_worker": Kind("data", "worker 0", ("mend worker 0", "num_workers=")),  # of many cores one may be slow
    "copy": Kind("copy", None, ("pin_memory",)),
    "sync": Kind("compute", None, ("no hidden synchronisations",)),
}


def main() -> None:
    given = options(__doc__, "verdicts.json", repeats=10, seconds=3.0, busy=(0, 2), more=False, only=("all",),
                    keep=Path, device="cpu")  # fmt: skip
    kinds = KINDS if given.device == "cpu" else ON_GPU
    given.only = list(kinds) if given.only == ["all"] else given.only
    before: dict[str, list[dict[str, Any]]] = {}
    if given.more and given.out.exists():
        before = json.loads(given.out.read_text())["runs"]

    def runs(by_round: Sequence[Mapping[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
        made = {plant: [one for done in by_round for name, one in done.items() if name.partition(" ")[0] == plant]
                for plant in given.only}  # fmt: skip
        return before | {plant: [*before.get(plant, []), *done] for plant, done in made.items()}

    def told(by_round: Sequence[Mapping[str, dict[str, Any]]]) -> None:
        figures = {plant: summary(done) for plant, done in runs(by_round).items()}
        write(given.out, {"warm_up": "as the profiler's rule: see its recordings",
                          "right_by_busy_processes": figures, "runs": runs(by_round)})  # fmt: skip

    with tempfile.TemporaryDirectory() as pictures:
        make_pictures(Path(pictures))
        cells = {
            f"{plant} {hogs}": partial(run, plant, pictures, given.seconds, hogs, given.keep, given.device)
            for plant in given.only
            for hogs in given.busy
        }
        by_round = in_rounds(
            cells, given.repeats, lambda one: "right" if one["right"] else f"WRONG: {one}", told=told
        )
    for plant, done in runs(by_round).items():
        print(f"{plant:12} {summary(done)}")


def run(plant: str, pictures: str, seconds: float, hogs: int, keep: Path | None, device: str) -> dict[str, Any]:
    argv = [str(SCRIPT), plant, pictures, "--samples", "1000000", "--device", device]
    with beside(hogs):
        done = study(StudyConfig(argv=argv, seconds=seconds))
    if done.recording.script.exit_status in ENDED_BY_US:  # signals are the script's while it runs
        raise KeyboardInterrupt
    found = judged(ON_GPU[plant] if device != "cpu" else KINDS[plant], diagnose(done.recording))
    if keep is not None and not found["right"]:
        keep.mkdir(parents=True, exist_ok=True)
        done.recording.save(keep / f"{plant}-{hogs}-{int(time.time())}.json")
    return {**found, "busy": hogs, "steps": len(done.recording.steps), "load_average": os.getloadavg()[0]}


def judged(kind: Kind, found: Diagnosis) -> dict[str, Any]:
    top, place = found.first.remedy if found.first else NONE_HELPS, place_of(found)
    return {
        "bound": found.bound,
        "place": place,
        "top_remedy": top,
        "wait_fraction": found.measured.trainer.wait_fraction,
        "right": found.bound == kind.bound and kind.place in (None, place) and top.startswith(kind.remedies),
    }


def place_of(found: Diagnosis) -> str | None:
    """Where the diagnosis says the time goes: a slow worker before stages; unpickling is sending's other end."""
    slow = found.measured.workers.slow
    if slow is not None:
        return f"worker {slow[0].worker}"
    return "send" if found.measured.unpickling_limits else found.measured.workers.top


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right runs by how many processes burnt CPU beside them."""
    by_hogs = {hogs: [one["right"] for one in runs if one["busy"] == hogs] for hogs in {one["busy"] for one in runs}}
    return {str(hogs): {"right": sum(right), "of": len(right)} for hogs, right in sorted(by_hogs.items())}


if __name__ == "__main__":
    end_with(main)
