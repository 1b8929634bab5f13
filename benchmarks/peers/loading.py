"""Head to head with other loaders: every peer, feedline and the limit, interleaved in one run.

    python -m feedline.benchmarks.peers.loading IMAGE_FOLDER --work DIR [--tables jpeg,planes,keep,raw] [--peers
        ffcv,dali]

Batches of 64, RandomResizedCrop 224 and flip, uint8 to the training process, page cache warm, two workers or threads.
Every figure is a fresh process; rounds visit the rows in a random order; a row's figure is the median of its rounds.
A measurement during which other programs took more than 0.2 cores is repeated, twice at most.
Writes benchmarks/results/loading.json and prints its tables.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from feedline.benchmarks.commands import FEEDLINE
from feedline.benchmarks.measure.rounds import QUIET_CORES, TRIES
from feedline.benchmarks.peers.environments import PEERS, SCRIPTS, Peer, PeerError, interpreter
from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import write_atomically
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "loading.json"
TIMEOUT_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: whose script, with which additions to the spec."""

    name: str
    script: str
    peer: Peer | None = None
    spec: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class Outcome:
    rates: list[float] = field(default_factory=list[float])
    first_batch_s: list[float] = field(default_factory=list[float])
    others_cores: list[float] = field(default_factory=list[float])
    """Cores that other programs took meanwhile."""
    batch: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What all tables read, made once under `work`."""

    originals: Path
    """The image folder as given."""
    work: Path

    def split(self, form: str) -> Path:
        return self.work / form / "train"

    @property
    def small_folder(self) -> Path:
        """The 256 px JPEGs of our shards as loose files: the peers decode the very same bytes."""
        return self.work / "folder256"


FORMS = {
    "256-jpeg": ["--size", "256", "--codec", "jpeg"],
    "256-planes": ["--size", "256", "--codec", "planes"],
    "64-raw": ["--size", "64", "--codec", "raw", "--resize", "square"],
    "keep": ["--codec", "keep"],
}


def make_inputs(originals: Path, work: Path, forms: list[str]) -> Inputs:
    inputs = Inputs(originals=originals, work=work)
    for form in forms:
        if not (inputs.split(form) / "manifest.json").exists():
            command = [*FEEDLINE, "prepare", str(originals), str(work / form), *FORMS[form], "--shards", "16"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise FeedlineError(f"preparing {form} failed: {done.stderr.strip().splitlines()[-1]}")
    if "256-jpeg" in forms and not inputs.small_folder.exists():
        _unpack(inputs.split("256-jpeg"), inputs.small_folder)
    return inputs


def _unpack(split: Path, folder: Path) -> None:
    from feedline.pipeline.format.local import LocalFiles
    from feedline.pipeline.format.manifest import read_index, read_manifest

    index = read_index(split)
    files = LocalFiles(split, read_manifest(split).shard_names)
    for sample in range(len(index)):
        place = folder / f"c{index.labels_N[sample]:04d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{sample:07d}.jpg").write_bytes(files.read(*index.place(sample)))
    files.close()


# --- the tables ---------------------------------------------------------------------------------------


def tables(inputs: Inputs, peers: list[str]) -> dict[str, list[Row]]:
    small, split = str(inputs.small_folder), str(inputs.split("256-jpeg"))
    shards = sorted(map(str, inputs.split("256-jpeg").glob("*.tar")))
    theirs = {"folder": small, "shards": shards, "px": 224}
    whole = {"folder": str(inputs.originals), "px": 224,
             "shards": sorted(map(str, inputs.split("keep").glob("*.tar")))}  # fmt: skip
    keep, planes, raw = (str(inputs.split(form)) for form in ("keep", "256-planes", "64-raw"))
    still = {"train": False, "crop_fraction": 1.0}
    return {
        "jpeg": [
            _limit("limit: bare kernel", split, "feedline"),
            _limit("bare full decode", split, "decode"),
            _ours("feedline", split),
            *_peers(peers, theirs, inputs.work, "256"),
        ],
        "planes": [
            _limit("limit: bare kernel", planes, "feedline"),
            _ours("feedline planes", planes),
            *_peers([name for name in peers if name == "ffcv"], theirs | {"mode": "raw"}, inputs.work, "256raw"),
        ],
        "keep": [
            _limit("limit: bare kernel", keep, "feedline"),
            _limit("bare full decode", keep, "decode"),
            _ours("feedline keep", keep),
            *_peers(peers, whole, inputs.work, "keep"),
        ],
        "raw": [
            _limit("NumPy copies from mapped shards", raw, "gather", px=64, workers=1),
            _limit("NumPy take from one array", raw, "take", px=64, workers=1),
            _ours("feedline raw 64, 1 worker", raw, px=64, workers=1, augment=still),
            _ours("feedline raw 64, in the trainer", raw, px=64, workers=0, augment=still),
            _ours("feedline raw 64, 2 workers", raw, px=64, workers=2, augment=still),
        ],
        "scaling": [_ours(f"feedline, {workers} workers", split, workers=workers) for workers in (0, 1, 2, 4)],
    }


def _limit(name: str, split: str, kernel: str, **more: Any) -> Row:
    return Row(name=name, script="peer_limit.py", spec={"split": split, "kernel": kernel, "px": 224, **more})


def _ours(name: str, split: str, **more: Any) -> Row:
    return Row(name=name, script="peer_feedline.py", spec={"split": split, "px": 224, **more})


def _peers(names: list[str], spec: dict[str, Any], work: Path, form: str) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        mode = {"mode": spec.get("mode", "jpg"), "work": str(work / "peers" / form / name)}
        title = f"{name} raw" if mode["mode"] == "raw" else name
        peer = PEERS[name]
        rows.append(Row(name=title, script=f"peer_{peer.script or name}.py", peer=peer, spec=spec | mode))
    return rows


# --- running ------------------------------------------------------------------------------------------


def run_table(rows: list[Row], common: dict[str, Any], rounds: int) -> dict[str, Outcome]:
    outcomes = {row.name: Outcome() for row in rows}
    for row in rows:
        _try(row, outcomes[row.name], "prepare", common)
    for _ in range(rounds):
        for row in random.sample(rows, len(rows)):
            if not outcomes[row.name].problem:
                _try(row, outcomes[row.name], "measure", common)
    return outcomes


def _try(row: Row, outcome: Outcome, verb: str, common: dict[str, Any]) -> None:
    try:
        answer, others_cores = _quiet(row, common) if verb == "measure" else (_call(row, verb, common), 0.0)
    except PeerError as error:
        outcome.problem = str(error)
        print(f"  {row.name}: {error}", file=sys.stderr, flush=True)
        return
    if verb == "measure":
        outcome.rates.append(answer["samples_per_s"])
        outcome.others_cores.append(others_cores)
        outcome.batch = answer["batch"]
        if "first_batch_s" in answer:
            outcome.first_batch_s.append(answer["first_batch_s"])
        print(f"  {row.name}: {answer['samples_per_s']:,.0f}", file=sys.stderr, flush=True)


def _quiet(row: Row, common: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The row's answer and how many cores others took meanwhile; where they took too much, the quietest of a few."""
    tries: list[tuple[float, dict[str, Any]]] = []
    while not tries or (tries[-1][0] > QUIET_CORES and len(tries) < TRIES):
        before = time.monotonic(), _busy_s(), _children_s()
        answer = _call(row, "measure", common)
        wall_s, busy_s, own_s = time.monotonic() - before[0], _busy_s() - before[1], _children_s() - before[2]
        tries.append((max(0.0, (busy_s - own_s) / wall_s), answer))
    others_cores, answer = min(tries, key=lambda one: one[0])
    return answer, round(others_cores, 2)


