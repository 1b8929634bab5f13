"""Head to head with other loaders: every peer, feedline and the limit, interleaved in one run.

    python -m feedline.benchmarks.peers.loading IMAGE_FOLDER --work DIR [--tables jpeg planes keep raw scaling]
        [--peers ffcv dali …] [--rounds 3 --seconds 4]

Batches of 64, RandomResizedCrop 224 and flip, uint8 to the training process, page cache warm, two workers or threads.
Every figure is a fresh process; rounds visit the rows in a random order; a row's figure is the median of its rounds.
A measurement during which other programs took more than 0.2 cores is repeated, twice at most.
Writes benchmarks/results/loading.json and prints its tables.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from feedline.benchmarks.commands import FEEDLINE
from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, output_of, say, show, write
from feedline.benchmarks.measure.rounds import quietest
from feedline.benchmarks.peers.environments import PEERS, SCRIPTS, Peer, PeerError, environment, interpreter
from feedline.pipeline.base.process import CpuClocks
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import read_index, read_manifest

TIMEOUT_S = 240.0
FORMS = {
    "256-jpeg": ["--size", "256", "--codec", "jpeg"],
    "256-planes": ["--size", "256", "--codec", "planes"],
    "64-raw": ["--size", "64", "--codec", "raw", "--resize", "square"],
    "keep": ["--codec", "keep"],
}
NEEDED = {"jpeg": ["256-jpeg"], "planes": ["256-jpeg", "256-planes"], "keep": ["keep"], "raw": ["64-raw"],
          "scaling": ["256-jpeg"]}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: whose script, with which additions to the spec."""

    name: str
    script: str
    peer: Peer | None = None
    spec: dict[str, Any] = field(default_factory=dict[str, Any])


def main() -> None:
    given = options(__doc__, "loading.json", "originals", "--work", tables=tuple(NEEDED), peers=tuple(PEERS),
                    rounds=3, seconds=4.0)  # fmt: skip
    make_inputs(given.originals, given.work, sorted({form for table in given.tables for form in NEEDED[table]}))
    common = {"batch_size": 64, "workers": 2, "seconds": given.seconds}
    known = json.loads(given.out.read_text())["tables"] if given.out.exists() else {}
    images = sum(1 for _ in given.originals.rglob("*.*"))
    settings = {**common, "warm_up_s": 1.5, "images": images}
    for name in given.tables:
        rows = table_rows(name, given.originals, given.work, given.peers)
        known[name] = listed = run_table(rows, common, given.rounds)
        write(given.out, {"settings": settings, "tables": known})
        ours = next((row["samples_per_s"] for row in listed if row["name"].startswith("feedline")), None)
        print(f"\n{name}")
        show(("", "samples/s", "low", "high", "n", "feedline is"), [
            (row["name"], *(f"{row[key]:,.0f}" for key in ("samples_per_s", "low", "high")), row["n"],
             f"{ours / row['samples_per_s']:.2f} ×" if ours else "")
            if row["samples_per_s"] else (f"{row['name']}: {row['problem']}", "", "", "", "", "")
            for row in listed
        ])  # fmt: skip


def make_inputs(originals: Path, work: Path, forms: list[str]) -> None:
    for form in forms:
        if not (work / form / "train" / "manifest.json").exists():
            command = [*FEEDLINE, "prepare", str(originals), str(work / form), *FORMS[form], "--shards", "16"]
            output_of(command, f"preparing {form}")
    folder = work / "folder256"
    if "256-jpeg" in forms and not folder.exists():
        # the 256 px JPEGs of our shards as loose files: the peers decode the very same bytes
        split = work / "256-jpeg" / "train"
        index = read_index(split)
        files = LocalFiles(split, read_manifest(split).shard_names)
        for sample in range(len(index)):
            place = folder / f"c{index.labels_N[sample]:04d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{sample:07d}.jpg").write_bytes(files.read(*index.place(sample)))
        files.close()


# --- the tables ---------------------------------------------------------------------------------------


