"""Faults on purpose, over everything but Spark: what was written, delivered and left behind is checked after each.

    python -m tests.lab.chaos                 all kinds, every step once or a random choice of them
    python -m tests.lab.chaos steps loader --faults 40 --more

Kinds: `steps` (kill -9, SIGSTOP, a full and a broken disk before and behind every write, fsync, rename, removal and
new folder of prepare, index, the shard cache, recordings and training), `loader` (workers and trainers killed and
stopped), `storage` (servers that are slow, fail, lie and cut off; a file system with read errors), `machine` (a full
disk and a full /dev/shm for real, jumping clocks), `commands` (`feedline profile` and its script killed).
Spark's kills are in `chaos_prepare`.

Invariants, after every fault: no wrong sample was delivered, and every sample as planned; a finished dataset is
complete or is not there; the same command done again gives identical bytes; no process, shared memory or temporary
file is left after it. Writes results/chaos.json: faults injected and survived by kind, problems word for word.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline.profiling.record.host import describe_host
from tests.lab.chaos_files import SUBJECTS
from tests.lab.chaos_steps import BROKEN, CRASHED, FULL, KILL, STOP, TORN, Blow, Ended, Steps, in_child

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
KINDS = ("steps", "loader", "storage", "machine", "commands")

Outcome = tuple[str, list[str]]
"""The kind of fault, e.g. `prepare: kill before replace manifest.json`, and what was wrong afterwards."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.chaos", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument(
        "--faults", type=int, default=0, help="at most, of each kind and subject; 0: as many as there are"
    )
    parser.add_argument("--subjects", nargs="*", default=[one.__name__ for one in SUBJECTS], help="of `steps`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="seconds between faults, on a machine that others use")
    parser.add_argument("--more", action="store_true", help="add to the results that are there")
    parser.add_argument("--out", type=Path, default=RESULT)
    said = parser.parse_args()
    before = json.loads(said.out.read_text()) if said.more and said.out.exists() else {"faults": {}, "problems": []}
    with tempfile.TemporaryDirectory(prefix="feedline-chaos-") as folder:
        for kind in said.kinds:
            for what, problems in run(kind, Path(folder), said):
                note(before, what, problems)
                time.sleep(said.pause)
                if problems:
                    print(what, problems, file=sys.stderr, flush=True)
            said.out.write_text(json.dumps(summed(before), indent=1) + "\n")
    record = summed(before)
    said.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['injected']} faults, {record['survived']} survived")
    sys.exit(0 if record["injected"] == record["survived"] else 1)


def note(record: dict[str, Any], what: str, problems: list[str]) -> None:
    one = record["faults"].setdefault(what, {"injected": 0, "survived": 0})
    one["injected"] += 1
    one["survived"] += not problems
    if problems:
        record["problems"].append({"fault": what, "problems": problems})


def summed(record: dict[str, Any]) -> dict[str, Any]:
    by_kind: Counter[str] = Counter()
    for what, one in record["faults"].items():
        by_kind[what.partition(":")[0]] += one["injected"]
    return {
        "command": "python -m tests.lab.chaos",
        "host": describe_host(),
        "injected": sum(one["injected"] for one in record["faults"].values()),
        "survived": sum(one["survived"] for one in record["faults"].values()),
        "injected_by_kind": dict(sorted(by_kind.items())),
        "faults": dict(sorted(record["faults"].items())),
        "problems": record["problems"],
    }


def run(kind: str, folder: Path, said: argparse.Namespace) -> Iterator[Outcome]:
    faults, rng = said.faults, random.Random(said.seed)
    if kind == "steps":
        for subject in (one for one in SUBJECTS if one.__name__ in said.subjects):
            work = folder / subject.__name__
            work.mkdir()
            yield from strike_steps(subject(work), work, faults, rng)
            shutil.rmtree(work)
        return
    from tests.lab import chaos_live

    work = folder / kind
    work.mkdir()
    yield from chaos_live.kinds()[kind](work, faults, rng)


# --- every step of what is written --------------------------------------------------------------------


def strike_steps(subject: Any, work: Path, faults: int, rng: random.Random) -> Iterator[Outcome]:
    """Strikes `subject` at its steps, one run for each, and runs it again afterwards."""
    calm = work / "calm"
    made = in_child(subject.make)
    if made.status:
        raise RuntimeError(f"{subject.name} cannot be set up: {made.said}")
    steps = undisturbed(subject, calm)
    expected = in_child(lambda: subject.left(calm)).said
    blows = [blow for number, name in enumerate(steps) for blow in blows_at(number, name.partition(" ")[0])]
    most = min(faults or len(blows), getattr(subject, "most_faults", len(blows)), len(blows))
    blows = rng.sample(blows, most)
    for number, blow in enumerate(sorted(blows)):
        place = "of" if blow.what == TORN else "behind" if blow.behind else "before"
        folder = work / f"struck-{number}"
        problems = struck(subject, folder, blow, expected)
        yield f"{subject.name}: {blow.what} {place} {steps[blow.number]}", problems
        shutil.rmtree(folder, ignore_errors=True)


def blows_at(number: int, step: str) -> list[Blow]:
    """Killed on either side, stopped, refused by the disk; a removal needs no space; only a write can be torn."""
    blows = [Blow(number, KILL), Blow(number, KILL, True), Blow(number, STOP), Blow(number, BROKEN)]
    if step not in ("unlink", "remove"):
        blows.append(Blow(number, FULL))
    return [*blows, Blow(number, TORN)] if step == "write" else blows


def undisturbed(subject: Any, folder: Path) -> list[str]:
    """Runs it once without a fault; the names of its steps, in order. The start of each recurs in every later run."""
    folder.mkdir()
    subject.fresh(folder)

    def act() -> list[str]:
        with Steps(folder).watching() as steps:
            subject.act(folder)
        return steps.seen

    ended = in_child(act)
    if ended.status:
        raise RuntimeError(f"{subject.name} fails without a fault: {ended.said}")
    return ended.said


def struck(subject: Any, folder: Path, blow: Blow, expected: dict[str, str]) -> list[str]:
    """What is wrong after the blow and after another run; nothing, if all is well. All in children: a library that
    has started threads in here would hang in the next fork."""
    folder.mkdir()
    subject.fresh(folder)

    def act() -> None:
        with Steps(folder, blow).watching():
            subject.act(folder)

    problems = of_end(in_child(act), blow)
    unsound = in_child(lambda: subject.unsound(folder))
    again = in_child(lambda: subject.act(folder))
    if again.status or unsound.status:
        problems.append(f"done again it ended with {again.status}: {again.said or unsound.said}")
    left = in_child(lambda: subject.left(folder)).said
    if left != expected:
        wrong = sorted(name for name in left.keys() | expected.keys() if left.get(name) != expected.get(name))
        problems.append(f"done again, {len(wrong)} files differ or are left over: {', '.join(wrong[:4])}")
    return [*problems, *([unsound.said] if unsound.said else [])]


def of_end(ended: Ended, blow: Blow) -> list[str]:
    """A failing disk must end in an error of ours (or be survived), a stopped process must go on to its end."""
    if ended.stuck:
        return ["it hung"]
    if ended.status == CRASHED:
        return [f"it ended in {ended.said}"]
    if blow.what == STOP and ended.status:
        return [f"stopped and let go on, it ended with {ended.status}: {ended.said}"]
    return []


if __name__ == "__main__":
    main()