def _busy_s() -> float:
    """All cores' time that was not idle, a hypervisor's included."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _call(row: Row, verb: str, common: dict[str, Any]) -> dict[str, Any]:
    """Raises PeerError with the script's last line."""
    python = interpreter(row.peer) if row.peer else Path(sys.executable)
    command = [str(python), str(SCRIPTS / row.script), verb, json.dumps(common | row.spec)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
                              env=os.environ | {"PYTHONWARNINGS": "ignore"})  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"no answer within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise PeerError((done.stderr.strip() or "no message").splitlines()[-1][:300])
    return json.loads(done.stdout.strip().splitlines()[-1]) if verb == "measure" else {}


# --- the result ---------------------------------------------------------------------------------------


def summary(rows: list[Row], outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    for row in rows:
        outcome = outcomes[row.name]
        rates = outcome.rates
        listed.append(
            {
                "name": row.name,
                "samples_per_s": round(statistics.median(rates), 1) if rates else None,
                "low": round(min(rates), 1) if rates else None,
                "high": round(max(rates), 1) if rates else None,
                "n": len(rates),
                "first_batch_s": round(statistics.median(outcome.first_batch_s), 3)
                if outcome.first_batch_s
                else None,
                "others_cores": max(outcome.others_cores, default=None),
                "batch": outcome.batch,
                "packages": list(row.peer.packages + row.peer.without_dependencies) if row.peer else [],
                "problem": outcome.problem or None,
            }
        )
    return listed


def show(title: str, listed: list[dict[str, Any]]) -> None:
    ours = next((row["samples_per_s"] for row in listed if row["name"].startswith("feedline")), None)
    print(f"\n{title}\n{'':34}{'samples/s':>10}{'low':>9}{'high':>9}{'n':>3}  feedline is")
    for row in listed:
        if row["samples_per_s"] is None:
            print(f"{row['name']:34}  {row['problem']}")
            continue
        ratio = f"{ours / row['samples_per_s']:.2f} ×" if ours else ""
        figures = f"{row['samples_per_s']:>10,.0f}{row['low']:>9,.0f}{row['high']:>9,.0f}{row['n']:>3}"
        print(f"{row['name']:34}{figures}  {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("originals", type=Path, help="an image folder, as of `feedline synth --layout folder`")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tables", default="jpeg,planes,keep,raw,scaling")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--result", type=Path, default=RESULT)
    args = parser.parse_args()
    needed = {"jpeg": ["256-jpeg"], "planes": ["256-jpeg", "256-planes"], "keep": ["keep"], "raw": ["64-raw"],
              "scaling": ["256-jpeg"]}  # fmt: skip
    wanted = args.tables.split(",")
    inputs = make_inputs(args.originals, args.work, sorted({form for table in wanted for form in needed[table]}))
    common = {"batch_size": 64, "workers": 2, "seconds": args.seconds}
    result: dict[str, Any] = json.loads(args.result.read_text()) if args.result.exists() else {"tables": {}}
    images = sum(1 for _ in args.originals.rglob("*.*"))
    result |= {"command": "python -m feedline.benchmarks.peers.loading IMAGE_FOLDER --work DIR", "host": describe_host(),  # noqa: E501
               "settings": common | {"warm_up_s": 1.5, "images": images}}  # fmt: skip
    args.result.parent.mkdir(exist_ok=True)
    for name in wanted:
        rows = tables(inputs, [peer for peer in args.peers.split(",") if peer])[name]
        listed = summary(rows, run_table(rows, common, args.rounds))
        show(name, listed)
        result["tables"][name] = listed
        write_atomically(args.result, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