def table_rows(table: str, originals: Path, work: Path, peers: Sequence[str]) -> list[Row]:
    jpeg, planes, raw, keep = (str(work / form / "train") for form in ("256-jpeg", "256-planes", "64-raw", "keep"))

    def limit(name: str, split: str, kernel: str, **more: Any) -> Row:
        return Row(name=name, script="peer_limit.py", spec={"split": split, "kernel": kernel, "px": 224, **more})

    def ours(name: str, split: str, **more: Any) -> Row:
        return Row(name=name, script="peer_feedline.py", spec={"split": split, "px": 224, **more})

    def theirs(folder: Path, split: str, form: str, mode: str = "jpg") -> list[Row]:
        spec = {"folder": str(folder), "px": 224, "shards": sorted(map(str, Path(split).glob("*.tar"))), "mode": mode}
        chosen = [PEERS[name] for name in peers if mode == "jpg" or name == "ffcv"]
        return [
            Row(name=f"{peer.name} raw" if mode == "raw" else peer.name, script=f"peer_{peer.script or peer.name}.py",
                peer=peer, spec={**spec, "peer": peer.name, "work": str(work / "peers" / form / peer.name)})
            for peer in chosen
        ]  # fmt: skip

    small, still = work / "folder256", {"train": False, "crop_fraction": 1.0}
    if table == "jpeg":
        bare = [limit("limit: bare kernel", jpeg, "feedline"), limit("bare full decode", jpeg, "decode")]
        return [*bare, ours("feedline", jpeg), *theirs(small, jpeg, "256")]
    if table == "planes":
        bare = [limit("limit: bare kernel", planes, "feedline")]
        return [*bare, ours("feedline planes", planes), *theirs(small, jpeg, "256raw", "raw")]
    if table == "keep":
        bare = [limit("limit: bare kernel", keep, "feedline"), limit("bare full decode", keep, "decode")]
        return [*bare, ours("feedline keep", keep), *theirs(originals, keep, "keep")]
    if table == "raw":
        return [
            limit("NumPy copies from mapped shards", raw, "gather", px=64, workers=1),
            limit("NumPy take from one array", raw, "take", px=64, workers=1),
            ours("feedline raw 64, 1 worker", raw, px=64, workers=1, augment=still),
            ours("feedline raw 64, in the trainer", raw, px=64, workers=0, augment=still),
            ours("feedline raw 64, 2 workers", raw, px=64, workers=2, augment=still),
        ]
    return [ours(f"feedline, {count_of(workers, 'worker')}", jpeg, workers=workers) for workers in (0, 1, 2, 4)]


# --- running ------------------------------------------------------------------------------------------


def run_table(rows: list[Row], common: dict[str, Any], count: int) -> list[dict[str, Any]]:
    failed = prepared(rows, common)
    cells = {row.name: partial(quietest, partial(watched, row, common), itemgetter("others_cores")) for row in rows}
    by_round = in_rounds(
        cells, count, lambda one: f"{one['samples_per_s']:,.0f} samples/s", failed=failed, but=PeerError
    )
    return [summary(row, column(by_round, row.name), failed.get(row.name)) for row in rows]


def prepared(rows: Iterable[Row], common: dict[str, Any]) -> dict[str, str]:
    """Every peer's own format is written; those that cannot be, and why."""
    failed: dict[str, str] = {}
    for row in rows:
        try:
            call(row, "prepare", common)
        except PeerError as error:
            failed[row.name] = str(error)
            say(f"{row.name}: {error}")
    return failed


def watched(row: Row, common: dict[str, Any]) -> dict[str, Any]:
    """The row's answer, and how many cores others took meanwhile."""
    before = CpuClocks.now()
    answer = json.loads(call(row, "measure", common))
    return {**answer, "others_cores": round(CpuClocks.now().since(before).others_cores, 2)}


def call(row: Row, verb: str, common: dict[str, Any]) -> str:
    """The last line. Raises PeerError with the script's."""
    python = interpreter(row.peer) if row.peer else Path(sys.executable)
    command = [str(python), str(SCRIPTS / row.script), verb, json.dumps(common | row.spec)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
                              env=environment())  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"no answer within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise PeerError((done.stderr.strip() or "no message").splitlines()[-1][:300])
    return (done.stdout.strip().splitlines() or [""])[-1]


def summary(row: Row, answers: Sequence[dict[str, Any]], problem: str | None) -> dict[str, Any]:
    rates = [answer["samples_per_s"] for answer in answers]
    firsts = [answer["first_batch_s"] for answer in answers if "first_batch_s" in answer]
    return {
        "name": row.name,
        "samples_per_s": round(statistics.median(rates), 1) if rates else None,
        "low": round(min(rates), 1) if rates else None,
        "high": round(max(rates), 1) if rates else None,
        "n": len(rates),
        "first_batch_s": round(statistics.median(firsts), 3) if firsts else None,
        "others_cores": max((answer["others_cores"] for answer in answers), default=None),
        "batch": answers[-1]["batch"] if answers else "",
        "packages": list(row.peer.installed) if row.peer else [],
        "problem": problem,
    }


if __name__ == "__main__":
    end_with(main)
