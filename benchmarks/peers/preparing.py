"""feedline's prepare beside other tools that resize and pack images: same files, size, quality and cores.

    python -m feedline.benchmarks.peers.preparing SOURCE      SOURCE: a folder of class folders

Every tool runs in an environment of its own, in rounds, in an order drawn anew for each round; process starts are
taken off for all. The limit is a bare pool of as many processes, which reads, runs feedline's kernel and writes.
Tools that leave the picture to the user's own function get the same one, with the Pillow that `pip install` brings
them and, as `_simd`, with this project's Pillow-SIMD. `webdataset` is the loop of its documentation, one process;
`webdataset_simd` has a pool in front of the writer, as MosaicML's documentation does it: harder to beat than what
either tool's users write.
"""

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from feedline.benchmarks.experiments.harness import RESULTS, write
from feedline.benchmarks.experiments.prepare_speed import bare_pool, spark_job, where_samples_are
from feedline.benchmarks.measure.fork_server import end_group
from feedline.benchmarks.measure.rounds import rounds
from feedline.benchmarks.peers.environments import PEERS as LOADERS
from feedline.benchmarks.peers.environments import SCRIPTS, STOCK_PILLOW, Peer, PeerError, interpreter
from feedline.pipeline.base.process import usable_cores
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.sources.reading import read_all

PEERS = {
    "mosaicml": Peer(name="mosaicml_stock", packages=(*LOADERS["mosaicml"].packages, STOCK_PILLOW)),
    "mosaicml_simd": LOADERS["mosaicml"],
    "litdata": Peer(name="litdata_stock", packages=(*LOADERS["litdata"].packages, STOCK_PILLOW)),
    "litdata_simd": LOADERS["litdata"],
    "img2dataset": Peer(name="img2dataset", packages=("img2dataset==1.47.0", "setuptools<81"), with_torch=False),
    "webdataset": LOADERS["webdataset"],
    "webdataset_simd": LOADERS["webdataset_simd"],
    "ffcv": LOADERS["ffcv"],
}
"""By the name of the row; the Peer's own name is that of its environment, which the loading benchmark shares."""
ONE_PROCESS = ("webdataset",)
LIMIT = "limit: bare pool"
STUCK_S = 600
WANTED = {"mosaicml": 1.4, "litdata": 3.0, "img2dataset": 3.0, "webdataset": 2.5}
"""How far ahead prepare should be, of each tool as its users install it; of FFCV nothing was asked."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m feedline.benchmarks.peers.preparing", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="these peers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    said = parser.parse_args()
    if (Path(said.source) / "train").is_dir():
        parser.error(f"{said.source} holds splits: give one of them, as {said.source}/train")
    peers = {name: peer for name, peer in PEERS.items() if said.only is None or name in said.only}
    write(said.out / "prepare-peers.json", measure(said.source, peers, said.rounds))


def measure(source: str, peers: Mapping[str, Peer], count: int) -> dict[str, Any]:
    pythons: dict[str, Path] = {}
    failed: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            pythons[name] = interpreter(peer)
        except PeerError as error:
            failed[name] = str(error)
    by_round: list[dict[str, float]] = [{} for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        for number, name in rounds([*pythons, LIMIT, "feedline"], count):
            if name in failed:
                continue
            try:
                rate = one_run(name, pythons.get(name), source, Path(folder))
            except PeerError as error:
                failed[name] = str(error)
                continue
            by_round[number][name] = rate
            print(number, name, round(rate, 1), file=sys.stderr, flush=True)
    return summary(source, by_round, failed)


def one_run(name: str, python: Path | None, source: str, folder: Path) -> float:
    """samples/s, starts apart. Raises PeerError when a peer fails."""
    out = folder / "out"
    for _ in read_all(places(source), {}, {}):  # so that nobody meets a cold disk
        pass
    try:
        if name == LIMIT:
            return float(bare_pool(places(source), usable_cores(), out)["samples_per_s"])
        if python is None:
            return float(spark_job(source, None, usable_cores(), out)["samples_per_s"])
        script = SCRIPTS / f"prepare_{name.removesuffix('_simd')}.py"
        processes = 1 if name in ONE_PROCESS else usable_cores()
        command = [str(python), str(script), source, str(out), str(processes)]
        figures = json.loads(last_line(name, command, folder))
        return figures["samples"] / figures["seconds"]
    finally:
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def last_line(name: str, command: Sequence[str], folder: Path) -> str:
    """Of what it printed. Raises PeerError; a tool that waits for dead workers is ended with all that it started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    ) as process:
        try:
            printed, said = process.communicate(timeout=STUCK_S)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{name} did not end in {STUCK_S} s") from None
        finally:
            end_group(process.pid)
    if process.returncode:
        raise PeerError(f"{name} failed: {(said.strip().splitlines() or ['no message'])[-1]}")
    return printed.splitlines()[-1]


@functools.cache
def places(source: str) -> Any:
    """Where the samples are, looked up outside the time measured."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        return where_samples_are(PrepareConfig(source=source, out=folder))


def summary(source: str, by_round: Sequence[dict[str, float]], failed: dict[str, str]) -> dict[str, Any]:
    names = sorted({name for one in by_round for name in one} - {"feedline", LIMIT})
    ratios = {
        name: sorted(one["feedline"] / one[name] for one in by_round if {name, "feedline"} <= one.keys())
        for name in names
    }
    return {
        "what": f"{Path(source).name}: short side 256, bicubic (img2dataset: area), q90; {usable_cores()} cores",
        "n": sum(1 for path in Path(source).rglob("*") if path.is_file()),
        "rounds": len(by_round),
        "warm_up_rounds": 0,
        "samples_per_s": {
            name: round(median(one[name] for one in by_round if name in one), 1)
            for name in (*names, "feedline", LIMIT)
            if any(name in one for one in by_round)
        },
        "feedline_is_times_faster": {
            name: {"median": round(median(found), 2), "low": round(found[0], 2), "high": round(found[-1], 2),
                   "wanted": WANTED.get(name)}
            for name, found in ratios.items()
            if found
        },
        "failed": failed,
        "by_round": list(by_round),
    }  # fmt: skip


if __name__ == "__main__":
    main()
